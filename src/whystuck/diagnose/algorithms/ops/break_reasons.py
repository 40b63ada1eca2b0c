"""Why a rank broke its own habit, as far as the lines of its calls and their order tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property

from whystuck.diagnose.algorithms.ops.alignment import comparable_sizes
from whystuck.diagnose.algorithms.ops.branch_points import find_way_ahead, is_own
from whystuck.diagnose.algorithms.ops.call_patterns import CallPattern, PatternBreak
from whystuck.diagnose.algorithms.ops.divergence_kinds import DivergenceKind
from whystuck.diagnose.algorithms.source.branches import Relation, relate_sites
from whystuck.diagnose.algorithms.source.reach import (
    Reach,
    find_reach,
    is_avoidable,
    is_conditional,
)
from whystuck.diagnose.algorithms.stacks.frames import select_user_frames
from whystuck.evidence.ops.collectives import Collectives, Frame

# So many calls in a row may be left out or added at once.
_MAX_SHIFT = 16
_SWAPPED_OPS = 2


def list_lapses(
    table: Collectives, habits: Mapping[int, CallPattern], sources: Mapping[str, str]
) -> Iterator[PatternBreak]:
    """Tell what each break of a habit is.

    Args:
        table: All ops.
        habits: The habits by rank.
        sources: Text of the user's files by path.

    Yields:
        The breaks that can be read as one kind of mistake.
    """
    for habit in habits.values():
        for index in habit.breaks:
            lapse = _explain(table, habit, index, sources)
            if lapse is not None:
                yield lapse


def _explain(
    table: Collectives, habit: CallPattern, index: int, sources: Mapping[str, str]
) -> PatternBreak | None:
    """Find the shortest change of the expected calls that makes them those that came."""
    before = habit.find_before(index)
    row, expected_row = habit.start + index, habit.start + before
    expected = habit.calls[before:index].tolist()[: 2 * habit.period]
    came = habit.calls[index:].tolist()[: 2 * habit.period]
    lapse = PatternBreak(habit.rank, index, row, expected_row, None, len(came) > _SWAPPED_OPS)
    changed = _name_change(table, row, expected_row)
    if changed is not None and len(came) > 1 and _is_start(came[1:], expected[1:]):
        return replace(lapse, way=changed)
    found = _explain_by_lines(lapse, habit, came, expected, _Lines(table, lapse, sources))
    if found is not None:
        return found
    way = _find_shift(came, expected)
    if way is not DivergenceKind.OP:
        return replace(lapse, way=way)
    if changed is not None and _is_start(came[1:], expected[1:]):
        return replace(lapse, way=changed)
    return replace(lapse, way=DivergenceKind.EXTRA) if len(came) == 1 else None


def _explain_by_lines(
    lapse: PatternBreak, habit: CallPattern, came: list[int], expected: list[int], lines: _Lines
) -> PatternBreak | None:
    """Explain a break by the lines of the two calls, as far as that goes."""
    before = habit.calls[: lapse.index]
    is_new = not (before == came[0]).any()
    # What the rank does next is not known where it is blocked at once.
    is_blocked = len(came) == 1
    if lines.is_transfer:
        # Peers differ by rank: one more than before is no sign that something was left out.
        is_more = is_blocked and (is_new or came[0] == int(before[-1]))
        return replace(lapse, way=DivergenceKind.EXTRA) if is_more else None
    if is_new:
        return _explain_new(lapse, lines, came, expected)
    if is_blocked and lines.may_be_swapped(expected, came[0]):
        return lapse
    is_shifted = _find_shift(came, expected) is not DivergenceKind.OP
    return _explain_ahead(lapse, lines) if is_blocked and not is_shifted else None


def _find_shift(came: list[int], expected: list[int]) -> DivergenceKind | None:
    """Find by how many calls one list is behind the other; None for two that changed places.

    ``OP`` stands for lists that are not shifted.
    """
    is_swapped = came[:_SWAPPED_OPS] == expected[1::-1] and _is_start(came[2:], expected[2:])
    for shift in range(1, _MAX_SHIFT + 1):
        if _is_equal(came, expected[shift:]):
            return DivergenceKind.SKIPPED
        if _is_equal(came[shift:], expected):
            return DivergenceKind.EXTRA
        if is_swapped:
            return None
    return DivergenceKind.OP


def _explain_new(
    lapse: PatternBreak, lines: _Lines, came: list[int], expected: list[int]
) -> PatternBreak | None:
    """Explain a call that the rank has never made before by the source, as far as that goes."""
    later = range(lapse.expected_row + 1, lapse.expected_row + len(expected))
    if lines.is_other_branch and any(lines.has_moved_from(row) for row in later):
        return lapse
    is_alone = len(came) == 1 or _find_shift(came, expected) is DivergenceKind.EXTRA
    if is_alone and is_own(lines.relation, lines.reach):
        return replace(lapse, way=DivergenceKind.EXTRA, is_clear=True)
    return _explain_ahead(lapse, lines)


def _explain_ahead(lapse: PatternBreak, lines: _Lines) -> PatternBreak | None:
    way = find_way_ahead(lines.relation, lines.reach)
    if way is None:
        return None
    return replace(lapse, way=way, is_ahead=True, is_clear=lines.is_avoidable)


class _Lines:
    """How the line of a call that came relates to that of the one which was expected."""

    def __init__(self, table: Collectives, lapse: PatternBreak, sources: Mapping[str, str]) -> None:
        self._table, self._row, self._expected_row = table, lapse.row, lapse.expected_row
        self._sources = sources
        self._sites = self._find_site(lapse.row), self._find_site(lapse.expected_row)

    def _find_site(self, row: int) -> tuple[Frame, ...]:
        return select_user_frames(self._table.sites[int(self._table.site[row])].frames)

    @cached_property
    def relation(self) -> Relation:
        """How the line that came relates to the expected one."""
        return relate_sites(*self._sites, self._sources)

    @cached_property
    def reach(self) -> Reach:
        """Who comes to the line that came."""
        return find_reach(*self._sites, self._sources)

    @property
    def is_transfer(self) -> bool:
        """Whether the call that came is a send or a receive."""
        return bool(self._table.is_p2p[self._row])

    @property
    def is_avoidable(self) -> bool:
        """Whether some ranks may come past the expected call."""
        return is_avoidable(self._sites[1], self._sites[0], self._sources)

    @property
    def _is_in_other_group(self) -> bool:
        group = self._table.group
        return int(group[self._row]) != int(group[self._expected_row])

    @property
    def is_other_branch(self) -> bool:
        """Whether the call came in another branch, and in another group, than the expected one."""
        return self._is_in_other_group and self.relation is Relation.EXCLUSIVE

    def has_moved_from(self, row: int) -> bool:
        """Tell whether a call that was expected later is the one that came, at another line."""
        table = self._table
        ops = {table.forms[int(table.form[one])].op for one in (row, self._row)}
        return len(ops) == 1 and int(table.group[row]) == int(table.group[self._row])

    def may_be_swapped(self, expected: list[int], came: int) -> bool:
        """Tell whether a call came before others of its line, which goes through several groups.

        Not where the source shows a condition below which such a call may be left out.
        """
        site = self._sites[0]
        if not site or not self._is_in_other_group or came not in expected:
            return False
        between = range(self._expected_row, self._expected_row + expected.index(came))
        is_one_line = all(self._find_site(row) == site for row in between)
        return is_one_line and not is_conditional(site, self._sources)


def _is_equal(first: list[int], second: list[int]) -> bool:
    """Tell whether two lists agree as far as both go, and both go somewhere."""
    return bool(first) and bool(second) and _is_start(first, second)


def _is_start(first: list[int], second: list[int]) -> bool:
    return all(left == right for left, right in zip(first, second, strict=False))


def _name_change(table: Collectives, row: int, expected_row: int) -> DivergenceKind | None:
    """Name what differs between a call and the one that was expected in its place, at one line."""
    if int(table.group[row]) != int(table.group[expected_row]):
        return None
    sites = (table.sites[int(table.site[one])].frames for one in (row, expected_row))
    if len({tuple((frame.file, frame.line) for frame in frames) for frames in sites}) > 1:
        return None
    form, expected = (table.forms[int(table.form[one])] for one in (row, expected_row))
    if form.op != expected.op:
        return DivergenceKind.OP
    if comparable_sizes(form) != comparable_sizes(expected):
        return DivergenceKind.SHAPE
    return DivergenceKind.DTYPE if form.input_dtypes != expected.input_dtypes else None
