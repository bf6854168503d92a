"""Corpora from files to batches: download, preparation, datasets (section 5.1)."""
