"""Runs the command line: `python -m whystuck`."""

import sys

from whystuck.cli import main

if __name__ == "__main__":
    sys.exit(main())
