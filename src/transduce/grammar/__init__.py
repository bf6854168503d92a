"""The built-in grammar: parallel sentences and trees in unlimited supply."""
