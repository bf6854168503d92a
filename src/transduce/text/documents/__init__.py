"""Documents as sentences, and what stands between them."""
