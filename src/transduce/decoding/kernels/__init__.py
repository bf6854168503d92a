"""What decoding computes in C, where the processor has AVX-512 VNNI instructions."""
