"""Section 6: presets, and the way from two text files to a scored model."""
