"""Named corpora: from servers to line-aligned files (section 5.1). Knows no torch."""
