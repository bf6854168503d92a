"""The ids that are no text: every vocabulary begins with them."""

PAD, BOS, EOS = 0, 1, 2
"""Fills rows up; begins the decoder's input; ends source and target."""
