"""Models for other runtimes, each with a proof that it puts out the same."""
