"""Section 5: loss, learning rate, the loop. Knows no text and no decoding."""
