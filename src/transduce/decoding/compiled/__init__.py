"""Models whose every step is a call of a kernel. Knows no torch."""
