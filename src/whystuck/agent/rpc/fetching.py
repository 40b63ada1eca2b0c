"""Brings traces that agents of other nodes have written into a folder of this one."""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from whystuck.agent.rpc.client import CallError
from whystuck.agent.rpc.nodes import NodeRun, NodeTransport
from whystuck.evidence.agent import TraceProgress, TraceState
from whystuck.evidence.errors import WhystuckError
from whystuck.guarded.folders import file_put, folder_at

PIECE_BYTES = 4 << 20
MAX_TRACE_BYTES = 64 << 30
_PIECE_TIMEOUT_S = 60.0
_DISCARD_TIMEOUT_S = 3.0
_SIDE_BY_SIDE = 8
_MAX_NAME = 200
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


async def fetch_all(
    runs: Sequence[NodeRun], folder: Path, transport: NodeTransport
) -> dict[tuple[str, int], Path | str]:
    """Fetch what was written at nodes that are not this one.

    Args:
        runs: The nodes, with their traces.
        folder: Where files go.
        transport: How to call nodes.

    Returns:
        By the name of the node and the pid: the path, or the reason why there is none.
    """
    wanted = [
        (run, trace)
        for run in runs
        if not run.node.is_local
        for trace in run.traces
        if trace.state == TraceState.WRITTEN and trace.file.startswith("/")
    ]
    if wanted:
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
    # A link of the user's own is followed here, and none later.
    paths = _choose_paths(wanted, await asyncio.to_thread(folder.resolve))
    gate = asyncio.Semaphore(_SIDE_BY_SIDE)

    async def fetch(run: NodeRun, trace: TraceProgress, path: Path) -> Path | str:
        async with gate:
            try:
                await _fetch(run, trace, path, transport)
            except WhystuckError as error:
                return error.message
            except OSError as error:
                return f"{path} cannot be written: {error.strerror or error}"
            return path

    pairs = zip(wanted, paths, strict=True)
    results = await asyncio.gather(*(fetch(*pair, path) for pair, path in pairs))
    keys = [(run.node.name, trace.pid) for run, trace in wanted]
    return dict(zip(keys, results, strict=True))


def _choose_paths(wanted: Sequence[tuple[NodeRun, TraceProgress]], folder: Path) -> list[Path]:
    """Return a name for each file that is safe here, and no other's."""
    taken: set[str] = set()
    paths = []
    for run, trace in wanted:
        plain = _UNSAFE.sub("_", PurePosixPath(trace.file).name)[-_MAX_NAME:].lstrip(".")
        name = plain or f"{trace.pid}.json"
        if name in taken or (folder / name).exists():
            name = f"{_UNSAFE.sub('_', run.node.name)[:64].lstrip('.')}-{trace.pid}-{name}"
        taken.add(name)
        paths.append(folder / name)
    return paths


async def _fetch(run: NodeRun, trace: TraceProgress, path: Path, transport: NodeTransport) -> None:
    # A piece is written in a moment; the disk is that of the command, not of a daemon.
    with folder_at(path.parent) as folder, file_put(folder, path.name) as file:
        offset = 0
        while True:
            data, total_bytes = await _fetch_piece(run, trace, offset, transport)
            file.write(data)
            offset += len(data)
            if offset >= total_bytes or not data:
                break
        if offset != total_bytes:
            raise CallError("the file was changed meanwhile", kind="garbled")
    with suppress(WhystuckError):
        # It is here now; where it cannot be removed there, that is no loss.
        wanted = {"id": trace.request_id, "pid": trace.pid}
        await transport.call(run.node, "whystuck.trace.discard", wanted, _DISCARD_TIMEOUT_S)


async def _fetch_piece(
    run: NodeRun, trace: TraceProgress, offset: int, transport: NodeTransport
) -> tuple[bytes, int]:
    fields: dict[str, Any] = {
        "id": trace.request_id,
        "pid": trace.pid,
        "offset": offset,
        "size_bytes": PIECE_BYTES,
    }
    reply = await transport.call(run.node, "whystuck.trace.fetch", fields, _PIECE_TIMEOUT_S)
    total_bytes, text = reply.get("total_bytes"), reply.get("data")
    if not isinstance(total_bytes, int) or not isinstance(text, str):
        raise CallError("the answer is not understood", kind="garbled")
    if not 0 <= total_bytes <= MAX_TRACE_BYTES:
        raise CallError(f"a trace of {total_bytes} bytes is too large", kind="garbled")
    try:
        return base64.b64decode(text, validate=True), total_bytes
    except (binascii.Error, ValueError) as error:
        raise CallError("the answer is not understood", kind="garbled") from error
