"""The speed and memory of training, ours and that of others."""
