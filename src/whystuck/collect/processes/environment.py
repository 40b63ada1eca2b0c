"""What /proc tells of a process: variables, words, libraries.

A process may say that any part of its memory holds its variables (``PR_SET_MM``), a TiB of zeros
too, so that all of this is read up to a size.
"""

from __future__ import annotations

from typing import Final

# An exec with the usual stack takes no more variables and words than this.
_MAX_ENVIRONMENT_BYTES: Final = 2 << 20
_MAX_COMMAND_BYTES: Final = 1 << 16
# A process may have 65,530 maps with paths of 4 KB.
_MAX_MAPS_BYTES: Final = 16 << 20


def read_environment(pid: int) -> dict[str, str]:
    """Return the environment a process was started with; raises OSError when not allowed."""
    raw = read_start_of(pid, "environ", _MAX_ENVIRONMENT_BYTES)
    pairs = (item.partition("=") for item in raw.decode(errors="replace").split("\0") if item)
    return {name: value for name, _, value in pairs}


def read_words(pid: int) -> list[str]:
    """Return the words of the command of a process; empty when it is gone or may not be read."""
    try:
        raw = read_start_of(pid, "cmdline", _MAX_COMMAND_BYTES).rstrip(b"\0")
    except OSError:
        return []
    return raw.decode(errors="replace").split("\0") if raw else []


def has_loaded(pid: int, library: bytes) -> bool:
    """Return whether a process has mapped a library; raises OSError when that cannot be seen."""
    return library in read_start_of(pid, "maps", _MAX_MAPS_BYTES)


def read_start_of(pid: int, name: str, max_bytes: int) -> bytes:
    """Return the first bytes of a file of a process in /proc; raises OSError."""
    with open(f"/proc/{pid}/{name}", "rb") as file:  # noqa: PTH123 - half the time of Path
        return file.read(max_bytes)
