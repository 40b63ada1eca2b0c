"""Whom a rank sends to or receives from: as the probe's thread knows it, else as py-spy sees it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from whystuck.collect.processes.stacks import StacksError, collect_stacks
from whystuck.collect.processes.target import Target
from whystuck.collect.recorder import RecorderError, ask_probe
from whystuck.evidence import records
from whystuck.evidence.call_records import Frame, PeersRecord, PeerWaitEntry

_C10D = "torch/distributed/distributed_c10d.py"
_CALLS = {"send": "dst", "isend": "dst", "recv": "src", "irecv": "src"}
_DEFAULT_GROUP = "0"
_MAX_FRAMES = 30
_MAX_SITE = 3
_UNKNOWN = -1

_Json = Mapping[str, Any]


def collect_peers(target: Target, folder: Path, *, probe_answers: bool) -> None:
    """Write ``peers.json`` of a rank; what cannot be known is left out.

    Args:
        target: The rank.
        folder: Where the file goes, and where its first stacks lie.
        probe_answers: Whether the probe's thread has just answered; it is not asked otherwise.
    """
    probe = target.artifact("probe")
    if probe is not None and probe_answers:
        try:
            ask_probe(probe, "peers", folder / records.PEERS_FILE)
        except RecorderError:
            pass  # its stacks tell some of it
        else:
            return
    try:
        # Arguments are read only where the stacks show a send or receive.
        if not find_waits((folder / "stacks-0.json").read_bytes()):
            return
        waits = find_waits(collect_stacks(target.pid, with_arguments=True))
    except (OSError, StacksError):
        return
    record = PeersRecord(pid=target.pid, source="py-spy", waits=waits)
    (folder / records.PEERS_FILE).write_bytes(msgspec.json.encode(record))


def find_waits(dump: bytes) -> list[PeerWaitEntry]:
    """Find the sends and receives that threads are in.

    Args:
        dump: py-spy's JSON. Of the values of variables in it, only ranks and tags are taken.

    Returns:
        A wait for each such thread; without the values in the dump, the peer is unknown.
    """
    try:
        threads = json.loads(dump)
        found = (_find_wait(thread) for thread in threads)
        return [wait for wait in found if wait is not None]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return []


def _find_wait(thread: _Json) -> PeerWaitEntry | None:
    frames: Sequence[_Json] = thread["frames"]
    if not frames or not frames[0]["filename"].endswith(_C10D):
        return None
    name = frames[0]["name"].rpartition(".")[2]
    side = _CALLS.get(name)
    if side is None:
        return None
    values = {one["name"]: one.get("repr") for one in frames[0].get("locals") or ()}
    peer, in_group = _read_int(values.get(side)), _read_int(values.get(f"group_{side}"))
    group = _DEFAULT_GROUP if _is_default(frames, values) else ""
    kind = "send" if side == "dst" else "recv"
    if kind == "recv" and values.get(side) == values.get(f"group_{side}") == "None":
        kind = "any"
    if peer == _UNKNOWN and group:
        peer = in_group
    place = tuple(Frame(one["name"], one["filename"], one["line"]) for one in frames)
    return PeerWaitEntry(
        kind=kind,
        peer=peer,
        group=group,
        tag=max(0, _read_int(values.get("tag"))),
        is_main=thread.get("os_thread_id") == thread.get("pid"),
        sure=peer != _UNKNOWN,
        frames=place[:_MAX_FRAMES],
        site=tuple(one for one in place if "/torch/" not in one.file)[:_MAX_SITE],
    )


def _is_default(frames: Sequence[_Json], values: Mapping[str, Any]) -> bool:
    """Tell whether the call names no group: ``send`` puts the default one in its place."""
    if values.get("group") == "None":
        return True
    outer = {one["name"]: one.get("repr") or "" for one in frames[1].get("locals") or ()}
    has_few = outer.get("args", ",,,").count(",") < 2  # noqa: PLR2004 - the group is the third
    return has_few and '"group"' not in outer.get("kwargs", '"group"')


def _read_int(text: object) -> int:
    is_number = isinstance(text, str) and text.isdecimal()
    return int(str(text)) if is_number else _UNKNOWN
