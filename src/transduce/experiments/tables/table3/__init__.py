"""Table 3: the base model varied (section 6.2), trained again at any scale."""
