"""C211 collective-timeout and C209 peer-lost: what ranks say that wait or were cut off."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_cascade, is_timeout, name_known
from whystuck.diagnose.logs.cases.next_step import (
    choose_command,
    choose_host_command,
    dump_native,
)
from whystuck.diagnose.logs.cases.parts import (
    find_exceptions,
    find_time,
    is_said,
    list_ranks,
    place_exceptions,
)
from whystuck.diagnose.logs.story import LOST, WAIT, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.live import PythonException
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_GROUP = re.compile(r"PG (?:ID )?(\d+)(?: PG GUID (\S+?))?(?:\((\w+)\))? Rank")
# How a process ends when it gives up for any reason; they name no peer.
_ENDS = {"elastic.abort", "c10d.teardown"}
# What the program that leads a job on Ray raises for the loss of a worker.
_RAY_DIED = "ray.actor_died"
_RAY_TYPES = re.compile(r"(?:Actor(?:Died|Unavailable)|RayActor|WorkerCrashed|NodeDied)Error\)?$")
_MAX_LINES, _MAX_CALLS = 6, 4
_NCCL_CLOSED = "nccl.socket_closed"
_PEER = re.compile(r"\[?([\w.:-]{1,253}?)\]?<\d{1,5}>")
# What NCCL says of any call that failed, and what it says of connections.
_SYSTEM = re.compile(
    r"unhandled system error|ncclSystemError: System call|^Last error:\s*$", re.IGNORECASE
)
_PEER_WORDS = re.compile(
    r"\b(?:closed|reset|refused|remote|peers?|broken pipe|timed out|no route|unreachable|socket"
    r"(?!, malloc))\b|(?-i:ocket[A-Z])",
    re.IGNORECASE,
)
_STORE = re.compile(
    r"SocketImpl\(fd=\d{1,9}, addr=\[([\w.:-]{1,253})\]:\d{1,5}, remote=\[([\w.:-]{1,253})\]:\d"
)


def make_timeouts(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that waited until a limit; whom they waited for they rarely know."""
    events = [
        event
        for event in view.list_events(codes.COLLECTIVE_TIMEOUT, "cause")
        if is_said(event) and event.signature != "c10d.heartbeat"
    ]
    exceptions = tuple(
        item
        for item in view.exceptions
        if is_timeout(item) and name_known(item) != codes.RENDEZVOUS_FAILED
    )
    stuck = [event for event in view.list_signatures("c10d.heartbeat") if is_said(event)]
    if not (events or exceptions or stuck):
        return
    waiting = sorted({*list_ranks(events), *(item.rank for item in exceptions)} - {-1})
    named = _find_named(view, waiting, stuck)
    op = _describe(view, events)
    who = name_ranks(waiting) if waiting else "ranks"
    what = f"{op['op']} {op['sequence']}" if "op" in op else "a collective"
    tail = f"; they name {name_ranks(named)}" if named else "; who was missing is not known"
    if not named and len(waiting) > 1 and set(waiting) == view.ranks == set(range(len(waiting))):
        tail = ": none of them is missing, and why it did not end is not in the logs"
        if set(list_ranks(events)) == set(waiting) and (calls := _name_calls(events)):
            what, tail = calls, ": they are in different calls, and why is not in the logs"
    is_alone = len(heard := _list_heard(view)) == 1 and not waiting and bool(stuck)
    if is_alone:
        summary = f"the watchdog of {name_ranks(sorted(heard))} did not move; of no other rank is "
        summary += "there a line"
    elif not waiting and stuck:
        summary = f"the watchdog of {name_ranks(list_ranks(stuck))} did not move"
    else:
        limit = "their time limits" if " and " in what else "its time limit"
        summary = f"{who} waited in {what} until {limit}{tail}"
    lines = (*stuck, *_choose(events)) if named and stuck else (*_choose(events), *stuck)
    silent = sorted(view.ranks - set(waiting) - set(named) - set(list_ranks(view.events)))
    yield Case(
        code=codes.COLLECTIVE_TIMEOUT,
        summary=summary,
        tier=WAIT,
        ranks=tuple(named),
        victims=tuple(waiting),
        lines=lines or tuple(_find_lines(view, exceptions)),
        exceptions=exceptions,
        where=place_exceptions(exceptions[:1]),
        time=find_time(events, exceptions, stuck),
        confidence=Confidence.POSSIBLE if is_alone else Confidence.LIKELY,
        details={"waiting": waiting, "silent": silent, **op},
        remedies=_advise(view, stuck, named, silent),
    )


def _name_calls(events: list[LogEvent]) -> str:
    """Return the calls of ranks that wait in several; empty where it is one."""
    told = [(event.groups.get("op") or "", event.groups.get("seq") or "") for event in events]
    calls = sorted({f"{op.lower()} {seq}" for op, seq in told if op and seq})
    return " and ".join(calls[:_MAX_CALLS]) if len(calls) > 1 else ""


def _advise(
    view: LogView, stuck: list[LogEvent], named: list[int], silent: list[int]
) -> tuple[str, ...]:
    """Choose the command that would decide: a watchdog that hangs does so outside of Python."""
    if stuck:
        return (dump_native(view, named or list_ranks(stuck)),)
    return () if named else (choose_command(view, silent),)


def _find_lines(view: LogView, exceptions: tuple[PythonException, ...]) -> Iterator[LogEvent]:
    for item in exceptions[:_MAX_LINES]:
        event = view.find_event_of(item)
        if event is not None:
            yield event


def _find_named(view: LogView, waiting: list[int], stuck: list[LogEvent]) -> list[int]:
    """Return the ranks that peers name as missing, or whose own watchdog says that it hangs."""
    named = {rank for rank in view.votes if rank not in waiting}
    # A watchdog hangs where its device hangs, which peers of a stuck rank may do too: of one that
    # is heard of alone nobody knows whether the others hang as well.
    hung = set(list_ranks(stuck)) - set(waiting)
    both = named & hung
    if not named and len(_list_heard(view)) <= 1:
        return []
    return sorted(both or named or (hung if len(hung) == 1 else set()))


def _list_heard(view: LogView) -> frozenset[int]:
    """Return the ranks of which there is any line."""
    return view.told_ranks.union(*(file.ranks for file in view.files)) - {-1}


def _choose(events: list[LogEvent]) -> list[LogEvent]:
    """Return a line for each op that ranks waited in, then the others."""
    firsts: dict[tuple[str, str], LogEvent] = {}
    for event in events:
        key = event.groups.get("op") or "", event.groups.get("seq") or ""
        firsts.setdefault(key, event)
    chosen = list(firsts.values())
    return [*chosen, *(event for event in events if event not in chosen)][: 2 * _MAX_LINES]


def _describe(view: LogView, events: list[LogEvent]) -> dict[str, Any]:
    """Describe the op that most ranks waited in; a number means nothing outside its group."""
    ops: dict[tuple[str, str], set[int]] = {}
    for event in events:
        if event.groups.get("op"):
            key = event.groups["op"], event.groups.get("seq") or ""
            ops.setdefault(key, set()).add(event.rank)
    if not ops:
        return {}
    (op, seq), _ = max(ops.items(), key=lambda item: len(item[1]))
    first = next(event for event in events if event.groups.get("op") == op)
    details: dict[str, Any] = {"op": op.lower(), "sequence": int(seq or 0)}
    for name, group in (("elements_in", "nin"), ("elements_out", "nout"), ("limit_ms", "to")):
        value = first.groups.get(group) or ""
        if value.isdecimal():
            details[name] = int(value)
    groups = {
        match[0]
        for event in view.list_signatures("c10d.pg_status")
        if (match := _GROUP.search(event.text))
    }
    return details | ({"groups": len(groups)} if len(groups) > 1 else {})


def make_lost(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that lost a peer; it names nobody."""
    events = [
        event
        for event in view.list_events(codes.PEER_LOST, "cascade")
        # That a process aborted says nothing of why.
        if is_said(event) and event.signature != "elastic.abort"
    ]
    exceptions = tuple(
        item for item in view.exceptions if is_cascade(item) and not is_timeout(item)
    )
    if not exceptions and (
        all(event.signature in _ENDS for event in events) or _are_of_the_end(view, events)
    ):
        return
    ranks = sorted({*list_ranks(events), *(item.rank for item in exceptions)} - {-1})
    last = find_exceptions(view, events)
    ends = [event for item in last if (event := view.find_event_of(item))]
    lines = tuple({(one.artifact, one.row): one for one in (*ends, *events)}.values())
    store = "" if exceptions else _find_store(events)
    peer = _find_lost_host(events)
    is_of_ray = not ranks and _are_of_ray(events, exceptions)
    is_general = not peer and not store and _tells_no_peer(events, exceptions)
    if is_of_ray:
        summary = (
            "Ray lost a worker process; whether it was killed, stopped or crashed is not in the "
            "logs: that of the worker tells more"
        )
    elif is_general:
        summary = (
            f"NCCL says {f'of {name_ranks(ranks)} ' if ranks else ''}that a system call or a "
            "library failed: whether a peer went away, or what else it is, is not in the logs"
        )
    else:
        summary = _say_lost(name_ranks(ranks) if ranks else "ranks", peer, store)
    yield Case(
        code=codes.PEER_LOST,
        summary=summary,
        tier=LOST,
        victims=tuple(ranks),
        lines=lines,
        exceptions=exceptions,
        time=find_time(events, exceptions),
        confidence=Confidence.POSSIBLE if is_of_ray or is_general else Confidence.LIKELY,
        details={"cut": ranks} | ({"store": store} if store else {}),
        remedies=(
            *(("export NCCL_DEBUG=WARN   # for the next run: it prints what failed",) * is_general),
            choose_host_command(view, ranks),
        ),
    )


def _say_lost(who: str, peer: str, store: str) -> str:
    if store:
        return (
            f"{who} lost the store on {store}: that host, or its launcher, went away first; why is "
            "not in the logs"
        )
    to = f"a peer on {peer}" if peer else "a peer"
    return f"{who} lost the connection to {to}; why the peer ended is not in the logs"


def _are_of_ray(events: Sequence[LogEvent], raised: Sequence[PythonException]) -> bool:
    """Tell whether Ray alone says that a process died: no rank lost a connection to it."""
    are_types = all(_RAY_TYPES.search(item.type) for item in raised)
    return bool(events) and are_types and all(one.signature == _RAY_DIED for one in events)


def _tells_no_peer(events: Sequence[LogEvent], exceptions: Sequence[PythonException]) -> bool:
    """Tell whether NCCL has but the general word for a failed call, and for no connection."""
    texts = [*(event.text for event in events), *(item.message for item in exceptions)]
    is_nccl = all(one.signature == "nccl.result" for one in events) and bool(texts)
    return is_nccl and all(_SYSTEM.search(text) and not _PEER_WORDS.search(text) for text in texts)


def _find_lost_host(events: Sequence[LogEvent]) -> str:
    """Return the host on which the peer was, where all connections that NCCL lost led there."""
    peers = [one.groups.get("peer") or "" for one in events if one.signature == _NCCL_CLOSED]
    hosts = {found[1] if (found := _PEER.match(peer)) else "" for peer in peers}
    return hosts.pop() if len(hosts) == 1 else ""


def _find_store(events: Sequence[LogEvent]) -> str:
    """Return the host of the store, where all that ranks lost is the connection to it."""
    lost = [one for one in events if one.signature == "store.reset"]
    found = [match for one in lost if (match := _STORE.search(one.text))]
    hosts = {match[2] for match in found}
    is_alone = all(one.signature in {"store.reset", "elastic.keepalive", *_ENDS} for one in events)
    own = {match[1] for match in found}
    is_other = len(found) == len(lost) and not hosts & own
    return hosts.pop() if is_alone and is_other and len(hosts) == 1 else ""


def _are_of_the_end(view: LogView, events: Sequence[LogEvent]) -> bool:
    """Tell whether ranks only lost the store of a job that was done: rank 0 ends it first."""
    done = {event.attempt for event in view.list_signatures("job.done")}
    return all(one.signature in {*_ENDS, "store.reset"} and one.attempt in done for one in events)
