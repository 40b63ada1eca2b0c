"""Where a rank breaks its own habit: the calls it has made, step after step, in one order.

Training repeats a step. The ops of a rank, those of all its groups in the order of issue, have a
period, and the ops of one period tell which op comes next. Peers are not needed for that, nor
call sites, nor what the device did: a host that runs ahead of its device shows the same order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from whystuck.diagnose.algorithms.ops.alignment import comparable_sizes
from whystuck.diagnose.algorithms.ops.divergence_kinds import Way, find_way_ahead, is_own
from whystuck.diagnose.algorithms.ops.progress import list_ranks, slice_rank
from whystuck.diagnose.algorithms.source.branches import Relation, relate_sites
from whystuck.diagnose.algorithms.source.reach import (
    Reach,
    find_reach,
    is_avoidable,
    is_conditional,
)
from whystuck.diagnose.algorithms.stacks.frames import is_user_frame, select_user_frames
from whystuck.evidence.ops.collectives import BoolColumn, Collectives, Frame, IntColumn

UNKNOWN, KNOWN, BROKEN = 0, 1, 2
# So many calls in a row may be left out or added at once.
_MAX_SHIFT = 16
# A period is looked for among all lags on so many ranks; others mostly have one of theirs.
_MAX_SEARCHES = 64
_MIN_SHARE = 0.5
_BASE = np.uint64(0x9E3779B97F4A7C15)
_SWAPPED_OPS = 2


@dataclass(frozen=True)
class Habit:
    """The calls of one rank as numbers, equal for equal calls, and which of them were expected.

    ``start`` is the row of the first call. ``states`` has ``KNOWN`` where the calls of a period
    before are followed as they were earlier, ``BROKEN`` where they were never followed so, and
    ``UNKNOWN`` where they are new.
    """

    rank: int
    start: int
    calls: IntColumn
    period: int
    contexts: NDArray[np.uint64]
    states: NDArray[np.int8]

    @cached_property
    def breaks(self) -> list[int]:
        """The indexes of the calls that break the habit."""
        return [int(index) for index in np.flatnonzero(self.states == BROKEN)]

    @property
    def is_even(self) -> bool:
        """Whether the first calls are repeated by those that follow."""
        first, second = self.calls[: self.period], self.calls[self.period : 2 * self.period]
        return bool(np.array_equal(first, second))

    def find_before(self, index: int) -> int:
        """Return the last call before that came after the same calls as this one."""
        return int(np.flatnonzero(self.contexts[:index] == self.contexts[index])[-1])


@dataclass(frozen=True)
class Lapse:
    """One break of a habit: what was done, and an earlier row of what was expected there.

    ``way`` is None when two calls changed places. ``is_clear`` is false when too few calls came
    after it to tell one way from another. ``is_ahead`` says that what was done is a call to which
    all ranks come; it is clear where the source shows how the expected one may be left out.
    """

    rank: int
    index: int
    row: int
    expected_row: int
    way: Way | None
    is_clear: bool
    is_ahead: bool = False


def learn_habits(table: Collectives) -> dict[int, Habit]:
    """Find the habit of each rank that has one.

    Args:
        table: All ops.

    Returns:
        The habits by rank; ranks whose calls do not repeat in what the ring holds have none.
    """
    calls = _number_calls(table)
    habits: dict[int, Habit] = {}
    hints: list[int] = []
    searches = 0
    for rank in list_ranks(table):
        own = slice_rank(table, rank)
        mine = calls[own]
        period = next((hint for hint in hints if _fits(mine, hint)), 0)
        if not period and searches < _MAX_SEARCHES:
            searches += 1
            period = _find_period(mine)
            hints += [period] if period else []
        if period:
            contexts, states = _learn(mine, period)
            habits[rank] = Habit(rank, own.start, mine, period, contexts, states)
    return habits


def _learn(calls: IntColumn, period: int) -> tuple[NDArray[np.uint64], NDArray[np.int8]]:
    """Return what came before each call, as numbers, and which calls were expected."""
    if bool((calls[period:] == calls[:-period]).all()):
        # Most ranks: what never breaks needs no search for breaks.
        states = np.full(len(calls), KNOWN, dtype=np.int8)
        states[: 2 * period] = UNKNOWN
        return np.empty(0, dtype=np.uint64), states
    contexts = _hash_contexts(calls, period)
    return contexts, _judge(calls, contexts, period)


def has_many_recorders(table: Collectives) -> bool:
    """Tell whether a rank has two dumps: nothing tells the order of an op of each."""
    return len({dump.rank for dump in table.dumps}) < len(table.dumps)


def _number_calls(table: Collectives) -> IntColumn:
    """Number the calls: equal ones come from one place, with one op, on one group."""
    forms: dict[object, int] = {}
    form_numbers = [
        forms.setdefault(
            (form.op, comparable_sizes(form), form.input_dtypes, form.source, form.target),
            len(forms),
        )
        for form in table.forms
    ]
    sites: dict[object, int] = {}
    site_numbers = [
        sites.setdefault(
            tuple((frame.file, frame.line) for frame in site.frames if is_user_frame(frame)),
            len(sites),
        )
        for site in table.sites
    ]
    form = np.array(form_numbers or [0], dtype=np.int64)[table.form]
    site = np.array(site_numbers or [0], dtype=np.int64)[table.site]
    return np.asarray((table.group * len(forms) + form) * max(1, len(sites)) + site)


def _measure_run(calls: IntColumn, lag: int) -> int:
    """Return the longest run of calls that are as they were some calls earlier."""
    other = np.flatnonzero(calls[lag:] != calls[:-lag])
    edges = np.concatenate([[-1], other, [len(calls) - lag]])
    return int(np.diff(edges).max()) - 1


def _fits(calls: IntColumn, period: int) -> bool:
    if len(calls) < 2 * period:
        return False
    run = _measure_run(calls, period)
    return run >= period and run + period >= _MIN_SHARE * len(calls)


def _find_period(calls: IntColumn) -> int:
    """Find the lag at which the most calls repeat without a break; 0 when nothing repeats."""
    best, covered = 0, 0
    for lag in range(1, len(calls) // 2 + 1):
        run = _measure_run(calls, lag)
        if run >= lag and run + lag > covered:
            best, covered = lag, run + lag
            if covered == len(calls):
                break
    # In the first steps, two equal calls in a row are all that repeats.
    return best if covered >= _MIN_SHARE * len(calls) else 0


def _hash_contexts(calls: IntColumn, period: int) -> NDArray[np.uint64]:
    """Give equal sequences of a period of calls the same number; that of a call is what is before.

    Calls at the start, with less than a period before them, get 0.
    """
    size = len(calls)
    with np.errstate(over="ignore"):
        powers = np.cumprod(np.full(size + 1, _BASE, dtype=np.uint64))
        inverse = np.uint64(pow(int(_BASE), -1, 1 << 64))
        backs = np.cumprod(np.full(size + 1, inverse, dtype=np.uint64))
        parts = (calls.astype(np.uint64) + np.uint64(1)) * powers[:size]
        sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(parts, dtype=np.uint64)])
        windows = (sums[period:size] - sums[: size - period]) * backs[: size - period]
    return np.concatenate([np.zeros(min(period, size), dtype=np.uint64), windows])


def _judge(calls: IntColumn, contexts: NDArray[np.uint64], period: int) -> NDArray[np.int8]:
    states = np.full(len(calls), UNKNOWN, dtype=np.int8)
    is_known = _is_repeated(contexts)
    with np.errstate(over="ignore"):
        pairs = contexts * _BASE + calls.astype(np.uint64)
    states[is_known] = np.where(_is_repeated(pairs)[is_known], KNOWN, BROKEN)
    states[:period] = UNKNOWN
    return states


def _is_repeated(values: NDArray[np.uint64]) -> BoolColumn:
    """Tell which values came before."""
    _, first = np.unique(values, return_index=True)
    repeated = np.ones(len(values), dtype=np.bool_)
    repeated[first] = False
    return repeated


def list_lapses(
    table: Collectives, habits: Mapping[int, Habit], sources: Mapping[str, str]
) -> Iterator[Lapse]:
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
    table: Collectives, habit: Habit, index: int, sources: Mapping[str, str]
) -> Lapse | None:
    """Find the shortest change of the expected calls that makes them those that came."""
    before = habit.find_before(index)
    row, expected_row = habit.start + index, habit.start + before
    expected = habit.calls[before:index].tolist()[: 2 * habit.period]
    came = habit.calls[index:].tolist()[: 2 * habit.period]
    lapse = Lapse(habit.rank, index, row, expected_row, None, len(came) > _SWAPPED_OPS)
    changed = _name_change(table, row, expected_row)
    if changed is not None and len(came) > 1 and _is_start(came[1:], expected[1:]):
        return replace(lapse, way=changed)
    found = _explain_by_lines(lapse, habit, came, expected, _Lines(table, lapse, sources))
    if found is not None:
        return found
    way = _find_shift(came, expected)
    if way is not Way.OP:
        return replace(lapse, way=way)
    if changed is not None and _is_start(came[1:], expected[1:]):
        return replace(lapse, way=changed)
    return replace(lapse, way=Way.EXTRA) if len(came) == 1 else None


def _explain_by_lines(
    lapse: Lapse, habit: Habit, came: list[int], expected: list[int], lines: _Lines
) -> Lapse | None:
    """Explain a break by the lines of the two calls, as far as that goes."""
    before = habit.calls[: lapse.index]
    is_new = not (before == came[0]).any()
    # What the rank does next is not known where it is blocked at once.
    is_blocked = len(came) == 1
    if lines.is_transfer:
        # Peers differ by rank: one more than before is no sign that something was left out.
        is_more = is_blocked and (is_new or came[0] == int(before[-1]))
        return replace(lapse, way=Way.EXTRA) if is_more else None
    if is_new:
        return _explain_new(lapse, lines, came, expected)
    if is_blocked and lines.may_be_swapped(expected, came[0]):
        return lapse
    is_shifted = _find_shift(came, expected) is not Way.OP
    return _explain_ahead(lapse, lines) if is_blocked and not is_shifted else None


def _find_shift(came: list[int], expected: list[int]) -> Way | None:
    """Find by how many calls one list is behind the other; None for two that changed places.

    ``OP`` stands for lists that are not shifted.
    """
    is_swapped = came[:_SWAPPED_OPS] == expected[1::-1] and _is_start(came[2:], expected[2:])
    for shift in range(1, _MAX_SHIFT + 1):
        if _is_equal(came, expected[shift:]):
            return Way.SKIPPED
        if _is_equal(came[shift:], expected):
            return Way.EXTRA
        if is_swapped:
            return None
    return Way.OP


def _explain_new(lapse: Lapse, lines: _Lines, came: list[int], expected: list[int]) -> Lapse | None:
    """Explain a call that the rank has never made before by the source, as far as that goes."""
    later = range(lapse.expected_row + 1, lapse.expected_row + len(expected))
    if lines.is_other_branch and any(lines.has_moved_from(row) for row in later):
        return lapse
    is_alone = len(came) == 1 or _find_shift(came, expected) is Way.EXTRA
    if is_alone and is_own(lines.relation, lines.reach):
        return replace(lapse, way=Way.EXTRA, is_clear=True)
    return _explain_ahead(lapse, lines)


def _explain_ahead(lapse: Lapse, lines: _Lines) -> Lapse | None:
    way = find_way_ahead(lines.relation, lines.reach)
    if way is None:
        return None
    return replace(lapse, way=way, is_ahead=True, is_clear=lines.is_avoidable)


class _Lines:
    """How the line of a call that came relates to that of the one which was expected."""

    def __init__(self, table: Collectives, lapse: Lapse, sources: Mapping[str, str]) -> None:
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


def _name_change(table: Collectives, row: int, expected_row: int) -> Way | None:
    """Name what differs between a call and the one that was expected in its place, at one line."""
    if int(table.group[row]) != int(table.group[expected_row]):
        return None
    sites = (table.sites[int(table.site[one])].frames for one in (row, expected_row))
    if len({tuple((frame.file, frame.line) for frame in frames) for frames in sites}) > 1:
        return None
    form, expected = (table.forms[int(table.form[one])] for one in (row, expected_row))
    if form.op != expected.op:
        return Way.OP
    if comparable_sizes(form) != comparable_sizes(expected):
        return Way.SHAPE
    return Way.DTYPE if form.input_dtypes != expected.input_dtypes else None
