"""Models of other libraries made ours, with a proof that they put out the same."""
