"""Decoding steps as CUDA graphs: recorded once, replayed by one call."""
