"""What training computes in C, where the processor has AVX2 or AVX-512 VNNI."""
