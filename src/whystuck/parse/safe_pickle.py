"""An unpickler for data from strangers: plain containers and values, never a class.

Real flight-recorder dumps hold dicts, lists, tuples, strings and numbers only, so that refusing
every class and function loses nothing.
"""

from __future__ import annotations

import gc
import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from whystuck.parse.errors import ParseError

# A full ring of 20 000 entries with stacks is 35 MB; nothing real comes near this.
MAX_PICKLE_BYTES = 512 * 1024 * 1024
_READ_AHEAD_BYTES = 1024 * 1024


class _PlainUnpickler(pickle.Unpickler):
    """Loads values only."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        """Refuse: a pickle that names a class or a function wants to run code."""
        raise ParseError(f"the pickle asks for {module_name}.{global_name}, which is refused")

    def persistent_load(self, pid: object) -> NoReturn:
        """Refuse references to things outside the pickle."""
        raise ParseError(f"the pickle refers to something outside itself ({pid!r:.40})")


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the cycle collector: it would look at the many new containers again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _peekable(data: bytes) -> io.BufferedReader:
    """Wrap bytes in a file that can be looked into ahead: without, each opcode costs a call."""
    return io.BufferedReader(io.BytesIO(data), _READ_AHEAD_BYTES)


def load_plain_pickle(data: bytes) -> object:
    """Load a pickle of plain values.

    Args:
        data: The bytes of the pickle.

    Returns:
        The value in it.

    Raises:
        ParseError: The pickle is too large, damaged, or names a class.
    """
    if len(data) > MAX_PICKLE_BYTES:
        raise ParseError(f"the pickle has {len(data)} bytes, more than {MAX_PICKLE_BYTES}")
    try:
        with collector_paused():
            return _PlainUnpickler(_peekable(data)).load()
    except ParseError:
        raise
    except Exception as error:  # damaged input raises almost anything
        reason = str(error) or type(error).__name__
        raise ParseError(f"not a readable pickle ({reason[:120]})") from error
