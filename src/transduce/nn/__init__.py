"""Operators of the native library with their gradients."""
