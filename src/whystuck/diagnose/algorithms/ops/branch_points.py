"""How two classes of ranks left their common path, told at the line where they part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from whystuck.diagnose.algorithms.ops.alignment import (
    ABSENT,
    Alignment,
    find_successors,
    matches_shifted,
)
from whystuck.diagnose.algorithms.ops.divergence_kinds import (
    AHEAD,
    BEHIND,
    BY_CONDITION,
    BY_HISTORY,
    BY_ORDER,
    BY_RANK,
    BY_RANK_OF_OTHERS,
    BY_SHIFT,
    BY_SHIFT_AND_HISTORY,
    BY_SOURCE,
    SWAPPED,
    DivergenceKind,
)
from whystuck.diagnose.algorithms.ops.groups import FIRST_SEQ
from whystuck.diagnose.algorithms.source.branches import Relation, relate_sites
from whystuck.diagnose.algorithms.source.reach import Reach, find_reach, is_later
from whystuck.diagnose.algorithms.stacks.frames import select_user_frames
from whystuck.evidence.ops.collectives import Frame


@dataclass(frozen=True)
class BranchPoint:
    """Two classes of ranks at one line: what they did there, before and after."""

    alignment: Alignment
    index: int
    odd: tuple[int, ...]
    rest: tuple[int, ...]
    sources: Mapping[str, str]

    @property
    def odd_keys(self) -> list[int]:
        """Keys of the odd class from this line on."""
        return self.alignment.keys_of(self.odd[0], self.index)

    @property
    def rest_keys(self) -> list[int]:
        """Keys of the rest from this line on."""
        return self.alignment.keys_of(self.rest[0], self.index)

    @property
    def history(self) -> list[int]:
        """Keys that the rest used before."""
        return self._read_past(self.rest[0])

    @property
    def odd_history(self) -> list[int]:
        """Keys that the odd class used before."""
        return self._read_past(self.odd[0])

    @property
    def past(self) -> set[int]:
        """Keys that any rank of the two classes used before."""
        return set(self.history) | set(self._read_past(self.odd[0]))

    def is_new(self, keys: Sequence[int]) -> bool:
        """Tell whether a call that is not known from before is new, rather than lost.

        A ring that lost its oldest ops may have lost that call with them: not so when all that
        comes after it is known.
        """
        return self._is_whole or self.past.issuperset(keys[1:])

    def has_past(self, way: DivergenceKind | None) -> bool:
        """Tell whether what came before is known, so that it shows which of two classes is right.

        A call that one class alone ever makes is an extra one in any case.
        """
        odd, rest = self.odd_keys, self.rest_keys
        if way is DivergenceKind.EXTRA and self._is_whole and odd[0] not in rest:
            return True
        return self.past.issuperset([*odd[1:], *rest[1:]])

    @property
    def _is_whole(self) -> bool:
        return self.alignment.seqs[0] <= FIRST_SEQ

    def _read_past(self, rank: int) -> list[int]:
        column = self.alignment.keys[: self.index, self.alignment.ranks.index(rank)].tolist()
        return [key for key in column if key != ABSENT]

    @cached_property
    def sites(self) -> tuple[tuple[Frame, ...], tuple[Frame, ...]]:
        """The user's frames of the odd class' call and of that of the rest."""
        rows = self.alignment.rows_at(self.index)
        odd, rest = (_site(self.alignment, rows[ranks[0]]) for ranks in (self.odd, self.rest))
        return odd, rest

    @cached_property
    def relation(self) -> Relation:
        """How the odd class' line relates to that of the rest."""
        return relate_sites(*self.sites, self.sources)

    @cached_property
    def reach(self) -> Reach:
        """Who comes to the odd class' line, other than to that of the rest."""
        return find_reach(*self.sites, self.sources)

    @cached_property
    def reach_of_rest(self) -> Reach:
        """Who comes to the line of the rest, other than to that of the odd class."""
        return find_reach(self.sites[1], self.sites[0], self.sources)


_Finder = Callable[[BranchPoint], tuple[DivergenceKind | None, str]]


def find_way(fork: BranchPoint) -> tuple[DivergenceKind | None, str]:
    """Tell how the odd class left the path of the rest, and how that is known."""
    finders: Sequence[_Finder] = (
        _by_rank,
        _by_form,
        _by_inner_loop,
        _by_reach,
        _by_shift_history,
        _by_source,
        _by_history,
        _by_shift,
        _by_order,
    )
    for finder in finders:
        way, sure = finder(fork)
        if way is not None:
            return way, sure
    return None, ""


def _by_rank(fork: BranchPoint) -> tuple[DivergenceKind | None, str]:
    # A call that the others made before is not that rank's own, whatever the branch asks for.
    if fork.odd_keys[0] not in fork.history and is_own(fork.relation, fork.reach):
        by_both = fork.reach_of_rest is Reach.BY_RANK
        return (None, "") if by_both else (DivergenceKind.EXTRA, BY_RANK)
    is_theirs = fork.relation is Relation.B_EXTRA_BY_RANK
    if is_theirs and fork.rest_keys[0] not in fork.odd_history:
        return DivergenceKind.SKIPPED, BY_RANK_OF_OTHERS
    return None, ""


_UNORDERED = frozenset({Relation.UNKNOWN, Relation.SAME_LINE, Relation.EXCLUSIVE})
_AFTER_LOOP = frozenset({Relation.A_AFTER_LOOP, Relation.A_AFTER_INNER_LOOP})


def is_own(relation: Relation, reach: Reach) -> bool:
    """Tell whether a call is made by some ranks alone, as a condition asks for the rank."""
    return relation is Relation.A_EXTRA_BY_RANK or (
        reach is Reach.BY_RANK and relation not in _UNORDERED
    )


def find_way_ahead(relation: Relation, reach: Reach) -> DivergenceKind | None:
    """Tell what a rank left out that is at a call to which all come; None where they may not."""
    if reach is not Reach.ALL or relation in _UNORDERED:
        return None
    return DivergenceKind.LEFT if relation in _AFTER_LOOP else DivergenceKind.SKIPPED


def _by_reach(fork: BranchPoint) -> tuple[DivergenceKind | None, str]:
    """Take a call that is new, to which all come after the others, for no extra one."""
    odd, rest = fork.odd_keys[0], fork.rest_keys[0]
    if odd not in fork.past and (rest in fork.past or is_later(*fork.sites)):
        # After the whole loop, nothing is left to make up for.
        is_over = fork.relation is Relation.A_AFTER_LOOP
        return find_way_ahead(fork.relation, fork.reach), BY_SOURCE if is_over else AHEAD
    if rest not in fork.past and odd in fork.past and fork.reach_of_rest is Reach.ALL:
        is_behind = fork.relation in {Relation.A_FIRST, Relation.B_EXTRA}
        return (DivergenceKind.EXTRA, BEHIND) if is_behind else (None, "")
    return None, ""


def _by_form(fork: BranchPoint) -> tuple[DivergenceKind | None, str]:
    """Take two calls of one place, or of no known one, for each other's counterpart.

    That is what they are when what follows them runs in step.
    """
    rows = fork.alignment.rows_at(fork.index)
    odd_site, rest_site = (_site(fork.alignment, rows[ranks[0]]) for ranks in (fork.odd, fork.rest))
    if odd_site != rest_site or fork.odd_keys[0] in fork.past:
        return None, ""
    is_in_step = all(
        left == right for left, right in zip(fork.odd_keys[1:], fork.rest_keys[1:], strict=False)
    )
    return (DivergenceKind.OP, BY_HISTORY) if is_in_step else (None, "")


def _by_inner_loop(fork: BranchPoint) -> tuple[DivergenceKind | None, str]:
    """Judge a class that is past a loop which the other is in, both inside an outer loop.

    Who comes out of the inner loop after as many rounds as before is right.
    """
    relation = fork.relation
    odd, rest = fork.odd_keys[0], fork.rest_keys[0]
    if relation is Relation.A_AFTER_INNER_LOOP:
        known = odd in fork.past and not _is_full_run(fork, rest, odd)
        return (DivergenceKind.LEFT, BY_SOURCE) if known else (None, "")
    if relation is Relation.B_AFTER_INNER_LOOP and rest in fork.past:
        if _is_past_loop(fork):
            return DivergenceKind.SKIPPED, BY_SOURCE
        if not _is_full_run(fork, odd, rest):
            return DivergenceKind.LEFT, SWAPPED
        # One more round, or the first one after a call that was left out: not one that all make.
        is_one_more = fork.reach_of_rest is Reach.ALL
        return (
            (DivergenceKind.EXTRA, BY_CONDITION)
            if is_one_more
            else (DivergenceKind.SKIPPED, BY_SOURCE)
        )
    return None, ""


def _is_full_run(fork: BranchPoint, inside: int, after: int) -> bool:
    """Tell whether the loop's op came as often since the last ``after`` as before that."""
    history = fork.history
    if after not in history:
        return False
    last = len(history) - 1 - history[::-1].index(after)
    start = (
        len(history[:last]) - history[:last][::-1].index(after) if after in history[:last] else 0
    )
    return history[last:].count(inside) >= history[start:last].count(inside) > 0


def _is_past_loop(fork: BranchPoint) -> bool:
    """Tell whether both classes had left the inner loop of the odd class' call before it."""
    if not fork.index:
        return False
    before = fork.alignment.rows_at(fork.index - 1)
    odd = fork.odd[0]
    if odd not in before:
        return False
    relation = relate_sites(_site(fork.alignment, before[odd]), fork.sites[0], fork.sources)
    return relation is Relation.A_AFTER_INNER_LOOP


def _by_source(fork: BranchPoint) -> tuple[DivergenceKind | None, str]:
    relation = fork.relation
    odd, rest = fork.odd_keys, fork.rest_keys
    if relation is Relation.A_AFTER_LOOP:
        return DivergenceKind.LEFT, BY_SOURCE
    if relation is Relation.B_AFTER_LOOP:
        return DivergenceKind.LEFT, SWAPPED
    if relation in {Relation.EXCLUSIVE, Relation.SAME_LINE}:
        # A branch that returns early after an op of its own also looks exclusive.
        weight = BY_SOURCE if odd[0] not in fork.past or rest[0] in fork.past else BY_ORDER
        return DivergenceKind.OP, weight
    return _by_condition(fork)


def _by_condition(fork: BranchPoint) -> tuple[DivergenceKind | None, str]:
    """Judge a call below a condition of its own, be it further in, in what is called."""
    odd_is_new = fork.odd_keys[0] not in fork.past
    rest_is_new = fork.rest_keys[0] not in fork.past
    reaches = fork.reach, fork.reach_of_rest
    found = None
    if odd_is_new and fork.relation is Relation.A_EXTRA and fork.reach is not Reach.ALL:
        found = DivergenceKind.EXTRA, BY_SOURCE
    elif rest_is_new and fork.relation is Relation.B_EXTRA and reaches[1] is not Reach.ALL:
        found = DivergenceKind.SKIPPED, BY_SOURCE
    elif odd_is_new and reaches == (Reach.OPEN, Reach.ALL):
        found = DivergenceKind.EXTRA, BY_CONDITION
    elif rest_is_new and reaches == (Reach.ALL, Reach.OPEN):
        found = DivergenceKind.SKIPPED, BY_CONDITION
    return found or (None, "")


def _by_shift_history(fork: BranchPoint) -> tuple[DivergenceKind | None, str]:
    odd, rest, past = fork.odd_keys, fork.rest_keys, fork.past
    is_extra = matches_shifted(odd, rest)
    is_skipped = matches_shifted(rest, odd)
    if fork.relation is Relation.EXCLUSIVE:
        return None, ""
    if is_extra and not is_skipped and odd[0] not in past and fork.is_new(odd):
        return DivergenceKind.EXTRA, BY_SHIFT_AND_HISTORY
    if is_skipped and not is_extra and rest[0] in past:
        return DivergenceKind.SKIPPED, BY_SHIFT_AND_HISTORY
    return None, ""


def _by_history(fork: BranchPoint) -> tuple[DivergenceKind | None, str]:
    """Ask what normally comes here, and what normally comes after that."""
    odd, rest, past, history = fork.odd_keys[0], fork.rest_keys[0], fork.past, fork.history
    if odd not in past and rest in past:
        return DivergenceKind.EXTRA, BY_HISTORY
    normal = find_successors(history, history[-1]) if history else set()
    if rest in normal and odd in find_successors(history, rest):
        return DivergenceKind.SKIPPED, BY_HISTORY
    if rest not in past and odd in past and fork.relation is not Relation.A_FIRST:
        return DivergenceKind.SKIPPED, BY_HISTORY
    return None, ""


def _by_shift(fork: BranchPoint) -> tuple[DivergenceKind | None, str]:
    odd, rest = fork.odd_keys, fork.rest_keys
    is_extra, is_skipped = matches_shifted(odd, rest), matches_shifted(rest, odd)
    if is_extra == is_skipped:
        return None, ""
    return (DivergenceKind.EXTRA if is_extra else DivergenceKind.SKIPPED), BY_SHIFT


def _by_order(fork: BranchPoint) -> tuple[DivergenceKind | None, str]:
    relation = fork.relation
    if relation is Relation.A_FIRST:
        return DivergenceKind.EXTRA, BY_ORDER
    if relation is Relation.B_FIRST:
        return DivergenceKind.SKIPPED, BY_ORDER
    return None, ""


def _site(alignment: Alignment, row: int) -> tuple[Frame, ...]:
    table = alignment.table
    return select_user_frames(table.sites[int(table.site[row])].frames)


def is_by_rank(fork: BranchPoint) -> bool:
    """Tell whether one class makes a call alone, in a branch that asks for the rank."""
    return _by_rank(fork)[0] is not None
