"""Constituency trees as strings and their scores (section 6.3). Knows no torch."""
