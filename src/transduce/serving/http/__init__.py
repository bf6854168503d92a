"""Over HTTP: requests admitted, done, counted and documented."""
