"""Architectures: what all models share, and the function that builds each."""
