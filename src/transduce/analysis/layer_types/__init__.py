"""The layer types of Table 1 as real layers, and what can be measured of them."""
