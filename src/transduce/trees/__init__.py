"""Constituency trees: reading, linearization and EVALB's scores (section 6.3)."""
