"""What all kernels have in common: their lanes, threads, and how they are loaded."""
