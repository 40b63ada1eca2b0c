"""Runs the command line: `python -m whystuck`."""

import sys
from pathlib import Path


def _leave_out_working_directory() -> None:
    """Import nothing from where the user is: a job may have a ``queue.py`` of its own there.

    Python puts that folder first for ``-m``, unless it is told not to. It stays where this package
    itself is found in it.
    """
    try:
        here = str(Path.cwd())
    except OSError:  # it was deleted
        here = ""
    is_its_own = str(Path(__file__).absolute().parent.parent) == here
    if not sys.flags.safe_path and sys.path[0] in ("", here) and not is_its_own:
        del sys.path[0]


if __name__ == "__main__":
    _leave_out_working_directory()
    from whystuck.cli import main

    sys.exit(main())
