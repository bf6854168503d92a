"""How good translations are: scores of strings against strings, each with its protocol.

Knows nothing of models and imports no torch.
"""
