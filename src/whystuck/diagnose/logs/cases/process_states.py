"""H113 and H116 by a list of processes: who is stopped, or in a call on a file, beside others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.logs.story import BUSY, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

# What a rank or a worker of its loader is called.
_RANK_COMMAND = re.compile(r"python|^pt_|torchrun|ray::|deepspeed")
# Where the kernel waits for a file system, by the beginning of the name of the call.
_FILE_WAITS = re.compile(
    r"^_*(?:rpc_wait|nfs|lustre|ll_|cl_|osc_|lov_|fuse_|ceph_|gpfs|cxi|io_schedule|wait_on_page"
    r"|folio_wait|xfs_|ext4_|blk_|wait_on_bit|request_wait|jbd2|submit_bio)"
)
_MAX_LINES = 6


def make_process_states(view: LogView) -> Iterator[Case]:
    """Make the case of a few processes that are stopped, or kept by a file system."""
    rows = [
        event
        for event in view.list_signatures("table.process")
        if _RANK_COMMAND.search(event.groups.get("command") or "")
    ]
    stopped = [row for row in rows if row.groups["state"][0] in "Tt"]
    kept = [
        row
        for row in rows
        if row.groups["state"][0] == "D" and _FILE_WAITS.match(row.groups.get("wait") or "")
    ]
    if _are_few(view, stopped, rows):
        yield _make_case(view, codes.PROCESS_STOPPED, stopped, "is stopped and does not run at all")
    elif _are_few(view, kept, rows):
        yield _make_case(
            view,
            codes.STORAGE_STALLED,
            kept,
            f"is kept in a call on a file ({kept[0].groups['wait']}): its file system does not "
            "answer",
        )


def _are_few(view: LogView, odd: Sequence[LogEvent], rows: Sequence[LogEvent]) -> bool:
    """Tell whether few of the listed processes are so, or all those of a few of many ranks."""
    if 2 * len(odd) < len(rows):
        return bool(odd)
    owners = {_find_rank(view, row) for row in odd}
    return None not in owners and 0 < 2 * len(owners) < len(view.ranks)


def _find_rank(view: LogView, row: LogEvent) -> int | None:
    """Return the rank that a process is, or else is a child of."""
    rank = view.find_rank_of_pid(int(row.groups["pid"]), row.node)
    parent = int(row.groups.get("parent") or 0)
    return view.find_rank_of_pid(parent, row.node) if rank is None and parent > 1 else rank


def _make_case(view: LogView, code: str, rows: Sequence[LogEvent], what: str) -> Case:
    pids = sorted({int(row.groups["pid"]) for row in rows})
    found = {_find_rank(view, row) for row in rows}
    ranks = tuple(sorted(rank for rank in found if rank is not None))
    own = {view.find_rank_of_pid(pid) for pid in pids} - {None}
    who = f"process {', '.join(map(str, pids))}"
    if ranks:
        who = name_ranks(ranks) if own else f"a child of {name_ranks(ranks)}"
    state = rows[0].groups["state"]
    details = {"state": state[0]}
    if code == codes.STORAGE_STALLED:
        details |= {"mount": "", "fs_type": "", "path": ""}
    return Case(
        code=code,
        summary=f"{who} {what} (state {state})",
        tier=BUSY,
        ranks=ranks,
        nodes=tuple(sorted({row.node for row in rows} - {""})),
        lines=tuple(rows[:_MAX_LINES]),
        confidence=Confidence.LIKELY,
        details=details,
    )
