"""Export to other toolkits, import from them, and a proof of each."""
