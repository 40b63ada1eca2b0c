"""Telling the user's code from that of libraries, by its file."""

from __future__ import annotations

import os
import sys

# Of the interpreter itself, of generated code, and of what installers put in place.
_MARKS = ("-packages" + os.sep,)


class UserCode:
    """Tells which files are the user's; made when Python starts, before torch is there."""

    def __init__(self) -> None:
        own_dir = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        standard = os.path.dirname(os.path.abspath(os.__file__))
        prefixes = {standard, own_dir, os.path.join(sys.base_prefix, "lib"), "<"}
        self._hidden = tuple(
            prefix if prefix == "<" else prefix + os.sep for prefix in sorted(prefixes)
        )

    def owns(self, file_name: str) -> bool:
        """Tell whether a file of code is the user's."""
        if file_name.startswith(self._hidden):
            return False
        return not any(mark in file_name for mark in _MARKS)
