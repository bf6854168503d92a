"""The Transformer in plain PyTorch (section 3 of the paper)."""
