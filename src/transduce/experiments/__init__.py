"""Presets, runs from text files to a scored model, and the paper's tables."""
