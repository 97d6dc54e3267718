"""`python -m cl2r` is `cl2r`."""

from cl2r.cli import main

main()
