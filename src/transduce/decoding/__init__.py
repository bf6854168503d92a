"""Section 6.1: search, scores of given targets, text to text. Knows no training."""
