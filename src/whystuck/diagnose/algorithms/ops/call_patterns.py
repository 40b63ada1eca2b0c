"""Where a rank breaks its own habit: the calls it has made, step after step, in one order.

Training repeats a step. The ops of a rank, those of all its groups in the order of issue, have a
period, and the ops of one period tell which op comes next. Peers are not needed for that, nor
call sites, nor what the device did: a host that runs ahead of its device shows the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from whystuck.diagnose.algorithms.ops.alignment import comparable_sizes
from whystuck.diagnose.algorithms.ops.divergence_kinds import DivergenceKind
from whystuck.diagnose.algorithms.ops.progress import list_ranks, slice_rank
from whystuck.diagnose.algorithms.stacks.frames import is_user_frame
from whystuck.evidence.ops.collectives import BoolColumn, Collectives, IntColumn

UNKNOWN, KNOWN, BROKEN = 0, 1, 2
# A period is looked for among all lags on so many ranks; others mostly have one of theirs.
_MAX_SEARCHES = 64
_MIN_SHARE = 0.5
_BASE = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class CallPattern:
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
class PatternBreak:
    """One break of a habit: what was done, and an earlier row of what was expected there.

    ``way`` is None when two calls changed places. ``is_clear`` is false when too few calls came
    after it to tell one way from another. ``is_ahead`` says that what was done is a call to which
    all ranks come; it is clear where the source shows how the expected one may be left out.
    """

    rank: int
    index: int
    row: int
    expected_row: int
    way: DivergenceKind | None
    is_clear: bool
    is_ahead: bool = False


def learn_habits(table: Collectives, min_share: float = _MIN_SHARE) -> dict[int, CallPattern]:
    """Find the habit of each rank that has one.

    Args:
        table: All ops.
        min_share: The share of its calls that must repeat without a break.

    Returns:
        The habits by rank; ranks whose calls do not repeat in what the ring holds have none.
    """
    calls = _number_calls(table)
    habits: dict[int, CallPattern] = {}
    hints: list[int] = []
    searches = 0
    for rank in list_ranks(table):
        own = slice_rank(table, rank)
        mine = calls[own]
        period = next((hint for hint in hints if _fits(mine, hint, min_share)), 0)
        if not period and searches < _MAX_SEARCHES:
            searches += 1
            period = _find_period(mine, min_share)
            hints += [period] if period else []
        if period:
            contexts, states = _learn(mine, period)
            habits[rank] = CallPattern(rank, own.start, mine, period, contexts, states)
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


def _fits(calls: IntColumn, period: int, min_share: float) -> bool:
    if len(calls) < 2 * period:
        return False
    run = _measure_run(calls, period)
    return run >= period and run + period >= min_share * len(calls)


def _find_period(calls: IntColumn, min_share: float) -> int:
    """Find the lag at which the most calls repeat without a break; 0 when nothing repeats."""
    best, covered = 0, 0
    for lag in range(1, len(calls) // 2 + 1):
        run = _measure_run(calls, lag)
        if run >= lag and run + lag > covered:
            best, covered = lag, run + lag
            if covered == len(calls):
                break
    # In the first steps, two equal calls in a row are all that repeats.
    return best if covered >= min_share * len(calls) else 0


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
