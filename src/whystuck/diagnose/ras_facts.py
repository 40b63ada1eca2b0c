"""What NCCL's RAS tells of a stall: how far each rank came, who does not answer, what failed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from whystuck.diagnose.facts import Facts
from whystuck.evidence.finding import Citation
from whystuck.evidence.model import Evidence
from whystuck.evidence.ranks import name_ranks
from whystuck.evidence.ras import RasComm, RasCount, RasMember, RasStatus

_MAX_CITED = 6
_MAX_NAMED = 4
_NETWORK_ERROR = "System error"


@dataclass(frozen=True)
class Laggard:
    """Ranks that have issued fewer collectives than the other members of a communicator.

    ``ranks`` are those of the job; ``text`` completes the sentence "rank 3 ...".
    """

    ranks: tuple[int, ...]
    text: str


def choose_answer(evidence: Evidence) -> RasStatus | None:
    """Return the answer that knows most communicators; each is about the whole job."""
    return max(evidence.ras, key=lambda one: one.comms_seen, default=None)


def has_network_error(evidence: Evidence) -> bool:
    """Return whether NCCL reports an error of the network or of the system below it."""
    status = choose_answer(evidence)
    errors = (error for comm in (status.comms if status else ()) for error in comm.errors)
    return any(error.is_async and error.what == _NETWORK_ERROR for error in errors)


def cite_ras(facts: Facts) -> list[Citation]:
    """Cite what RAS tells of a job that stands still."""
    status = choose_answer(facts.evidence)
    if status is None or not status.comms_seen:
        return []
    lines = [*_list_lines(status, _Names(facts, status))][:_MAX_CITED]
    if not lines and status.is_even:
        is_one = status.comms_seen == 1
        whose = "the communicator" if is_one else f"each of {status.comms_seen} communicators"
        lines = [f"the members of {whose} have issued the same number of collectives"]
    return [Citation(f"NCCL RAS: {line}", status.artifact) for line in lines]


def find_laggards(facts: Facts) -> Laggard | None:
    """Find the few ranks that are behind by the counts of RAS; None when no few are."""
    status = choose_answer(facts.evidence)
    if status is None:
        return None
    names = _Names(facts, status)
    for comm in status.comms:
        for counts in _by_kind(comm):
            most = counts[0]
            late = [one for one in counts[1:] if one.issued < most.issued]
            ranks = [names.find(comm, member) for one in late for member in one.members]
            known = [rank for rank in ranks if rank is not None]
            is_named = len(known) == len(ranks) == sum(one.size for one in late)
            if known and is_named and len(known) < most.size:
                text = f"issued {late[0].issued} {_name_kind(most)}, where {_count(most)} issued"
                return Laggard(tuple(sorted(known)), f"{text} {most.issued}")
    return None


class _Names:
    """Tells which ranks of the job the members of communicators are."""

    def __init__(self, facts: Facts, status: RasStatus) -> None:
        self._world = max(len(facts.ranks), status.largest)
        self._by_pid = _map_pids(facts.evidence)

    def find(self, comm: RasComm, member: RasMember) -> int | None:
        """Return the rank of a member; in the group of all ranks its number is that."""
        if comm.size == self._world:
            return member.rank
        ranks = self._by_pid.get(member.pid, frozenset())
        return next(iter(ranks)) if len(ranks) == 1 else None

    def name(self, comm: RasComm, members: Sequence[RasMember], size: int) -> str:
        """Name members as ranks of the job, or with their processes."""
        ranks = [self.find(comm, member) for member in members]
        known = [rank for rank in ranks if rank is not None]
        if not members or len(members) < size:
            return f"{size} members" if size > 1 else "a member"
        if len(known) == len(members):
            return name_ranks(known)
        named = [_describe(member) for member in members[:_MAX_NAMED]]
        more = len(members) - len(named)
        return ", ".join(named) + (f" and {more} more" if more else "")


def _describe(member: RasMember) -> str:
    owner = f" (process {member.pid} on {member.host})" if member.pid >= 0 else ""
    return f"member {member.rank}{owner}"


def _map_pids(evidence: Evidence) -> Mapping[int, frozenset[int]]:
    found: dict[int, set[int]] = defaultdict(set)
    for look in evidence.processes:
        if not look.worker:
            found[look.pid].add(look.rank)
    for claim in evidence.claims:
        found[claim.pid].add(claim.rank)
    for log in evidence.ops.logs:
        found[log.pid].add(log.rank)
    return {pid: frozenset(ranks) for pid, ranks in found.items()}


def _by_kind(comm: RasComm) -> Iterator[list[RasCount]]:
    """Yield the counts of each kind of collective in which members differ, most members first."""
    kinds: dict[str, list[RasCount]] = {}
    for count in comm.counts:
        kinds.setdefault(count.op, []).append(count)
    for counts in kinds.values():
        if len(counts) > 1:
            yield sorted(counts, key=lambda one: (-one.size, -one.issued))


def _name_kind(count: RasCount) -> str:
    return "collectives" if count.op == "collective" else count.op


def _count(count: RasCount) -> str:
    return f"{count.size} other{'s' if count.size > 1 else ''}"


def _list_lines(status: RasStatus, names: _Names) -> Iterable[str]:
    for comm in status.comms:
        for error in comm.errors:
            how = "an asynchronous error" if error.is_async else "an error of initialization"
            who = names.name(comm, error.members, error.size)
            yield f"{how} of {who} in communicator {comm.hash}: {error.what}"
    for process in status.processes[:_MAX_NAMED]:
        state = "is considered dead" if process.is_dead else "does not answer"
        yield f"process {process.pid} on {process.host} {state}"
    for comm in status.comms:
        yield from _list_differences(comm, names)


def _list_differences(comm: RasComm, names: _Names) -> Iterable[str]:
    where = f"of communicator {comm.hash}"
    for counts in _by_kind(comm):
        most, *others = counts
        who = ", ".join(
            f"{names.name(comm, one.members, one.size)} issued {one.issued}" for one in others
        )
        yield f"{who} {_name_kind(most)} {where}, {_count(most)} {most.issued}"
    if comm.missing:
        who = names.name(comm, comm.missing, len(comm.missing))
        yield f"no data from {who} {where}"
    if comm.absent:
        who = names.name(comm, comm.absent, len(comm.absent))
        yield f"{who} answered, and no longer belongs to communicator {comm.hash}"
