"""Threads, shared with PyTorch."""
