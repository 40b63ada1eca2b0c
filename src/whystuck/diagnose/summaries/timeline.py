"""The last ops of each group around the place that matters, with ranks that did the same folded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from whystuck.diagnose.algorithms.ops.divergence import Divergence
from whystuck.diagnose.algorithms.ops.groups import GroupOps, collect_groups
from whystuck.diagnose.summaries.grid import NAMES, Grid, make_grid
from whystuck.diagnose.summaries.ops_view import ALL, DONE, END_UNKNOWN, View, tell_class
from whystuck.diagnose.summaries.transfers import list_transfers
from whystuck.evidence.finding import Finding
from whystuck.evidence.model import Evidence
from whystuck.evidence.ops.collectives import Collectives, IntColumn
from whystuck.evidence.ranks import format_ranks, parse_ranks
from whystuck.evidence.sections import RankClass, Timeline, TimelineOp

# A report of a thousand groups would show nothing.
_MAX_GROUPS = 16
_MAX_LOOKED_AT = 64


@dataclass(frozen=True)
class Parting:
    """Where the ranks of a group part, as a finding says it."""

    group: str
    members: frozenset[int]
    seq: int
    hard_seq: int


def find_parting(divergence: Divergence | None) -> Parting | None:
    """Return where the ranks part, of a divergence.

    Args:
        divergence: The divergence, when there is one.

    Returns:
        The place, or None.
    """
    if divergence is None:
        return None
    group = divergence.alignment.group
    return Parting(*_key(group), divergence.seq, divergence.hard_seq)


def build_timeline(
    table: Collectives,
    groups: Sequence[GroupOps],
    findings: Sequence[Finding],
    parting: Parting | None = None,
    view: View | None = None,
) -> list[Timeline]:
    """Show the ops around the divergence, or the last ones, for the groups that matter.

    Args:
        table: All ops.
        groups: The groups of the table.
        findings: What was found; the groups that it names come first.
        parting: Where the ranks of a group part, when they do.
        view: What to show.

    Returns:
        One timeline for each group in which an op is not done, or that a finding names; all
        groups when there are none of these.
    """
    named = {name for item in findings for name in item.culprits.groups}
    view = view or View()
    asked = [group for group in groups if _is_chosen(group, view)]
    chosen = _choose_groups(table, asked, named, parting)
    shown = _show_groups(table, chosen, named, parting, view)
    urgent = [item for item in shown if item.group in named or _is_open(item)]
    return (urgent or shown)[:_MAX_GROUPS]


def list_groups(
    evidence: Evidence,
    findings: Sequence[Finding] = (),
    parting: Parting | None = None,
    view: View | None = None,
) -> list[Timeline]:
    """Show the ops of all groups, those first that findings name or in which an op is not done.

    Args:
        evidence: All that is known.
        findings: What was found.
        parting: Where the ranks of a group part, when they do.
        view: What to show.

    Returns:
        One timeline for each group, and one for the transfers between ranks in each group.
    """
    table = evidence.collectives
    view = view or View()
    groups = [item for item in collect_groups(table, evidence.topology) if _is_chosen(item, view)]
    named = {name for item in findings for name in item.culprits.groups}
    return _show_groups(table, groups, named, parting, view)


def _choose_groups(
    table: Collectives, groups: Sequence[GroupOps], named: set[str], parting: Parting | None
) -> Sequence[GroupOps]:
    """Choose the groups to look at: a large job has thousands that all say the same."""
    if len(groups) <= _MAX_LOOKED_AT:
        return groups
    pending = np.flatnonzero(~table.done & ~table.is_p2p)
    since_ns = np.full(len(table.groups), np.iinfo(np.int64).max)
    np.minimum.at(since_ns, table.group[pending], table.created_ns[pending])

    def judge(group: GroupOps) -> tuple[bool, bool, int]:
        numbers = {int(table.group[rows[0]]) for rows in group.rows_by_rank.values()}
        first_ns = min((int(since_ns[number]) for number in numbers), default=since_ns.max())
        return _part(group, parting) is None, group.label not in named, int(first_ns)

    return sorted(groups, key=judge)[:_MAX_LOOKED_AT]


def _show_groups(
    table: Collectives,
    groups: Sequence[GroupOps],
    named: set[str],
    parting: Parting | None,
    view: View,
) -> list[Timeline]:
    by_urgency = []
    for group in groups:
        grid = make_grid(table, group, view.ranks)
        urgency = (_part(group, parting) is None, group.label not in named, grid.waiting_since_ns)
        by_urgency.append((urgency, _show(grid, view, parting)))
    by_urgency.sort(key=lambda item: item[0])
    made = [item for _, item in by_urgency if item.ops]
    made = sorted([*made, *list_transfers(table, view)], key=lambda item: not _is_open(item))
    return _fold(made) if view.fold else made


def _is_chosen(group: GroupOps, view: View) -> bool:
    if not group.rows_by_rank or (view.ranks and not group.members & set(view.ranks)):
        return False
    return view.has_group(group.name, group.desc)


def _is_open(item: Timeline) -> bool:
    return any(part.state not in {DONE, END_UNKNOWN} for op in item.ops for part in op.classes)


def _part(group: GroupOps, parting: Parting | None) -> Parting | None:
    """Return the place where the ranks part, if it is in this group."""
    return parting if parting and (parting.group, parting.members) == _key(group) else None


def _show(grid: Grid, view: View, parting: Parting | None) -> Timeline:
    table, group = grid.table, grid.group
    mine = _part(group, parting)
    lines = _choose_lines(grid, view.last, mine)
    columns = grid.find_columns(lines)
    bad = grid.mismatches
    teller = _Teller(table, grid, columns, stacks=view.stacks)
    marks = _mark(grid, bad, mine)
    return Timeline(
        group=group.label,
        desc=group.desc,
        members=format_ranks(group.members),
        recorded=len(grid.seqs),
        columns=[format_ranks(grid.ranks[i] for i in part.tolist()) for part in columns],
        ops=[teller.tell(line, marks.get(line, "")) for line in lines.tolist()],
        mismatches=len(bad),
        first_mismatches=grid.seqs[bad[: view.mismatch_cap]].tolist(),
    )


def _key(group: GroupOps) -> tuple[str, frozenset[int]]:
    return group.label, group.members


def _choose_lines(grid: Grid, last: int, parting: Parting | None) -> IntColumn:
    """Choose the lines around each place that matters; the end is one when nothing else is."""
    number = len(grid.seqs)
    if last == ALL or number <= last:
        return np.arange(number)
    anchors = []
    if parting is not None:
        anchors = np.searchsorted(grid.seqs, [parting.seq, parting.hard_seq]).tolist()
    elif grid.first_pending is not None:
        anchors = [grid.first_pending]
    spread = sorted(set(anchors)) or [number - 1]
    share = max(1, last // len(spread))
    chosen: set[int] = set()
    for anchor in spread:
        # More of what came before than of what came after: it tells what is normal there.
        start = max(0, min(anchor - share // 2, number - share))
        chosen |= set(range(start, min(number, start + share)))
    before = spread[0] - 1
    while len(chosen) < last and before >= 0:
        chosen.add(before)
        before -= 1
    return np.array(sorted(chosen), dtype=np.int64)


def _mark(grid: Grid, bad: IntColumn, parting: Parting | None) -> dict[int, str]:
    marks = dict.fromkeys(bad.tolist(), "mismatch")
    if grid.first_pending is not None:
        marks[grid.first_pending] = "pending"
    if parting is not None:
        marks |= dict.fromkeys(np.flatnonzero(grid.seqs == parting.seq).tolist(), "divergence")
    return marks


class _Teller:
    """Turns lines of a grid into ops; what repeats is made once."""

    def __init__(
        self, table: Collectives, grid: Grid, columns: list[IntColumn], *, stacks: bool
    ) -> None:
        self._table = table
        self._grid = grid
        self._columns = columns
        self._stacks = stacks
        self._ranks: dict[tuple[int, ...], str] = {}
        self._classes: dict[tuple[int, str, tuple[int, ...]], RankClass] = {}

    def tell(self, line: int, mark: str) -> TimelineOp:
        """Describe the op of one line."""
        codes = self._grid.codes[line]
        columns_by_code: dict[int, list[int]] = {}
        for number, part in enumerate(self._columns):
            columns_by_code.setdefault(int(codes[part[0]]), []).append(number)
        classes = [
            (sum(len(self._columns[i]) for i in numbers), self._tell_class(line, code, numbers))
            for code, numbers in columns_by_code.items()
        ]
        classes.sort(key=lambda item: (not item[1].op, -item[0]))
        told = [item for _, item in classes]
        sequence = int(self._grid.seqs[line])
        return TimelineOp(sequence=sequence, op=told[0].op, mark=mark, classes=told)

    def _tell_class(self, line: int, code: int, numbers: list[int]) -> RankClass:
        ranks = self._name(tuple(numbers))
        members = np.concatenate([self._columns[number] for number in numbers])
        rows = self._grid.rows[line, members]
        forms = tuple(np.unique(self._table.form[rows]).tolist()) if rows[0] >= 0 else ()
        key = (code, ranks, forms)
        if key not in self._classes:
            state = NAMES[int(self._grid.states[line, members[0]])]
            told = tell_class(self._table, ranks, state, int(rows[0]), stacks=self._stacks)
            sizes = {self._table.forms[form].input_sizes for form in forms}
            self._classes[key] = replace(told, sizes_vary=len(sizes) > 1)
        return self._classes[key]

    def _name(self, numbers: tuple[int, ...]) -> str:
        name = self._ranks.get(numbers)
        if name is None:
            ranks = self._grid.ranks
            name = format_ranks(ranks[i] for n in numbers for i in self._columns[n].tolist())
            self._ranks[numbers] = name
        return name


def _fold(items: Iterable[Timeline]) -> list[Timeline]:
    """Join groups whose ops look the same but for their names and ranks."""
    by_picture: dict[object, list[Timeline]] = {}
    for item in items:
        by_picture.setdefault(_draw(item), []).append(item)
    return [_join(alike) for alike in by_picture.values()]


def _draw(item: Timeline) -> object:
    counts: dict[str, int] = {}
    lines = tuple(
        (
            op.sequence,
            "" if op.is_p2p else op.op,
            op.mark,
            tuple(
                (_count(part.ranks, counts), part.state, part.op, _shape(part), str(part.sites))
                for part in op.classes
            ),
        )
        for op in item.ops
    )
    # Tensor-parallel groups are often told apart by a number in their description only.
    kind = item.desc.rstrip("0123456789_ ")
    return kind, lines, item.mismatches, len(item.columns)


def _shape(part: RankClass) -> str:
    # Where sizes are free, those of the first rank are no difference between two groups.
    return f"vary {part.dtypes}" if part.sizes_vary else f"{part.sizes} {part.dtypes}"


def _count(ranks: str, known: dict[str, int]) -> int:
    if ranks not in known:
        known[ranks] = len(parse_ranks(ranks))
    return known[ranks]


def _join(alike: Sequence[Timeline]) -> Timeline:
    first = alike[0]
    if len(alike) == 1:
        return first
    ranks = {rank for item in alike[1:] for rank in parse_ranks(item.members)}
    return Timeline(
        group=first.group,
        desc=first.desc,
        members=first.members,
        recorded=first.recorded,
        columns=first.columns,
        ops=first.ops,
        alike=[item.group for item in alike[1:]],
        alike_ranks=format_ranks(ranks),
        mismatches=first.mismatches,
        first_mismatches=first.first_mismatches,
    )
