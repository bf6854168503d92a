"""`python -m transduce` is `transduce`."""

from transduce.cli import main

main()
