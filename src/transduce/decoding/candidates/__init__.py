"""The likeliest ways to go on, of all hypotheses of a sentence at once."""
