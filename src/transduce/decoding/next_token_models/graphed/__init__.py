"""Steps that a GPU records once and does again by one call."""
