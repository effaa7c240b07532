"""`python -m stateir` is the command line."""

from .cli import main

main()
