"""Collectives that torch accepted and never issued: whom they keep waiting, and what follows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from whystuck.diagnose.algorithms.failures.causes import is_cascade
from whystuck.diagnose.context.facts import Facts
from whystuck.evidence.finding import Finding
from whystuck.evidence.live import FailedManager, PythonException

# torch's words for a wait for a lost call, and for the next manager of the group.
_LOST_WORK = ("on IllegalWork object", "non-empty op list at the start of coalescing")


class LossEffect(Enum):
    """What lost calls make of ranks that a finding then wrongly blames."""

    # Ranks that lost calls seem to be elsewhere, or to have left.
    ELSEWHERE = auto()
    # Ranks seem to part, or to wait in vain, in a group that lost calls.
    PARTED = auto()
    # torch refuses what ranks call later.
    RAISED = auto()


@dataclass(frozen=True)
class Losses:
    """What ranks lost.

    ``managers`` are the failed coalescing managers whose groups lost calls, ``victims`` the ranks
    that wait for those calls, or failed as they did not come. ``is_cause`` tells that the job
    hangs or died because of them; it may also go on, with values that were never exchanged.
    """

    managers: tuple[FailedManager, ...] = ()
    groups: frozenset[str] = frozenset()
    victims: frozenset[int] = frozenset()
    failed: frozenset[int] = frozenset()
    is_cause: bool = False

    @property
    def ranks(self) -> frozenset[int]:
        """The ranks that lost calls."""
        return frozenset(manager.rank for manager in self.managers)

    def explains(self, finding: Finding, effect: LossEffect | None) -> bool:
        """Tell whether a finding of another rule only follows from the lost calls."""
        if not self.is_cause:
            return False
        ranks = frozenset(finding.culprits.ranks)
        if effect is LossEffect.ELSEWHERE:
            return bool(ranks) and ranks <= self.ranks
        if effect is LossEffect.RAISED:
            return bool(self.failed) and ranks <= self.failed
        return effect is LossEffect.PARTED and not self.groups.isdisjoint(finding.culprits.groups)


def is_lost_work(item: PythonException) -> bool:
    """Tell whether an exception is torch's answer to the use of a call that it has lost."""
    return any(words in item.message for words in _LOST_WORK)


def find_losses(facts: Facts, *, has_other_cause: bool) -> Losses:
    """Find the lost calls that matter, and whether the job stopped because of them.

    Args:
        facts: The evidence.
        has_other_cause: Whether a rank failed for a reason of its own.

    Returns:
        The losses; none when no probe noted any.
    """
    managers = tuple(one for one in facts.evidence.failed_managers if _matters(one))
    if not managers:
        return Losses()
    ranks = {manager.rank for manager in managers}
    groups, victims = set(), set()
    for name, losers, members in _list_uneven(managers, facts):
        groups.add(name)
        victims |= _find_victims(facts, name, members) - losers
    raised = {rank: item for rank, item in facts.exceptions.by_rank.items() if is_lost_work(item)}
    failed = frozenset(raised) & ranks
    is_cause = (
        bool(victims or failed) and not has_other_cause and not facts.movement.has_moved_again
    )
    return Losses(managers, frozenset(groups), frozenset(victims), failed, is_cause)


def _matters(manager: FailedManager) -> bool:
    """Tell whether anything is wrong without the calls: a rank alone reduces with nobody."""
    is_alone = len(manager.members) == 1
    return not is_alone or any(calls.op != "all_reduce" for calls in manager.calls)


def _list_uneven(
    managers: Iterable[FailedManager], facts: Facts
) -> Iterable[tuple[str, frozenset[int], frozenset[int]]]:
    """Yield the name, the ranks that lost calls and the members of groups that others are in.

    How many calls each rank has lost does not matter: nothing keeps them in step any more.
    """
    by_group: dict[str, list[FailedManager]] = {}
    for manager in managers:
        by_group.setdefault(manager.group, []).append(manager)
    for name, own in by_group.items():
        # Groups of one name may be several, of different ranks.
        for members in dict.fromkeys(one.members for one in own):
            losers = frozenset(one.rank for one in own if one.members == members)
            everybody = members or facts.ranks.all
            if everybody - losers:
                yield name, losers, everybody


def _find_victims(facts: Facts, name: str, members: frozenset[int]) -> set[int]:
    waits = {wait.rank for wait in facts.waits.pending if wait.group.name == name}
    # A rank of which only the stack is known may wait in this group as in any other.
    unknown = facts.waits.waiting - {wait.rank for wait in facts.waits.pending}
    cut = {rank for rank, item in facts.exceptions.by_rank.items() if is_cascade(item)}
    return (waits | unknown | cut) & members
