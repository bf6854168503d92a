"""Models that search asks for the next token."""
