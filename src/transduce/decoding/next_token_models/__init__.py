"""What is asked for the next token: a model, several, one in fewer bits."""
