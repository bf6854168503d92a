"""Special ids, with which every vocabulary begins."""

PAD, BOS, EOS = 0, 1, 2
"""Padding; start of the decoder's input; end of source and target."""
