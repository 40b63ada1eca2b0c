"""What NCCL's RAS tells of a stall: how far each rank came, who does not answer, what failed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from whystuck.evidence.finding import Citation
from whystuck.evidence.model import Evidence
from whystuck.evidence.nodes.ras import RasComm, RasCount, RasMember, RasStatus
from whystuck.evidence.ranks import is_process, name_ranks

_MAX_CITED = 6
_MAX_NAMED = 4
_NETWORK_ERROR = "System error"


@dataclass(frozen=True)
class Laggard:
    """Ranks that have issued fewer collectives than the others, or do not answer.

    ``ranks`` are those of the job, and wait for nobody; ``text`` completes the sentence "rank 3
    ...". ``waiting`` are the ranks that are ahead of somebody.
    """

    ranks: tuple[int, ...]
    text: str
    waiting: frozenset[int] = frozenset()


@dataclass(frozen=True)
class LateProcesses:
    """Members of a communicator that are behind, whose ranks in the job are not known."""

    hosts: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class OddCalls:
    """Members that issued more of one kind of collective and fewer of another than the others.

    ``ranks`` are those of the job, empty where they are not known; ``text`` completes the sentence
    "rank 3 ...".
    """

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    who: str
    text: str


@dataclass(frozen=True)
class _Lag:
    """Members of a communicator that issued fewer collectives of a kind; ``is_few``: few did."""

    late: frozenset[int]
    ahead: frozenset[int]
    is_few: bool
    text: str


def choose_answer(evidence: Evidence) -> RasStatus | None:
    """Return the answer that knows most communicators; each is about the whole job."""
    return max(evidence.ras, key=lambda one: one.comms_seen, default=None)


def has_moved(evidence: Evidence) -> bool:
    """Return whether a later answer shows that those that were behind went on: the job runs."""
    answers: dict[tuple[str, str], dict[int, list[int]]] = {}
    for number, status in enumerate(evidence.ras):
        for comm in status.comms:
            for counts in _by_kind(comm):
                told = answers.setdefault((comm.hash, counts[0].op), {})
                told.setdefault(number, []).extend(one.issued for one in counts)
    # Who is behind in one answer is past all of the other one.
    return any(
        min(one) > max(other)
        for told in answers.values()
        for one in told.values()
        for other in told.values()
    )


def has_network_error(evidence: Evidence) -> bool:
    """Return whether NCCL reports an error of the network or of the system below it."""
    status = choose_answer(evidence)
    errors = (error for comm in (status.comms if status else ()) for error in comm.errors)
    return any(error.is_async and error.what == _NETWORK_ERROR for error in errors)


def count_ranks(ranks: Collection[int]) -> int:
    """Count ranks: a process of unknown number is one of those that are numbered elsewhere."""
    unnumbered = sum(map(is_process, ranks))
    return max(unnumbered, len(ranks) - unnumbered)


def cite_ras(evidence: Evidence, ranks: int) -> list[Citation]:
    """Cite what RAS tells of a job that stands still."""
    status = choose_answer(evidence)
    if status is None or not status.comms_seen:
        return []
    lines = [*_list_lines(status, _Names(evidence, ranks, status))][:_MAX_CITED]
    if not lines and status.is_even:
        is_one = status.comms_seen == 1
        whose = "the communicator" if is_one else f"each of {status.comms_seen} communicators"
        lines = [f"the members of {whose} have issued the same number of collectives"]
    return [Citation(f"NCCL RAS: {line}", status.artifact) for line in lines]


def find_laggards(evidence: Evidence, ranks: Collection[int]) -> Laggard | None:
    """Find the few ranks that others wait for by the answer of RAS; None when no few are.

    A rank that is behind in one communicator may itself wait in another one: the ends of these
    chains are named. Where some ranks that are behind, or ahead, cannot be told, nobody is.

    Args:
        evidence: The evidence.
        ranks: All ranks of the job that are known.

    Returns:
        The ranks and why.
    """
    status = choose_answer(evidence)
    if status is None or has_moved(evidence):
        return None
    names = _Names(evidence, count_ranks(ranks), status)
    lags = [lag for comm in status.comms for lag in _list_lags(comm, names)]
    known = [lag for lag in lags if lag is not None]
    if len(known) < len(lags) or not known:
        return None
    waiting = frozenset[int]().union(*(lag.ahead for lag in known))
    few = [(lag.late - waiting, lag.text) for lag in known if lag.is_few and lag.late - waiting]
    if not few:
        return None
    text = next(text for _, text in few)
    return Laggard(tuple(sorted(frozenset[int]().union(*(one for one, _ in few)))), text, waiting)


def find_late_processes(evidence: Evidence) -> LateProcesses | None:
    """Find the few members that are behind in the only communicator whose members differ.

    The text of NCCL before 2.28.7 has no list of members: those of a part of the job cannot be led
    to ranks, but it tells their processes. With more than one such communicator, they may be among
    those that wait in another one.
    """
    status = None if has_moved(evidence) else choose_answer(evidence)
    odd = [comm for comm in (status.comms if status else ()) if comm.counts or comm.missing]
    kinds = list(_by_kind(odd[0])) if len(odd) == 1 and not odd[0].missing else []
    if len(kinds) != 1:
        return None
    most, *late = kinds[0]
    members = [one for count in late for one in count.members]
    is_behind = all(one.issued < most.issued and one.size == len(one.members) for one in late)
    is_told = bool(members) and all(one.pid >= 0 for one in members)
    if not is_behind or not is_told or len(members) >= most.size:
        return None
    who = ", ".join(map(_describe, members[:_MAX_NAMED]))
    more = f" and {len(members) - _MAX_NAMED} more" if len(members) > _MAX_NAMED else ""
    text = (
        f"{who}{more} of communicator {odd[0].hash} issued {late[0].issued} {_name_kind(most)}, "
        f"where {_count(most)} issued {most.issued}"
    )
    return LateProcesses(tuple(dict.fromkeys(one.host for one in members)), text)


def find_odd_calls(evidence: Evidence, ranks: Collection[int]) -> OddCalls | None:
    """Find the few members of a communicator that made other calls than its other members.

    Who is only behind has issued no more of any kind. More of one kind and fewer of another is
    another program.
    """
    status = choose_answer(evidence)
    if status is None:
        return None
    names = _Names(evidence, count_ranks(ranks), status)
    for comm in status.comms:
        kinds = list(_by_kind(comm))
        more = {one for kind in kinds for one in _list_apart(kind, is_more=True)}
        odd = sorted(
            more & {one for kind in kinds for one in _list_apart(kind, is_more=False)},
            key=lambda member: member.rank,
        )
        if not odd or 2 * len(odd) >= comm.size:
            continue
        known = [rank for member in odd if (rank := names.find(comm, member)) is not None]
        is_known = len(known) == len(odd)
        told = [_tell_kind(kind, odd[0]) for kind in kinds if _find_count(kind, odd[0])]
        return OddCalls(
            tuple(known) if is_known else (),
            tuple(sorted(set(range(comm.size)) - set(known))) if names.is_whole(comm) else (),
            names.name(comm, odd, len(odd)),
            f"issued {' and '.join(told)} in communicator {comm.hash}",
        )
    return None


def _list_apart(counts: Sequence[RasCount], *, is_more: bool) -> Iterator[RasMember]:
    """Yield the members whose count of a kind is above, or below, that of most."""
    usual = counts[0].issued
    for one in counts[1:]:
        if (one.issued > usual) == is_more:
            yield from one.members


def _find_count(counts: Sequence[RasCount], member: RasMember) -> RasCount | None:
    return next((one for one in counts[1:] if member in one.members), None)


def _tell_kind(counts: Sequence[RasCount], member: RasMember) -> str:
    own = _find_count(counts, member)
    usual = counts[0]
    return f"{own.issued if own else 0} {_name_kind(usual)} ({_count(usual)} {usual.issued})"


def _list_lags(comm: RasComm, names: _Names) -> Iterator[_Lag | None]:
    """Yield who is behind whom in a communicator; None where that cannot be told."""
    if comm.missing:
        yield _find_silent(comm, names)
    for counts in _by_kind(comm):
        found = _find_members(comm, counts, names)
        if found is None:
            yield None
            continue
        most, least = counts[0], min(one.issued for one in counts)
        late = [one for one in counts if one.issued < most.issued]
        behind = frozenset[int]().union(*(found[one.issued] for one in late))
        ahead = frozenset[int]().union(*(found[one.issued] for one in counts if one.issued > least))
        text = ""
        if late:
            text = f"issued {late[0].issued} {_name_kind(most)}, where {_count(most)} issued "
        # In a job of two, the one that is behind is the one that the other waits for.
        is_lone = len(behind) == 1 and names.is_whole(comm)
        is_few = 0 < len(behind) < most.size or is_lone
        least_ranks = frozenset(found[least])
        yield _Lag(behind or least_ranks, ahead, is_few, f"{text}{most.issued}")


def _find_silent(comm: RasComm, names: _Names) -> _Lag | None:
    """Find the members of a communicator that do not answer; its other members wait for them."""
    found = [names.find(comm, member) for member in comm.missing]
    silent = frozenset(rank for rank in found if rank is not None)
    if len(silent) < len(found):
        return None
    ahead = frozenset(range(comm.size)) - silent if names.is_whole(comm) else frozenset[int]()
    is_few = 0 < len(silent) < comm.size - len(silent)
    return _Lag(silent, ahead, is_few, "gave no answer")


def _find_members(
    comm: RasComm, counts: Sequence[RasCount], names: _Names
) -> dict[int, frozenset[int]] | None:
    """Return the ranks that issued so many; None where some cannot be told."""
    found: dict[int, frozenset[int]] = {}
    for one in counts:
        ranks = [names.find(comm, member) for member in one.members]
        known = frozenset(rank for rank in ranks if rank is not None)
        if len(known) == len(ranks) == one.size:
            found[one.issued] = known
    unknown = [one for one in counts if one.issued not in found]
    if unknown and not (len(unknown) == 1 and names.is_whole(comm)):
        return None
    others = frozenset(range(comm.size)) - frozenset[int]().union(*found.values())
    if unknown:
        silent = {names.find(comm, member) for member in comm.missing}
        found[unknown[0].issued] = others - silent
    return found


class _Names:
    """Tells which ranks of the job the members of communicators are."""

    def __init__(self, evidence: Evidence, ranks: int, status: RasStatus) -> None:
        self._world = max(ranks, status.largest)
        self._by_owner: dict[tuple[str, int], set[int]] = {}
        self._by_pid: Mapping[int, frozenset[int]] = {}
        if status.members and status.largest == self._world:
            # Pids alone are not unique: in containers, each host has the same ones.
            for one in status.members:
                self._by_owner.setdefault((one.host, one.pid), set()).add(one.rank)
        else:
            self._by_pid = _map_pids(evidence)

    def is_whole(self, comm: RasComm) -> bool:
        """Return whether all ranks of the job are members of a communicator."""
        return 0 < comm.size == self._world

    def find(self, comm: RasComm, member: RasMember) -> int | None:
        """Return the rank of a member; in the group of all ranks its number is that."""
        if self.is_whole(comm):
            return member.rank
        ranks = self._by_owner.get((member.host, member.pid)) or self._by_pid.get(member.pid)
        return next(iter(ranks)) if ranks and len(ranks) == 1 else None

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
