"""Tells whose the stacks in logs are: by a heading, a prefix, or the number of the process."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count

from whystuck.evidence.live import StackSample
from whystuck.evidence.logs.lines import UNKNOWN_RANK, LogEvent
from whystuck.evidence.ranks import FIRST_UNNUMBERED, MAX_RANK
from whystuck.parse.logs.blocks.stacks.children import mark_children
from whystuck.parse.logs.blocks.stacks.listed_processes import list_listed
from whystuck.parse.logs.blocks.stacks.same_process import find_rank_above, list_notes
from whystuck.parse.logs.blocks.stacks.savers import find_saver
from whystuck.parse.logs.blocks.stacks.seen import StackSeen
from whystuck.parse.logs.join import LogIndex
from whystuck.parse.logs.owners.known_logs import KnownLog
from whystuck.parse.logs.owners.said_places import is_said_pod

_WORKER = re.compile(r"(?<![a-z])workers?-?(\d{1,5})(?![\w.])", re.IGNORECASE)
# A comment at a frame that says whose it is, and nothing that the rank does.
_NOTED = re.compile(r"[#/<\s(=-]{0,8}rank[ =:_#]{0,2}(\d{1,7})\s{0,2}(?:[,;)]|$)", re.IGNORECASE)
_HELD = re.compile(r"variable rank (\d{1,7})$")
_TO_PEER = re.compile(r"send|recv|receive|(?:^|_)(?:to|from|peers?|wait|other)(?:_|$)")
# The ranks of one host are fewer.
_MOST_LOCAL = 8


def make_stacks(
    index: LogIndex, events: Sequence[LogEvent] = ()
) -> tuple[list[StackSample], dict[int, str]]:
    """Make samples of the stacks in all logs.

    Args:
        index: What is known of the logs.
        events: The known lines in them.

    Returns:
        The samples; a process of unknown rank has a number of its own (`evidence.ranks`). And the
        hosts or pods that are told of such processes.
    """
    samples: list[StackSample] = []
    nodes: dict[int, str] = {}
    numbers = _Numbers()
    looks = Counter[tuple[int, int, bool]]()
    told = (log.source.part.facts for log in index.logs)
    # With ranks of several hosts, each host has one of the same local rank.
    is_small = all(rank < _MOST_LOCAL for facts in told for rank in (*facts.ranks, *facts.tasks))
    for log in index.logs:
        last = UNKNOWN_RANK
        mark_children(log.source.part.stacks)
        owners: dict[int, int] = {}
        shared = _find_shared(log.source.part.stacks)
        alone = _find_alone(log.source.part.stacks)
        saver, notes = _find_saver(log, events), list_notes(log, events)
        held = _list_held(log.source.part.stacks) or list_listed(log, events)
        for seen in log.source.part.stacks:
            known = _find_own(index, log, seen, saver, notes, held)
            is_local = is_small and not seen.node and seen.local not in {-1, *shared}
            if known == UNKNOWN_RANK and is_local:
                known = index.rank_of_local(log.node, seen.local, log)
            if known == UNKNOWN_RANK and seen.node in alone:
                known = _find_rank_of_pod(log, seen.node)
            if known == UNKNOWN_RANK and seen.is_worker:
                known = owners.get(seen.parent, last)
            known = _find_rest(index, seen) if seen.is_rest else known
            others = sorted(seen.others - {known}) if known != UNKNOWN_RANK else []
            for rank in [known, *others] if known != UNKNOWN_RANK else numbers.choose(seen):
                key = rank, seen.pid * (rank not in others), seen.is_worker
                samples.append(_make_sample(log, seen, rank, looks[key], is_other=rank in others))
                looks[key] += 1
                node = seen.node or seen.line.node
                if node:
                    nodes.setdefault(rank, node)
                last = last if seen.is_worker else rank
                if not seen.is_worker:
                    owners.setdefault(seen.pid, rank)
    return samples, nodes


def _find_rest(index: LogIndex, seen: StackSeen) -> int:
    """Return the first of the ranks of which no other stack is told, and note the others.

    They are those that write, or that are known as the number of ranks is.
    """
    parts = [log.source.part for log in index.logs]
    shown = {rank for one in parts for own in one.stacks for rank in (own.rank, *own.others)}
    told = {rank for one in parts for rank in one.facts.ranks} | set(range(index.world_size))
    first, *others = sorted(told - shown - {UNKNOWN_RANK}) or [UNKNOWN_RANK]
    seen.others = frozenset(others)
    return first


def _find_saver(log: KnownLog, events: Sequence[LogEvent]) -> tuple[int, int]:
    """Find the process of a log that writes a file, and its rank; twice -1 where it is not told."""
    stacks = log.source.part.stacks
    if not any(seen.pid for seen in stacks):
        return -1, -1
    return find_saver((one for one in events if one.artifact == log.source.artifact), stacks)


def _find_shared(stacks: Iterable[StackSeen]) -> set[int]:
    """Find local ranks that several processes have: they are of several hosts, or of helpers."""
    pids: dict[int, set[int]] = {}
    for seen in stacks:
        if not seen.is_worker:
            pids.setdefault(seen.local, set()).add(seen.pid)
    return {local for local, found in pids.items() if len(found) > 1}


def _find_alone(stacks: Iterable[StackSeen]) -> set[str]:
    """Find the hosts and pods of which one process is shown, data loaders left out."""
    pids: dict[str, set[int]] = {}
    for seen in stacks:
        if seen.node and not seen.is_worker:
            pids.setdefault(seen.node, set()).add(seen.pid)
    return {node for node, found in pids.items() if len(found) == 1}


def _find_rank_of_pod(log: KnownLog, node: str) -> int:
    """Return the rank that people say a pod or a host has; a name may be short for several."""
    told = log.source.part.facts.said.rank_by_pod
    named = [ranks for said, ranks in told.items() if is_said_pod(said, node.lower())]
    ranks = set[int]().union(*named)
    # The number of a worker's pod, where somebody says how ranks follow from it.
    shift = log.source.part.facts.said.find_shift()
    worker = _WORKER.search(node) if not ranks and shift is not None else None
    if worker is not None and shift is not None:
        ranks = {int(worker[1]) + shift}
    return ranks.pop() if len(ranks) == 1 else UNKNOWN_RANK


def _find_own(
    index: LogIndex,
    log: KnownLog,
    seen: StackSeen,
    saver: tuple[int, int],
    notes: Sequence[int],
    held: Mapping[int, int],
) -> int:
    """Return the rank that lines tell of a stack, or of its process."""
    known = _find_rank(index, log, seen)
    known = saver[1] if known == UNKNOWN_RANK and seen.pid == saver[0] else known
    known = _find_noted(seen) if known == UNKNOWN_RANK else known
    known = find_rank_above(index, log, seen, notes) if known == UNKNOWN_RANK else known
    return held.get(seen.pid, known) if known == UNKNOWN_RANK else known


def _find_noted(seen: StackSeen) -> int:
    """Return the one rank with which comments at frames begin: `# rank 2, dst=0`."""
    notes = (note for thread in seen.threads for _, note in thread.notes)
    ranks = {int(match[1]) for note in notes if (match := _NOTED.match(note))}
    return ranks.pop() if len(ranks) == 1 and max(ranks) <= MAX_RANK else UNKNOWN_RANK


def _list_held(stacks: Sequence[StackSeen]) -> dict[int, int]:
    """Return the rank that a variable of each process holds, as `py-spy dump --locals` shows it.

    That of a peer is in functions that send to it or receive from it.
    """
    found: dict[int, int] = {}
    shown = [seen for seen in stacks if not seen.is_worker]
    for seen in shown:
        ranks = {
            int(match[1])
            for thread in seen.threads
            for at, note in thread.notes
            if (match := _HELD.match(note)) and not _TO_PEER.search(thread.frames[at].function)
        }
        if len(ranks) == 1 and seen.pid and min(ranks) <= MAX_RANK:
            found[seen.pid] = min(ranks)
    is_whole = len(found) == len(shown) == len(set(found.values())) > 1
    return found if is_whole else {}


def _find_rank(index: LogIndex, log: KnownLog, seen: StackSeen) -> int:
    if seen.rank != UNKNOWN_RANK:
        told = index.processes.find_written(seen.node or seen.line.node or log.node, seen.pid)
        return seen.rank if told in (UNKNOWN_RANK, seen.rank) else UNKNOWN_RANK
    rank = index.find_rank(log, seen.line)
    # That the whole log is of one rank says less than what is said of the process.
    if rank in (UNKNOWN_RANK, log.rank) and seen.line.rank == UNKNOWN_RANK and seen.pid:
        own = index.rank_of_pid(seen.node or seen.line.node or log.node, seen.pid)
        return rank if own == UNKNOWN_RANK else own
    return rank


class _Numbers:
    """Chooses what stands for processes of which the rank is not known."""

    def __init__(self) -> None:
        self._free = count(FIRST_UNNUMBERED)
        self._hosts: dict[int, str] = {}
        self._known: dict[tuple[int, str], int] = {}

    def choose(self, seen: StackSeen) -> Iterator[int]:
        """Yield the number of each process that a stack is of: its own, if only it has that."""
        if seen.pid > 0 and seen.alike == 1 and (seen.pid > 1 or seen.node):
            host = seen.node or seen.line.node
            if seen.pid > 1 and self._hosts.setdefault(seen.pid, host) == host:
                yield -seen.pid
                return
            # In containers, each host has processes of the same numbers.
            key = seen.pid, host
            if key not in self._known:
                self._known[key] = -next(self._free)
            yield self._known[key]
            return
        for _ in range(seen.alike):
            yield -next(self._free)


def _make_sample(
    log: KnownLog, seen: StackSeen, rank: int, number: int, *, is_other: bool
) -> StackSample:
    return StackSample(
        rank,
        # Whose stack is said to be the same is another process.
        0 if is_other else seen.pid,
        worker=seen.is_worker,
        index=number,
        threads=tuple(seen.threads),
        source=seen.source,
        artifact=log.source.artifact,
        row=seen.row,
    )
