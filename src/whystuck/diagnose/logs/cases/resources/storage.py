"""H116 as kernels tell it: a file system does not answer, and ranks wait for who waits for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_timeout
from whystuck.diagnose.logs.cases.parts import find_time, is_said, list_ranks
from whystuck.diagnose.logs.story import ALOOF, BUSY, LINKED, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_SILENT = ("nfs.not_responding", "lustre.evicted", "fs.silent")
_TASK = re.compile(r"^(.+):(\d{1,9})$")
# What a rank or a worker of its loader is called.
_RANK_TASK = re.compile(r"python|^pt_|ray::|^torch")
_SERVER_WAIT = re.compile(r"^_*(?:rpc_|nfs|lustre|ll_|cl_|osc_|ptlrpc|fuse_|ceph_|gpfs|cifs|smb)")
# A row of a list, and what was looked up of one process.
_SHOWN = ("table.process", "table.wait")
# So many of the innermost calls tell what a process waits for.
_INNER = 8
_MAX_LINES = 6
_SEVERAL = 2
_NS_PER_MS = 1_000_000
_SOON_NS = 900_000_000_000


def make_silent_storage(view: LogView) -> Iterator[Case]:
    """Make the case of a file system that does not answer, beside ranks that waited in vain."""
    waits = [
        event for event in view.list_events(codes.COLLECTIVE_TIMEOUT, "cause") if is_said(event)
    ]
    raised = tuple(item for item in view.exceptions if is_timeout(item))
    silent = [
        one for one in view.list_signatures(*_SILENT) if is_said(one) and not _is_over(view, one)
    ]
    hung = [one for one in view.list_signatures("cpu.hung_task") if is_said(one) and _is_rank(one)]
    hung += [one for one in view.list_signatures(*_SHOWN) if _is_kept(one)]
    events = [*silent, *hung]
    is_waited = bool(waits or raised)
    # The log of a machine tells whose call does not come back, where its file system is the one
    # that does not answer; elsewhere, any program may hang.
    is_kept = bool({one.node for one in silent} & {one.node for one in hung} - {""})
    is_kept |= _are_of_one_paste(silent, hung)
    if not silent or not (is_waited or is_kept or (hung and not view.has_job_logs)):
        return
    waiting = sorted({*list_ranks(waits), *(item.rank for item in raised)} - {-1})
    blocked = {rank for one in hung if (rank := _find_rank(view, one)) is not None}
    blocked |= _list_whole_hosts(view, hung)
    ranks = tuple(sorted(blocked - set(waiting)))
    nodes = tuple(sorted({one.node for one in events} - {""}))
    server = next((name for one in silent if (name := one.groups.get("srv") or "")), "")
    near = [_is_near(view, one, waits) for one in events]
    yield Case(
        code=codes.STORAGE_STALLED,
        summary=_describe(server, nodes, ranks, waiting if is_waited else None),
        tier=BUSY,
        ranks=ranks,
        # What is silent to several hosts is broken itself, and none of them is.
        nodes=nodes if len({one.node for one in silent} - {""}) < _SEVERAL else (),
        victims=tuple(waiting),
        lines=(*events, *waits)[:_MAX_LINES],
        exceptions=raised,
        time=find_time(waits, raised),
        confidence=Confidence.LIKELY
        if is_kept or (is_waited and (hung or any(near)))
        else Confidence.POSSIBLE,
        details={
            "mount": "",
            "fs_type": "nfs" * all(one.signature == _SILENT[0] for one in silent),
            "path": "",
            "state": "D",
        },
        support=ALOOF if all(one is False for one in near) else LINKED,
        is_foreign=True,
    )


def _describe(
    server: str, nodes: Sequence[str], ranks: Sequence[int], waiting: Sequence[int] | None
) -> str:
    """Write who did not answer to whom; ``waiting`` is None where nobody met a time limit."""
    what = f"the file server {server}" if server else "a file system"
    on = f" to {' and '.join(nodes)}" if nodes else ""
    are = "is" if len(ranks) == 1 else "are"
    kept = f", where {name_ranks(ranks)} {are} kept in a call on a file" if ranks else ""
    who = name_ranks(waiting) if waiting else "others"
    waited = "" if waiting is None else f"; {who} waited until a time limit"
    return f"{what} did not answer{on}{kept}{waited}"


def _is_near(view: LogView, event: LogEvent, waits: list[LogEvent]) -> bool | None:
    """Tell whether ranks waited when a kernel wrote a line, or soon after; None where unknown."""
    known = list[bool]()
    for wait in waits:
        if event.time is None or wait.time is None:
            continue
        gap = view.clocks.bound_gap(event.time, wait.time)
        if gap is not None:
            waited = wait.groups.get("ms") or ""
            most_ns = (int(waited[:12]) if waited.isdecimal() else 0) * _NS_PER_MS + _SOON_NS
            known.append(gap[1] >= 0 and gap[0] <= most_ns)
    return any(known) if known else None


def _is_over(view: LogView, silent: LogEvent) -> bool:
    """Tell whether the server answered again: for a moment, servers often do not."""
    server = silent.groups.get("srv") or ""
    return any(
        one.artifact == silent.artifact
        and one.row > silent.row
        and (one.groups.get("srv") or "") == server
        for one in view.list_signatures("nfs.answers")
    )


def _is_kept(row: LogEvent) -> bool:
    """Tell whether a process of the job waits in the kernel for a file server, as tools show it."""
    if row.signature not in _SHOWN or not (_is_ours(row) and _is_asleep(row)):
        return False
    if row.signature == "table.process":
        return _SERVER_WAIT.match(row.groups["wait"] or "") is not None
    return any(map(_SERVER_WAIT.match, row.groups["frames"].split()[:_INNER]))


def _is_ours(row: LogEvent) -> bool:
    """Tell whether a row is of a rank or its worker; somebody looked one up to whom it mattered."""
    command = row.groups.get("command") or ""
    return _RANK_TASK.search(command) is not None or (row.signature == _SHOWN[1] and not command)


def _is_asleep(row: LogEvent) -> bool:
    """Tell whether a process sleeps in the kernel, as far as its state is shown."""
    return row.groups["state"][:1] in ({"D"} if row.signature == _SHOWN[0] else {"", "D"})


def _are_of_one_paste(silent: list[LogEvent], hung: list[LogEvent]) -> bool:
    """Tell whether a text of no host's name shows a silent server, and who waits for a server."""
    nowhere = {one.artifact for one in silent if not one.node}
    is_named = any(one.node for one in (*silent, *hung))
    return not is_named and any(_is_kept(one) and one.artifact in nowhere for one in hung)


def _list_whole_hosts(view: LogView, hung: list[LogEvent]) -> frozenset[int]:
    """Return the ranks of hosts on which as many processes are kept as there are ranks."""
    pids: dict[str, set[str]] = {one.node: set() for one in hung if one.node}
    for one in view.list_signatures("table.process"):
        # A list may lack what each waits for.
        is_one = _is_kept(one) or (_is_ours(one) and _is_asleep(one) and not one.groups["wait"])
        if one.node in pids and is_one:
            pids[one.node].add(one.groups["pid"])
    here = {node: view.list_ranks_on(node) for node in pids}
    same = [here[node] for node, found in pids.items() if len(found) == len(here[node])]
    return frozenset[int]().union(*same)


def _is_rank(event: LogEvent) -> bool:
    task = _TASK.match(event.groups.get("task") or "")
    return task is not None and bool(_RANK_TASK.search(task[1]))


def _find_rank(view: LogView, event: LogEvent) -> int | None:
    task = _TASK.match(event.groups.get("task") or f"ps:{event.groups.get('pid') or ''}")
    rank = view.find_rank_of_pid(int(task[2]), event.node) if task else None
    here = view.list_ranks_on(event.node)
    # A host with one rank has no other process of such a name that counts.
    return next(iter(here)) if task and rank is None and len(here) == 1 else rank
