"""Ids on disk and in batches (section 5.1). Knows no text and no model."""
