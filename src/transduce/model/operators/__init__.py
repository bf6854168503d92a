"""What runs as fast as a processor can, where PyTorch's own operators do not."""
