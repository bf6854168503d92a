"""One sentence under the glass: its attention, search and alignment as a page."""
