"""An unpickler for data from strangers: plain containers and values, never a class.

Real flight-recorder dumps hold dicts, lists, tuples, strings and numbers only, so that refusing
every class and function loses nothing.
"""

from __future__ import annotations

import pickle
import threading
from typing import NoReturn

from whystuck.evidence.collector import collector_paused
from whystuck.parse.dumps.opcode_check import check_pickle
from whystuck.parse.dumps.proportion import check_proportion
from whystuck.parse.errors import ParseError

# A full ring of 20 000 entries with stacks is 35 MB; nothing real comes near this.
MAX_PICKLE_BYTES = 512 * 1024 * 1024
# Hashing a tuple takes some 200 bytes of stack for each level; a thread has 8 MiB, rarely less.
_SHALLOW = 5_000
_LARGE_STACK_BYTES = 1024 * 1024 * 1024
_MAX_NAME = 120


class _PlainUnpickler(pickle.Unpickler):
    """Loads values only."""

    def find_class(self, module_name: str, global_name: str, /) -> NoReturn:
        """Refuse: a pickle that names a class or a function wants to run code."""
        asked = f"{module_name}.{global_name}"
        raise ParseError(f"the pickle asks for {asked[:_MAX_NAME]}, which is refused")

    def persistent_load(self, pid: object) -> NoReturn:
        """Refuse references to things outside the pickle."""
        # Not its text: that of a container can be of any length.
        raise ParseError(f"the pickle refers to something outside itself ({type(pid).__name__})")


class _Memory:
    """Bytes as a file that the unpickler may look into ahead: it then reads all from memory.

    Whatever length a pickle claims for a text, no more is handed out than there is.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def peek(self, _size: int) -> bytes:
        """Return all that is left."""
        return self._data[self._position :]

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        start = self._position
        self._position = min(len(self._data), start + size)
        return self._data[start : self._position]

    def readline(self) -> bytes:
        """Return the rest of a line."""
        end = self._data.find(b"\n", self._position) + 1
        return self.read((end or len(self._data)) - self._position)


def load_plain_pickle(data: bytes) -> object:
    """Load a pickle of plain values.

    Args:
        data: The bytes of the pickle.

    Returns:
        The value in it.

    Raises:
        ParseError: The pickle is too large, damaged, names a class, or holds a dump that means
            far more than it holds.
    """
    if len(data) > MAX_PICKLE_BYTES:
        raise ParseError(f"the pickle has {len(data)} bytes, more than {MAX_PICKLE_BYTES}")
    tuples = check_pickle(data)
    with collector_paused():
        content = _load(data) if tuples <= _SHALLOW else _load_on_large_stack(data)
        check_proportion(content, len(data))
        return content


def _load(data: bytes) -> object:
    try:
        return _PlainUnpickler(_Memory(data)).load()
    except ParseError:
        raise
    except Exception as error:  # damaged input raises almost anything
        reason = str(error) or type(error).__name__
        raise ParseError(f"not a readable pickle ({reason[:120]})") from error


def _load_on_large_stack(data: bytes) -> object:
    """Load where tuples in tuples cannot overflow the stack when they are hashed."""
    results: list[object] = []
    errors: list[ParseError] = []

    def load() -> None:
        try:
            results.append(_load(data))
        except ParseError as error:
            errors.append(error)

    before = threading.stack_size(_LARGE_STACK_BYTES)
    try:
        thread = threading.Thread(target=load, name="whystuck-unpickle")
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
