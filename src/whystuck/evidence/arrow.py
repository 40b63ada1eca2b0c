"""pyarrow, which is installed with ``whystuck[parquet]`` only, and imported when it is needed."""

from __future__ import annotations

from typing import Any

from whystuck.evidence.errors import UsageError


def import_arrow(what: str, instead: str) -> tuple[Any, Any]:
    """Return pyarrow and its module for Parquet files.

    Args:
        what: What needs them.
        instead: What can be done where they cannot be had.

    Raises:
        UsageError: They are not there.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as problem:
        raise UsageError(
            f"{what} pyarrow, which is not installed",
            hint=f"`pip install 'whystuck[parquet]'`, or {instead}",
        ) from problem
    return pa, parquet
