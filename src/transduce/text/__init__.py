"""Strings: parallel files, tokenizers, the built-in grammar. Knows no torch."""
