"""What moves the weights."""
