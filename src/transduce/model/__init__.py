"""Section 3 of the paper, subsection by subsection. Knows no text and no training."""
