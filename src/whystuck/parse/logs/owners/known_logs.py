"""One log and what is known of it; whose output it is by its folder, its name or its text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.stacks.headings import read_ranks_in_order
from whystuck.parse.logs.lines.times import Anchor
from whystuck.parse.logs.log_inputs import LogInput
from whystuck.parse.logs.parts import LogPart

# Names that count machines.
_NODES = re.compile(r"(?:node|host|machine)[_\-.]?[a-z]?$", re.IGNORECASE)


@dataclass(slots=True)
class KnownLog:
    """One log, and what is known of it."""

    source: LogInput
    kind: str = ""
    rank: int = UNKNOWN_RANK
    node: str = ""
    attempt: int = 0
    tasks_are_ranks: bool = True
    anchor: Anchor = field(default_factory=Anchor)


def find_own_rank(source: LogInput) -> int:
    """Tell the rank whose output a log is, as its folder, its name or its text say."""
    if source.rank is not None:
        return source.rank
    if source.name.rank is not None:
        return source.name.rank
    facts = source.part.facts
    said = facts.said_ranks
    # Who says which ranks some processes are says nothing of who wrote the log.
    others = {rank for ranks in facts.rank_by_pid.values() for rank in ranks} | {*facts.ranks}
    if len(said) == 1 and not others - said:
        return next(iter(said))
    return UNKNOWN_RANK


def take_locals(logs: list[KnownLog], world_size: int) -> None:
    """Take local ranks for ranks, where the logs of one launcher are there and nothing objects."""
    names = {id(log): log.source.name for log in logs if log.rank == UNKNOWN_RANK}
    group = [log for log in logs if id(log) in names and log.source.name.local is not None]
    locals_ = {log.source.name.local or 0 for log in group}
    if len({log.source.name.root for log in group}) != 1:
        return
    said = [(log.source.name.local, set(log.source.part.facts.ranks)) for log in group]
    said += [(log.source.name.local, log.source.part.facts.said_ranks) for log in group]
    told = [(local, ranks) for local, ranks in said if ranks]
    if any(ranks != {local} for local, ranks in told):
        return
    if told or world_size <= max(locals_) + 1:
        for log in group:
            log.rank = log.source.name.local or 0


def take_indices(group: list[KnownLog]) -> None:
    """Take the numbers of names for ranks, where that is what they are."""
    if _NODES.search(group[0].source.name.series):
        return
    told = [(log, set(log.source.part.facts.ranks)) for log in group]
    if any(len(ranks) > 1 for _, ranks in told):
        return
    known = [(log, ranks) for log, ranks in told if ranks]
    agree = all(ranks == {log.source.name.index} for log, ranks in known)
    if known and agree:
        for log in group:
            log.rank = log.source.name.index if log.source.name.index is not None else log.rank
    elif known and len(group) > 1:
        for log, ranks in known:
            log.rank = next(iter(ranks))


def list_ordered(part: LogPart) -> Iterator[tuple[int, int]]:
    """Yield the processes that a log shows, with their ranks, where it says their order.

    Nothing tells which is which where more or fewer of them are shown than have ranks.
    """
    order = part.facts.said.order
    if order is None:
        return
    shown = [seen.pid for seen in part.stacks if seen.pid and not seen.is_worker]
    shown = shown or [int(row.groups.get("pid", "0")) for row in part.tabled]
    pids = list(dict.fromkeys(pid for pid in shown if pid))
    ranks = read_ranks_in_order(order.replace("..", "-")) if order else list(range(len(pids)))
    world = part.facts.world_size
    if len(pids) > 1 and len(ranks) == len(pids) and (order or world in (0, len(pids))):
        yield from zip(pids, ranks, strict=True)


def find_devices(log: KnownLog) -> dict[tuple[str, int], int]:
    """Return the rank of each device, by its host; nothing where two have one."""
    facts = log.source.part.facts
    devices = {place: min(own) for place, own in facts.rank_by_device.items() if len(own) == 1}
    for host, first, last in list_host_ranks(log.source.part):
        for device in range(last - first + 1):
            devices.setdefault((host, device), first + device)
    return devices if len(set(devices.values())) == len(devices) else {}


def list_told(logs: Sequence[KnownLog]) -> Iterator[int]:
    """Yield the ranks that logs name."""
    for log in logs:
        yield from log.source.part.facts.ranks
        yield from (seen.rank for seen in log.source.part.exits)


def world_of(part: LogPart) -> int:
    """Return how many ranks the job of a log has, 0 when it does not tell."""
    comms = part.facts.comms.values()
    sizes = [part.facts.world_size, *(comm.size for comm in comms)]
    return max((size for size in sizes if size <= MAX_RANK + 1), default=0)


def are_ranks(part: LogPart) -> bool:
    """Tell whether each task of a launcher is the rank of that number.

    Where tasks are launchers themselves, such as torchrun below ``srun -l``, they are hosts, unless
    a rank beyond the first one says that it has the number of its task.
    """
    rank_by_task = part.facts.rank_by_task
    is_shown = any(rank_by_task) or not has_launchers(part)
    return is_shown and all(ranks == {task} for task, ranks in rank_by_task.items())


def has_launchers(part: LogPart) -> bool:
    """Tell whether the tasks of a log are launchers, each of which starts the ranks of a host."""
    starts = (row for row in part.tabled if row.name == "table.launch")
    return (
        part.facts.has_agents
        or any(row.line.task != UNKNOWN_RANK and row.groups["each"] != "1" for row in starts)
        or any(seen.line.task != UNKNOWN_RANK and seen.local >= 0 for seen in part.exits)
    )


def list_host_ranks(part: LogPart) -> Iterator[tuple[str, int, int]]:
    """Yield hosts with the first and the last of their ranks, as sentences and lists tell them."""
    yield from part.facts.said.host_ranks
    for row in part.tabled:
        if row.name == "table.host_ranks":
            yield row.groups["host"], int(row.groups["first"]), int(row.groups["last"])


def find_sole_ranks(logs: Sequence[KnownLog]) -> dict[str, int]:
    """Return the rank of each host that is said to have that one alone."""
    found: dict[str, set[int]] = {}
    for host, first, last in (one for log in logs for one in list_host_ranks(log.source.part)):
        found.setdefault(host, set()).update((first, last))
    return {host: min(own) for host, own in found.items() if len(own) == 1}


def list_said_places(logs: Sequence[KnownLog], hosts: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield the host of each rank where people say which ranks hosts have, and all agree.

    Nothing is one of their hosts where none of them is known to be one.
    """
    said: dict[int, set[str]] = {}
    for host, first, last in {one for log in logs for one in list_host_ranks(log.source.part)}:
        for rank in range(first, last + 1):
            said.setdefault(rank, set()).add(host)
    is_known = any(host in hosts for own in said.values() for host in own)
    # Two names of one host, such as a short one and a full one, tell nothing new.
    if is_known and all(len(own) == 1 for own in said.values()):
        yield from ((rank, min(own)) for rank, own in said.items())
