"""A report of tables, words and pictures: on a terminal, in Markdown, as a web page.

Knows nothing of what it tells.
"""
