"""Tables of known log lines, and of the errors of NVIDIA's driver: data in the package."""

from __future__ import annotations

from importlib.resources import files

SIGNATURES = "signatures.csv"
XIDS = "xid_catalog.csv"


def read_table(name: str) -> bytes:
    """Return the bytes of one of the tables.

    Args:
        name: ``SIGNATURES`` or ``XIDS``.

    Raises:
        FileNotFoundError: There is no table of that name.
    """
    return (files(__name__) / name).read_bytes()
