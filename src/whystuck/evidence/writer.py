"""Where evidence can be written to besides a folder of this machine: the interface.

A store of your own is an object with ``write``, and with ``list_files`` and ``read`` where
``whystuck diagnose URL`` shall read it back. A function that makes one from a URL is registered for
a scheme: by the entry point group ``whystuck.writers``, or with
``whystuck.collect.stores.register_writer``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable


@runtime_checkable
class EvidenceWriter(Protocol):
    """Takes the files of an evidence folder, in any order and from one thread at a time."""

    def write(self, relative_path: str, data: bytes) -> None:
        """Write one file, over an older one of the same name.

        Args:
            relative_path: The path inside the evidence folder, with ``/`` between its parts.
            data: The whole content.

        Raises:
            Exception: Any; the evidence then stays in the local folder, and the job goes on.
        """


@runtime_checkable
class EvidenceReader(Protocol):
    """Gives back what a writer has taken."""

    def list_files(self) -> Iterable[tuple[str, int]]:
        """Return the relative path and the size in bytes of every file."""

    def read(self, relative_path: str) -> bytes:
        """Return the content of one file."""


OpenStore = Callable[[str], EvidenceWriter]
