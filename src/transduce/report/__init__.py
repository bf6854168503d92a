"""Reports of text, tables and pictures: on a terminal, in Markdown, as a web page."""
