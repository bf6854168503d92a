"""Sentences in, constituency trees out (section 6.3)."""
