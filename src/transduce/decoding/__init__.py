"""Search, sampling, scoring and parsing with trained models (section 6)."""
