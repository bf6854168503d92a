"""Our speed beside that of others, in one run. Nothing imports it but `cli`."""
