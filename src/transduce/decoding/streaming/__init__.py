"""Lines without end: read as they come, decoded together, put out in their order."""
