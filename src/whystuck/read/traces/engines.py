"""Chooses where files are mapped."""

from __future__ import annotations

import re

from whystuck.evidence.errors import UsageError
from whystuck.read.traces.cluster import DaskEngine
from whystuck.read.traces.local import LocalEngine
from whystuck.read.traces.memory import parse_size

_CLUSTER = re.compile(r"dask(?:\+(tls))?://(\[[0-9A-Fa-f:.]+\]|[^\s/:@\[\]]+):(\d+)/?")


def choose_engine(
    name: str = "local", memory: str = "", workers: int = 0
) -> LocalEngine | DaskEngine:
    """Make the engine that a user names.

    Args:
        name: ``local``, or ``dask://HOST:PORT`` (with TLS ``dask+tls://HOST:PORT``).
        memory: What the local workers together may take, such as ``8G``; a share of what is free
            when empty.
        workers: How many local workers; as many as there are cores when 0.

    Returns:
        The engine.

    Raises:
        UsageError: There is no such engine, or it has no such limits.
    """
    if name == "local":
        return LocalEngine(workers, parse_size(memory) if memory else 0)
    match = _CLUSTER.fullmatch(name)
    if match is None:
        raise UsageError(
            f"there is no engine `{name}`",
            hint="`--engine local`, or the scheduler of a cluster: `--engine dask://HOST:PORT`",
        )
    if memory or workers:
        raise UsageError(
            "`--memory` and `--workers` are of the local engine",
            hint="`dask worker` has options for its threads and its memory",
        )
    return DaskEngine(f"{match[1] or 'tcp'}://{match[2]}:{match[3]}")
