"""Where ranks got different results of an op whose result all members of its group share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from whystuck.evidence.ops.inspection import Inspection, OpResult

# Group, its life, number in it, and name.
Key = tuple[str, int, int, str]


@dataclass(frozen=True)
class ResultApart:
    """The first op of which ranks got different results.

    ``odd`` are the ranks whose result differs from that of the majority; empty when there is none.
    ``has_agreed`` tells that such ops of the group gave equal results before.
    """

    rows: Mapping[int, OpResult]
    odd: tuple[int, ...]
    has_agreed: bool

    @property
    def first(self) -> OpResult:
        """The op, as the first rank saw it."""
        return self.rows[min(self.rows)]


def find_result_apart(
    inspections: Sequence[Inspection], members: Iterable[tuple[str, frozenset[int]]]
) -> ResultApart | None:
    """Find the first op of which members of a group got different results.

    Where they never agreed and no majority does, the backend adds up in another order on each
    rank: that is rounding. Results that are not finite are left to those who look for them.

    Args:
        inspections: What was seen of each rank.
        members: The groups: name and ranks. Groups of different ranks may share a name.

    Returns:
        The first difference, or None.
    """
    by_op: dict[Key, dict[int, OpResult]] = {}
    for inspection in inspections:
        for life, one in _number_lives(inspection.results):
            by_op.setdefault((one.group, life, one.seq, one.name), {})[one.rank] = one
    passed_over = {
        (event.group, event.seq, event.name)
        for inspection in inspections
        for event in inspection.not_finite
    }
    groups: dict[str, list[frozenset[int]]] = {}
    for name, ranks in sorted(set(members), key=lambda item: (item[0], sorted(item[1]))):
        groups.setdefault(name, []).append(ranks)
    agreed: Counter[tuple[str, str, frozenset[int]]] = Counter()
    for key, by_rank in sorted(by_op.items(), key=lambda item: _order(item[1])):
        group, _, seq, name = key
        if (group, seq, name) in passed_over:
            continue
        for ranks in groups.get(group, ()):
            rows = {rank: row for rank, row in by_rank.items() if rank in ranks}
            kind = group, name, ranks
            apart = _compare(rows, has_agreed=agreed[kind] > 0)
            if apart is not None:
                return apart
            agreed[kind] += len(rows) > 1 and len({row.checksum for row in rows.values()}) == 1
    return None


def _number_lives(results: Iterable[OpResult]) -> Iterator[tuple[int, OpResult]]:
    """Yield results with how many groups of that name there were before: each counts from 1."""
    lives: dict[str, tuple[int, int]] = {}
    for one in sorted(results, key=lambda one: one.number):
        life, last = lives.get(one.group, (0, 0))
        lives[one.group] = (life + (one.seq <= last), one.seq)
        yield lives[one.group][0], one


def _order(by_rank: Mapping[int, OpResult]) -> tuple[int, int]:
    return min((row.step, row.number) for row in by_rank.values())


def _compare(rows: Mapping[int, OpResult], *, has_agreed: bool) -> ResultApart | None:
    values = Counter(row.checksum for row in rows.values())
    if len(values) < 2:  # noqa: PLR2004 - two are different
        return None
    (most, votes) = values.most_common(1)[0]
    has_majority = 2 * votes > len(rows)
    if not (has_majority or has_agreed):
        return None
    odd = tuple(rank for rank, row in sorted(rows.items()) if row.checksum != most)
    return ResultApart(rows, odd if has_majority else (), has_agreed)
