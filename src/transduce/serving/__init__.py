"""Models put in front of people: requests gathered into batches, HTTP, a page."""
