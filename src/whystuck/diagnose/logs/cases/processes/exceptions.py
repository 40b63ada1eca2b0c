"""C204 python-exception and C205 same-exception-everywhere: what user code raised."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import write_exception
from whystuck.diagnose.algorithms.failures.config_errors import find_shared_error
from whystuck.diagnose.algorithms.failures.raised import Alike, group_alike, is_own, select_own
from whystuck.diagnose.algorithms.stacks.frames import describe_place, make_places
from whystuck.diagnose.logs.cases.parts import find_time, is_said, list_first, list_victims
from whystuck.diagnose.logs.cases.processes.spared import find_spared
from whystuck.diagnose.logs.cases.resources.full_disks import (
    advise_space,
    describe_reason,
    find_reason,
    find_writer,
)
from whystuck.diagnose.logs.cases.resources.services import (
    REPEATED,
    advise_on_refusal,
    find_refusal,
)
from whystuck.diagnose.logs.story import OWN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence, Place
from whystuck.evidence.live import PythonException
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_MAX_MESSAGE = 160
_PLACES = 3
_SIGTERM, _SIGKILL = 15, 9
# It has a case of its own.
_ABORT = "mpi.abort"
# Torch's distributed checkpoints collect what all ranks raise.
_FAILED = re.compile(r"CheckpointException(?::)? ranks:dict_keys\(\[([\d, ]{1,4000})")
# A host has no more devices.
_MOST_DEVICES = 16
_NO_SPACE = "No space left on device"
# Raised by a rank that waited for its workers: torch.utils.data.DataLoader(timeout=...).
_LOADER_TIMEOUT = re.compile(r"DataLoader timed out after \d{1,9} seconds")
_LOADER_REMEDIES = (
    "pgrep -P PID_OF_RANK; py-spy dump --pid WORKER   # while it waits: what the worker does",
)


@dataclass(frozen=True)
class _Who:
    """Who raised an exception: ranks, or all of one host, or so many that none is special."""

    ranks: tuple[int, ...] = ()
    node: str = ""
    is_common: bool = False
    refusal: str = ""


def make_exceptions(view: LogView) -> Iterator[Case]:
    """Make a case of each exception that ended ranks for a reason of their own."""
    found = tuple(item for item in select_own(view.exceptions) if not _is_told_cascade(view, item))
    if any(item.rank >= 0 for item in found):
        # torch's own hook names the rank of what ends a process; the others are of no rank's end.
        found = tuple(item for item in found if item.rank >= 0)
    loose = _list_loose(view, found)
    found = _drop_collected(found)
    line_by_item = {id(item): event for item, event in loose}
    groups = group_alike((*found, *(item for item, _ in loose)))
    for group in list_first(groups, lambda group: find_time(group.items)):
        who = _find_who(view, group)
        lines = (line_by_item.get(id(item)) for item in group.items)
        yield _make_case(view, group, who, tuple(line for line in lines if line is not None))


def _is_told_cascade(view: LogView, item: PythonException) -> bool:
    event = view.find_event_of(item)
    return event is not None and event.role == "cascade"


def _list_loose(
    view: LogView, found: Sequence[PythonException]
) -> list[tuple[PythonException, LogEvent]]:
    """Return lines that only name an exception, without a traceback, of ranks that have none."""
    told = {(item.artifact, item.rank) for item in view.exceptions}
    raised = {item.rank for item in view.exceptions} - {-1}
    # The launcher's line does not tell whose it is, but the traceback that it ends may.
    ends = {(item.artifact, item.last_row) for item in view.exceptions}
    loose = []
    # What says that a file system is gone has a code of its own, and is raised all the same.
    events = (*view.list_events(codes.PYTHON_EXCEPTION, "cause"), *_list_stale(view))
    for event in events:
        is_known = (event.artifact, event.rank) in told or event.rank in raised
        is_known = is_known or (event.rank < 0 and bool(found))
        is_known = is_known or (event.artifact, event.row) in ends
        if is_known or event.signature == _ABORT or view.is_of_machine(event) or not is_said(event):
            continue
        kind, _, message = REPEATED.sub("", event.text.strip()).partition(": ")
        if not kind.replace(".", "").replace("_", "").isalnum():
            continue
        item = PythonException(
            event.rank,
            kind,
            message,
            (),
            source="log",
            artifact=event.artifact,
            row=event.row,
            node=event.node,
            pid=event.pid,
            attempt=event.attempt,
            time=event.time,
            last_row=event.row,
        )
        if is_own(item):
            loose.append((item, event))
    return loose


def _list_stale(view: LogView) -> Iterator[LogEvent]:
    for event in view.list_signatures("py.stale_fs"):
        if event.role == "cause" and event.text.strip().partition(":")[0].endswith("Error"):
            yield event


def _drop_collected(found: tuple[PythonException, ...]) -> tuple[PythonException, ...]:
    """Leave out what says that a checkpoint failed on ranks whose own exceptions are told."""
    collected = {id(item): list_collected([item]) for item in found}
    own = {item.rank for item in found if not collected[id(item)]}
    return tuple(item for item in found if own.isdisjoint(collected[id(item)]))


def list_collected(items: Iterable[PythonException]) -> tuple[int, ...]:
    """Return the ranks that torch's checkpoints say have failed, as one rank prints it for all."""
    told = (f"{one.type}: {one.message}" for item in items for one in (item, *item.origins))
    return read_collected(told)


def read_collected(texts: Iterable[str]) -> tuple[int, ...]:
    """Return the ranks that texts of torch's checkpoints name."""
    found = set[int]()
    for text in texts:
        if match := _FAILED.search(text):
            found |= {int(rank) for rank in re.findall(r"\d{1,7}", match[1])}
    return tuple(sorted(found))


def _find_who(view: LogView, group: Alike) -> _Who:
    """Tell whom an exception is about: the ranks that raised it, their host, or nobody."""
    printed = {(item.artifact, item.rank) for item in group.items}
    told = (item for item in view.exceptions if (item.artifact, item.rank) in printed)
    named = list_collected((*group.items, *told))
    ranks = named or group.ranks
    if refusal := find_refusal(f"{group.type}: {group.message}"):
        return _Who(ranks, is_common=True, refusal=refusal)
    if len(named) > 1 and set(named) >= view.ranks:
        return _Who(named, is_common=True)
    if not ranks:
        return _find_nameless(view, group)
    is_most = 2 * len(ranks) >= len(view.ranks)
    # Ranks of which nothing is known may have raised the same before they were ended.
    is_all = view.raised_ranks <= set(ranks)
    if len(ranks) > 1 and (view.is_everywhere(ranks) or is_most or is_all):
        node = _find_host(view, ranks)
        return _Who(ranks, node) if node else _Who(ranks, is_common=True)
    return _Who(ranks, _find_host(view, ranks))


def _find_host(view: LogView, ranks: Sequence[int]) -> str:
    """Return the host whose ranks, all of them and nobody else, raised an exception."""
    hosts = {view.node_by_rank.get(rank, "") for rank in ranks}
    if len(hosts) != 1 or "" in hosts or len(ranks) < 2:  # noqa: PLR2004
        return ""
    if len(view.hosts) < 2 and not _are_block(view, ranks):  # noqa: PLR2004
        return ""
    host = hosts.pop()
    return host if view.list_ranks_on(host) <= set(ranks) else ""


def _are_block(view: LogView, ranks: Sequence[int]) -> bool:
    """Tell whether ranks are of one host among several of which no other is named.

    Hosts have their ranks one after the other, and no more of them than devices.
    """
    others = view.told_ranks - set(ranks) - {-1}
    is_apart = all(not min(ranks) < rank < max(ranks) for rank in others)
    span = max((*ranks, *others)) - min((*ranks, *others))
    return bool(others) and is_apart and max(ranks) - min(ranks) < _MOST_DEVICES <= span


def _find_nameless(view: LogView, group: Alike) -> _Who:
    """Find whose a traceback without a rank is: before a group is made, torch adds no rank."""
    swept = {
        item.rank for item in view.exits if item.rank >= 0 and item.signal in {_SIGTERM, _SIGKILL}
    }
    left = sorted(view.ended_ranks - view.raised_ranks)
    if len(left) == 1 and group.nameless == 1 and swept | view.raised_ranks:
        return _Who((left[0],))
    spared = (
        find_spared(view) if group.nameless == 1 and not view.raised_ranks | set(left) else None
    )
    if spared is not None and spared.rank >= 0:
        return _Who((spared.rank,))
    if group.nameless == 1 and not left and (writer := find_writer(view, group.items[0])) >= 0:
        return _Who((writer,))
    return _Who(is_common=group.nameless > 1 or len(left) > 1)


def _make_case(view: LogView, group: Alike, who: _Who, lines: tuple[LogEvent, ...]) -> Case:
    item = group.items[0]
    shared = find_shared_error(write_exception(item)) if who.is_common else None
    where = _place(group, who)
    place = f" in {describe_place(where[0])}" if where else ""
    message = group.message[:_MAX_MESSAGE]
    text = f"{group.type}: {message}" if message else group.type
    if who.is_common:
        count = len(who.ranks) or group.nameless
        total = len(view.ranks)
        share = f"all {count}" if count >= total else f"{count} of {total}"
        summary = f"{share} ranks raised the same {text}{place}"
        if who.refusal:
            told = f"{count} ranks tell" if count > 1 else "one process tells"
            summary = (
                f"a service that all ranks use refuses what they ask, as {told}: {text}{place}"
            )
    elif who.node:
        summary = f"all ranks of {who.node}, and no others, raised {text}{place}"
    else:
        summary = f"{name_ranks(who.ranks) if who.ranks else 'a rank'} raised {text}{place}"
    if reason := find_reason(view, group.items):
        summary += f": {describe_reason(reason)[:_MAX_MESSAGE]}"
        lines = (*(lines or _find_lines(view, group)), reason)
    case = Case(
        code=codes.SAME_EXCEPTION_EVERYWHERE if who.is_common else codes.PYTHON_EXCEPTION,
        summary=summary,
        tier=OWN,
        ranks=() if who.is_common else who.ranks,
        nodes=(who.node,) if who.node and not who.is_common else (),
        victims=() if who.is_common else list_victims(view, who.ranks),
        lines=lines or _find_lines(view, group),
        exceptions=group.items,
        where=where,
        time=find_time(group.items),
        confidence=_weigh(view, group, who),
        details=_detail(group, who),
        remedies=(*advise_space(reason), *_advise(group, who)),
        scope=frozenset(who.ranks),
    )
    if shared is not None:
        summary = f"{shared.sentence}: {share} ranks raised {group.type}{place}"
        details = {**case.details, "kind": shared.kind.name, "words": shared.words}
        remedies = shared.remedies
        return replace(
            case, code=codes.CONFIG_ERROR, summary=summary, details=details, remedies=remedies
        )
    return _blame_workers(case) if _LOADER_TIMEOUT.match(group.message) else case


def _blame_workers(case: Case) -> Case:
    """Tell of a data loader that timed out: the rank waited, and the cause is in its worker."""
    summary = f"no worker of its data loader delivered a batch, and {case.summary}"
    return replace(case, code=codes.INPUT_WORKER_STUCK, summary=summary, remedies=_LOADER_REMEDIES)


def _place(group: Alike, who: _Who) -> tuple[Place, ...]:
    """Return the user's lines: of one rank with its callers, of several the innermost of each."""
    shown = [item for item in group.items if item.frames]
    if who.is_common or len(who.ranks) <= 1:
        shown = shown[:1]
    limit = _PLACES if len(shown) == 1 else 1
    places: list[Place] = []
    for item in shown:
        rank = who.ranks[0] if item.rank < 0 and who.ranks else item.rank
        places += make_places(rank, item.frames, limit)
    return tuple(places)


def _find_lines(view: LogView, group: Alike) -> tuple[LogEvent, ...]:
    events = (view.find_event_of(item) for item in group.items)
    return tuple(event for event in events if event is not None)


def _weigh(view: LogView, group: Alike, who: _Who) -> Confidence:
    """Tell how sure it is that this ended the ranks: that it was raised is in the log."""
    if any(item.source not in {"log", "launcher log"} for item in group.items):
        return Confidence.CERTAIN
    has_ended = bool(who.ranks) and view.ended_ranks >= set(who.ranks)
    if has_ended and any(item.frames for item in group.items):
        return Confidence.CERTAIN
    return Confidence.LIKELY


def _detail(group: Alike, who: _Who) -> dict[str, object]:
    told: dict[str, object] = {"exception": group.items[0].type, "message": group.message}
    return told | ({"ranks": list(who.ranks)} if who.is_common else {})


def _advise(group: Alike, who: _Who) -> tuple[str, ...]:
    if who.refusal:
        return advise_on_refusal(who.refusal)
    if _NO_SPACE in group.message:
        return ("df -h; df -i   # on the host that says so: space and inodes of each mount",)
    if who.node:
        return (f"compare {who.node} with the other hosts: files, mounts, versions, environment",)
    return ()
