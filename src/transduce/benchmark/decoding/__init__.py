"""The speed and memory of decoding, ours and that of others."""
