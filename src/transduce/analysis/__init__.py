"""Attention, its statistics and pictures, and the cost of layers and models."""
