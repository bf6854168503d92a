"""The paper's tables: our figures beside those of the paper, with their protocol."""
