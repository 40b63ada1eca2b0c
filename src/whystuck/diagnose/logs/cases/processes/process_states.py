"""H113, H116 and H123 by what machines show of processes: who is stopped, or kept in the kernel."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.resources.storage import make_silent_storage
from whystuck.diagnose.logs.owners import is_address
from whystuck.diagnose.logs.story import BUSY, Case
from whystuck.diagnose.logs.view import LogView, is_same_host
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.nodes.ras import list_whole_members
from whystuck.evidence.ranks import name_ranks

# A row of a list, and what was looked up of one process.
_ROW, _LOOK = "table.process", "table.wait"
# What a rank or a worker of its loader is called.
_RANK_COMMAND = re.compile(r"python|^pt_|torchrun|ray::|deepspeed")
# Where the kernel waits for a file server, and for any file system, by how names of calls begin.
_SERVERS = (
    r"rpc_wait|nfs|lustre|ll_|cl_|osc_|lov_|ptlrpc|fuse_|ceph_|gpfs|cxi|request_wait|cifs|smb"
)
_SERVER_WAITS = re.compile(rf"^_*(?:{_SERVERS})")
_FILE_WAITS = re.compile(
    rf"^_*(?:{_SERVERS}|io_schedule|wait_on_page|folio_wait|xfs_|ext4_|blk_|wait_on_bit|jbd2"
    r"|submit_bio)"
)
# So many of the innermost calls tell what a process waits for.
_INNER = 8
_DRIVERS = {"nvidia", "nvidia_uvm", "amdgpu", "amdkfd", "habanalabs", "i915", "xe"}
_STOPPED = {"T", "t"}
_MAX_LINES = 6


def make_process_states(view: LogView) -> Iterator[Case]:
    """Make the case of a few processes that are stopped, or kept by a file system or a driver.

    Where a kernel says which file server does not answer, that is told instead.
    """
    rows = [event for event in view.list_signatures(_ROW, _LOOK) if _is_of_rank(event)]
    stopped = [row for row in rows if row.groups["state"][:1] in _STOPPED]
    kept = [row for row in rows if _find_file_wait(row)]
    driven = [row for row in rows if _find_driver(row)]
    if _is_odd(view, stopped, rows):
        yield _make_case(view, codes.PROCESS_STOPPED, stopped, _describe_stop(stopped))
    elif _is_odd(view, kept, rows) and not any(make_silent_storage(view)):
        yield _make_case(
            view,
            codes.STORAGE_STALLED,
            kept,
            f"is kept in a call on a file ({_find_file_wait(kept[0])}): its file system does not "
            "answer",
        )
    elif _are_all_kept(kept, rows) and not any(make_silent_storage(view)):
        yield _make_of_all(kept)
    elif _is_odd(view, driven, rows):
        yield _make_case(
            view,
            codes.DEVICE_STALLED,
            driven,
            f"is kept in a call of the {_find_driver(driven[0])} driver, which does not come back",
        )


def _describe_stop(rows: Sequence[LogEvent]) -> str:
    """Say that processes are stopped, and which process traces them, where that is told."""
    tracers = {row.groups.get("tracer") or "" for row in rows}
    if tracers == {""}:
        return "is stopped and does not run at all"
    names = ", ".join(sorted(tracers - {""})[:3])
    return f"is stopped by process {names}, which traces it, and does not run at all"


def _is_of_rank(row: LogEvent) -> bool:
    command = row.groups.get("command") or ""
    if row.signature == _LOOK and not command:
        return bool(row.groups["state"] or row.groups["frames"])
    return _RANK_COMMAND.search(command) is not None


def _is_odd(view: LogView, found: Sequence[LogEvent], rows: Sequence[LogEvent]) -> bool:
    """Tell whether few of all are so, or all those of a few of many ranks.

    What somebody looked up is what does not move; nor does a process that gives NCCL RAS no answer.
    """
    looked = {row.groups["pid"] for row in rows if row.signature == _LOOK}
    looked |= {row.groups["pid"] for row in rows if _is_silent(view, row)}
    is_looked = all(row.signature == _LOOK or row.groups["pid"] in looked for row in found)
    if is_looked or 2 * len(found) < len(rows):
        return bool(found)
    owners = {_find_rank(view, row) for row in found}
    return None not in owners and 0 < 2 * len(owners) < len(view.ranks)


def _is_silent(view: LogView, row: LogEvent) -> bool:
    """Tell whether NCCL RAS has no answer of a process on that host."""
    silent = (one for answer in view.evidence.ras for one in answer.processes)
    return any(
        str(one.pid) == row.groups["pid"] and not _is_elsewhere(row, one.host) for one in silent
    )


def _is_elsewhere(row: LogEvent, host: str) -> bool:
    """Tell whether a process is on another host: names say nothing of an address."""
    if not row.node or not host or is_address(row.node) != is_address(host):
        return False
    return not is_same_host(row.node, host)


def _are_all_kept(kept: Sequence[LogEvent], rows: Sequence[LogEvent]) -> bool:
    """Tell whether all processes of a list wait for a file server: a moment's look may see that."""
    is_listed = len(kept) > 1 and all(row.signature == _ROW for row in kept)
    servers = [row for row in kept if _SERVER_WAITS.match(_find_file_wait(row))]
    return is_listed and len(servers) == len(kept) == len(rows)


def _make_of_all(kept: Sequence[LogEvent]) -> Case:
    """Make the case of ranks that all wait for one file server: nobody of them is at fault."""
    waits = sorted({_find_file_wait(row) for row in kept})
    return Case(
        code=codes.STORAGE_STALLED,
        summary=f"all {len(kept)} processes that are listed are kept in calls on files "
        f"({', '.join(waits[:3])}): their file server does not answer, or is slow for all",
        tier=BUSY,
        lines=tuple(kept[:_MAX_LINES]),
        confidence=Confidence.POSSIBLE,
        details=_describe(codes.STORAGE_STALLED, kept[0]),
    )


def _find_file_wait(row: LogEvent) -> str:
    """Return the call in which a process waits for a file system, empty where it does not."""
    state = row.groups["state"][:1]
    if row.signature == _ROW:
        wait = row.groups.get("wait") or ""
        return wait if state == "D" and _FILE_WAITS.match(wait) else ""
    if state not in {"", "D"}:
        return ""
    frames = row.groups["frames"].split()[:_INNER]
    # What a driver of a device waits for is no file.
    if _find_driver(row):
        return ""
    return next((name for name in frames if _FILE_WAITS.match(name)), "")


def _find_driver(row: LogEvent) -> str:
    """Return the driver of devices in whose call a process is, empty where it is in none."""
    if row.signature != _LOOK or row.groups["state"][:1] not in {"", "D"}:
        return ""
    return next((name for name in row.groups["modules"].split() if name in _DRIVERS), "")


def _make_case(view: LogView, code: str, rows: Sequence[LogEvent], what: str) -> Case:
    pids = sorted({int(row.groups["pid"]) for row in rows} - {0})
    found = {_find_rank(view, row) for row in rows}
    ranks = tuple(sorted(rank for rank in found if rank is not None))
    # Where all are so, it is not theirs.
    is_everywhere = len(ranks) > 1 and 2 * len(ranks) > len(view.ranks)
    who = f"process {', '.join(map(str, pids))}" if pids else "a process"
    if ranks:
        is_child = all(row.rank < 0 and _find_own_rank(view, row) is None for row in rows)
        who = f"a child of {name_ranks(ranks)}" if is_child else name_ranks(ranks)
    state = rows[0].groups["state"]
    return Case(
        code=code,
        summary=f"{who} {what}" + (f" (state {state})" if state else ""),
        tier=BUSY,
        ranks=() if is_everywhere else ranks,
        nodes=tuple(sorted({row.node for row in rows} - {""})),
        lines=tuple(rows[:_MAX_LINES]),
        confidence=Confidence.LIKELY if _is_sure(rows[0]) else Confidence.POSSIBLE,
        details=_describe(code, rows[0]),
    )


def _find_rank(view: LogView, row: LogEvent) -> int | None:
    """Return the rank that a process is, or else is a child of."""
    if row.rank >= 0:
        return row.rank
    own = _find_own_rank(view, row)
    parent = int(row.groups.get("parent") or 0)
    return view.find_rank_of_pid(parent, row.node) if own is None and parent > 1 else own


def _find_own_rank(view: LogView, row: LogEvent) -> int | None:
    pid = int(row.groups["pid"])
    told = [one.host for one in list_whole_members(view.evidence.ras) if one.pid == pid]
    if told and all(_is_elsewhere(row, host) for host in told):
        return None  # hosts number their processes alike
    return view.find_rank_of_pid(pid, row.node) if pid else None


def _is_sure(row: LogEvent) -> bool:
    """Tell whether a process surely waits: by its state, or for a server, which takes a while."""
    return bool(row.groups["state"]) or _SERVER_WAITS.match(_find_file_wait(row)) is not None


def _describe(code: str, row: LogEvent) -> dict[str, Any]:
    details: dict[str, Any] = {"state": row.groups["state"][:1]}
    if code == codes.STORAGE_STALLED:
        details |= {"mount": "", "fs_type": "", "path": ""}
    elif code == codes.DEVICE_STALLED:
        details |= {"group": "", "sequence": None, "op": "", "driver": _find_driver(row)}
    return details
