"""What is asked for the next token: a model, several, one that is watched."""
