"""Which of the things that logs tell of came first by cause, not by clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any

from whystuck.diagnose import codes
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Citation, Confidence, Place
from whystuck.evidence.live import ExitRecord, FatalStack, PythonException
from whystuck.evidence.logs.lines import LogEvent, LogTime

__all__ = [
    "ALOOF",
    "BUSY",
    "GENERIC",
    "LINKED",
    "LOST",
    "NEAR",
    "NOTE",
    "OUTSIDE",
    "OWN",
    "PARTED",
    "TAKEN",
    "WAIT",
    "Case",
    "LogView",
    "Maker",
    "Story",
]

# How near a thing is to a cause. What stands further down may follow from what stands above it.
OUTSIDE = 0  # nothing in the job brings it about: a broken device, a preemption, no host memory
OWN = 10  # a process failed by itself: an exception, a crash, a wrong configuration
TAKEN = 20  # a process was ended by a signal, and nothing tells who sent it
BUSY = 24  # ranks waited, and somebody was still at work
PARTED = 25  # ranks waited, and what they say of it tells why
WAIT = 30  # ranks waited until a time limit
LOST = 40  # ranks lost a peer
NOTE = 90  # nothing that ends a job; told beside whatever did

# What ties a thing to the failure of the job, beside the line that tells of it.
ALOOF = 0  # nothing, or the clocks say that it is another story
NEAR = 1  # it happened when the job failed
LINKED = 2  # ranks of the job say that they felt it, or the line is theirs

# So many cases of one kind are made. Each is compared with each of the others, and no job fails in
# so many ways.
MAX_CASES = 100
# A process says why it ends up to this much later than its peers see that it is gone.
_TOLD_LATE_NS = 60_000_000_000
# Codes that say what kind of error an exception is; the others only say that there was one.
GENERIC = {
    codes.PROCESS_KILLED,
    codes.NATIVE_CRASH,
    codes.PYTHON_EXCEPTION,
    codes.SAME_EXCEPTION_EVERYWHERE,
    codes.PREEMPTED,
    codes.PEER_LOST,
    codes.COLLECTIVE_TIMEOUT,
}


@dataclass(frozen=True)
class Case:
    """One thing that logs say went wrong, as a finding of one code would tell it.

    Attributes:
        code: The code of the catalogue.
        summary: The sentence of the finding.
        tier: How near such a thing is to a cause: one of the constants above.
        ranks: Whom to blame; empty where to name one would be a guess.
        nodes: The hosts at fault.
        victims: Ranks that waited or were cut off.
        lines: The lines that say so, the most telling first.
        exceptions: The tracebacks that say so.
        exits: The ends of processes that say so.
        fatals: The stacks that faulthandler wrote.
        where: Places in the user's code.
        time: The earliest sure sign of it, None when nothing tells.
        confidence: How sure it is that this happened, whatever else did.
        details: What the finding adds, fixed for each code.
        remedies: What to do, before the general advice of the rule.
        scope: Ranks whose own failures may follow from it; those it blames where empty.
        support: What ties it to the failure of this job: one of the constants above.
        is_foreign: Whether its lines are of another program than the ranks and their launcher.
        ends_job: Whether a launcher says that it ends the job for it: what processes of no known
            rank print below follows from that.
        cites: What says so that is no line of a log.
        entails: Lines of other cases that follow from it, whatever their ranks.
    """

    code: str
    summary: str
    tier: int
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    victims: tuple[int, ...] = ()
    lines: tuple[LogEvent, ...] = ()
    exceptions: tuple[PythonException, ...] = ()
    exits: tuple[ExitRecord, ...] = ()
    fatals: tuple[FatalStack, ...] = ()
    where: tuple[Place, ...] = ()
    time: LogTime | None = None
    confidence: Confidence = Confidence.LIKELY
    details: Mapping[str, Any] = field(default_factory=dict)
    remedies: tuple[str, ...] = ()
    scope: frozenset[int] = frozenset()
    support: int = LINKED
    is_foreign: bool = False
    ends_job: bool = False
    cites: tuple[Citation, ...] = ()
    entails: tuple[LogEvent, ...] = ()

    @cached_property
    def told_by(self) -> frozenset[int]:
        """The ids of the tracebacks and ends that say so."""
        return frozenset(id(item) for item in (*self.exceptions, *self.exits))

    @cached_property
    def place(self) -> tuple[str, int]:
        """The first place that says so, where all that does stands in one log."""
        told: tuple[LogEvent | PythonException, ...] = (*self.lines, *self.exceptions)
        places = [(item.artifact, item.row) for item in told if item.row]
        return min(places) if len({artifact for artifact, _ in places}) == 1 else ("", 0)

    @property
    def reach(self) -> frozenset[int]:
        """Ranks whose own failures may follow from it."""
        return self.scope | frozenset(self.ranks)


Maker = Callable[[LogView], Iterator[Case]]


class Story:
    """All cases of one evidence, the root cause first."""

    def __init__(self, view: LogView, makers: Iterable[Maker], *, is_running: bool = False) -> None:
        """Make the cases; they are ranked when asked for.

        Args:
            view: The logs.
            makers: What makes cases of them.
            is_running: Whether the job goes on or has ended well: what ranks print of failures is
                then no end.
        """
        self.view = view
        self._makers = tuple(makers)
        self._is_running = is_running

    @cached_property
    def _made(self) -> tuple[list[Case], ...]:
        return tuple(list(islice(make(self.view), MAX_CASES + 1)) for make in self._makers)

    @property
    def is_cut(self) -> bool:
        """Whether there are more cases of a kind than are looked at."""
        return any(len(cases) > MAX_CASES for cases in self._made)

    @cached_property
    def cases(self) -> tuple[Case, ...]:
        """All cases, those that others follow from first."""
        found = [case for cases in self._made for case in cases[:MAX_CASES]]
        if self._is_running:
            found = [
                case
                for case in found
                if case.code[0] != codes.CRASH or case.code == codes.HARDWARE_ERROR
            ]
        return tuple(sorted(found, key=lambda case: case.tier))

    @cached_property
    def roots(self) -> tuple[Case, ...]:
        """The cases that follow from no other; more than one when nothing tells which was first.

        Where there are several, each is only possible, and none blames a rank or a host: all but
        one of them would be innocent. ``details["candidates"]`` names them.
        """
        causes = [case for case in self.cases if case.tier < NOTE]
        known = self._choose_supported(causes)
        roots = [case for case in known if not any(self._explains(other, case) for other in known)]
        roots = _fold_witnesses(_drop_doubted(roots))
        if len(roots) > 1:
            roots = _prefer_specific(_prefer_named(self._count_votes(roots)))
        return tuple(roots) if len(roots) < 2 else tuple(_doubt(case) for case in roots)  # noqa: PLR2004

    @cached_property
    def notes(self) -> tuple[Case, ...]:
        """Cases that end no job, told beside what did."""
        return tuple(case for case in self.cases if case.tier >= NOTE)

    @property
    def is_tied(self) -> bool:
        """Whether several cases may be the root cause."""
        return len(self.roots) > 1

    def allows_live(self, code: str) -> bool:
        """Tell whether live evidence may decide: no line of a log tells of another cause."""
        root = next(iter(self.roots), None)
        if root is None or root.code == code or root.tier >= BUSY:
            return True
        return not root.lines and root.code in GENERIC

    def of(self, code: str) -> tuple[Case, ...]:
        """Return the cases of one code that do not follow from another case."""
        return tuple(case for case in (*self.roots, *self.notes) if case.code == code)

    def _choose_supported(self, causes: list[Case]) -> list[Case]:
        """Leave out what happened beside the job: what ranks felt goes before what was near."""
        linked = [case for case in causes if case.support >= LINKED]
        if any(case.tier < BUSY for case in linked):
            return linked
        near = [case for case in causes if case.support >= NEAR]
        # Logs of machines alone tell what broke there, whatever it was to a job.
        return near if near or self.view.has_job_logs else causes

    def _explains(self, one: Case, other: Case) -> bool:
        """Tell whether a case follows from another one."""
        is_told = _entails(one, other)
        if is_told or _is_same_failure(one, other):
            return is_told or _order_kind(one) < _order_kind(other)
        if one is other or _entails(other, one) or self._precedes(other, one):
            return False
        if other.code == codes.PREEMPTED and one.tier < LOST and self._precedes(one, other):
            return True  # a job that has failed, or waits, is ended by its batch system later
        if other.tier >= BUSY or one.tier >= BUSY:
            return one.tier < other.tier
        if one.tier == OUTSIDE:
            is_first = other.tier == OUTSIDE and self._is_before(one, other)
            is_ended = one.ends_job and not other.ranks and self._precedes(one, other)
            is_preempted = one.code == codes.PREEMPTED
            return is_preempted or is_first or is_ended or _reaches(one, other)
        return other.tier > OUTSIDE and (one.tier < other.tier or self._precedes(one, other))

    def _precedes(self, one: Case, other: Case) -> bool:
        """Tell whether a case came before another one, by their clocks or in one log."""
        if one.tier >= LOST > other.tier:
            # Who notices that a peer is gone often says so before the peer says why it goes.
            return self._is_before(one, other, _TOLD_LATE_NS)
        return self._is_before(one, other) or (one.tier < BUSY and _stands_before(one, other))

    def _is_before(self, one: Case, other: Case, least_ns: int = 0) -> bool:
        apart = one.is_foreign != other.is_foreign
        later = other.time and replace(other.time, ns=other.time.ns - least_ns)
        return self.view.clocks.is_before(one.time, later, apart=apart)

    def _count_votes(self, roots: list[Case]) -> list[Case]:
        """Prefer the one case of a rank that peers name in what they print."""
        votes = self.view.votes
        counts = [sum(votes.get(rank, 0) for rank in case.ranks) for case in roots]
        best = max(counts)
        if best and counts.count(best) == 1 and sum(counts) == best:
            return [roots[counts.index(best)]]
        return roots


def _drop_doubted(roots: list[Case]) -> list[Case]:
    """Keep what is likely where anything is; what is only possible explains nothing better."""
    likely = [case for case in roots if case.confidence is not Confidence.POSSIBLE]
    return likely or roots


def _fold_witnesses(roots: list[Case]) -> list[Case]:
    """Make one case of those that tell the same of the same ranks: a kernel and a scheduler do."""
    found: dict[tuple[str, tuple[int, ...]], Case] = {}
    kept = list[Case]()
    for case in roots:
        key = case.code, case.ranks
        if not case.ranks:
            kept.append(case)
        elif key in found:
            first = found[key]
            found[key] = replace(first, lines=(*first.lines, *case.lines[:2]))
        else:
            found[key] = case
    return [*found.values(), *kept]


def _prefer_named(roots: list[Case]) -> list[Case]:
    """Prefer the one case that names a rank, where all tell of the same wait and none names others.

    A tool that asked all ranks and what the ranks print themselves tell of one stall twice.
    """
    named = [case for case in roots if case.ranks]
    is_wait = all(BUSY <= case.tier < LOST for case in roots)
    if len(named) != 1 or not is_wait or named[0].confidence is Confidence.POSSIBLE:
        return roots
    told = set(named[0].ranks)
    rest = [case for case in roots if case is not named[0]]
    return named if all(told <= _list_told(case) for case in rest) else roots


def _prefer_specific(roots: list[Case]) -> list[Case]:
    """Keep the case that tells more than who did not come, where all tell it of the same ranks."""
    is_wait = all(BUSY <= case.tier < LOST for case in roots)
    ranks = {frozenset(case.ranks) for case in roots}
    if not is_wait or len(ranks) != 1 or not roots[0].ranks:
        return roots
    telling = [case for case in roots if case.code != codes.RANK_NEVER_JOINED]
    return (telling or roots)[:1]


def _list_told(case: Case) -> set[int]:
    """Return the ranks that say what a case tells."""
    return {line.rank for line in case.lines} | set(case.victims)


def _entails(one: Case, other: Case) -> bool:
    """Tell whether a case says itself that the lines which tell of the other follow from it."""
    known = {id(event) for event in one.entails}
    return (
        one is not other
        and bool(known and other.lines)
        and all(id(event) in known for event in other.lines)
    )


def _is_same_failure(one: Case, other: Case) -> bool:
    """Tell whether two cases are about one failure of the same ranks, seen twice."""
    if one.tier >= BUSY or other.tier >= BUSY:
        return False
    if one.code == other.code and (one.tier == other.tier or len(one.ranks) > 1):
        return False  # what a machine tells of the device of a rank, its rank tells, too
    if one.code != other.code and not one.told_by.isdisjoint(other.told_by):
        return True
    return bool(one.ranks) and set(one.ranks) == set(other.ranks)


def _reaches(one: Case, other: Case) -> bool:
    """Tell whether a broken machine or lack of memory can be behind what ranks met."""
    if other.code == one.code and not other.ranks:
        # What a machine says of its device, and what is printed of the device in the job.
        return other.tier > OUTSIDE
    return bool(other.ranks) and other.tier > OUTSIDE and one.reach >= set(other.ranks)


def _stands_before(one: Case, other: Case) -> bool:
    """Tell whether one log has both, in this order, and no times that say otherwise."""
    if one.time and other.time:
        return False
    first, second = one.place, other.place
    return first[0] == second[0] != "" and 0 < first[1] < second[1]


def _order_kind(case: Case) -> tuple[int, bool, str]:
    return case.tier, case.code in GENERIC, case.code


def _doubt(case: Case) -> Case:
    """Make a case one of several that may be the cause, which blames nobody."""
    candidates = {"ranks": sorted(case.ranks), "nodes": sorted(case.nodes)}
    return replace(
        case,
        ranks=(),
        nodes=(),
        confidence=Confidence.POSSIBLE,
        details={**case.details, "candidates": candidates},
    )
