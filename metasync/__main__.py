"""`python -m metasync` is the command line."""

from metasync.cli import main

main()
