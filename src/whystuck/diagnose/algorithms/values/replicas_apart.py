"""Where tensors that were equal on some ranks are equal no longer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.ops.inspection import Checksums, TensorSet

AFTER, BEFORE, GRADS = "after", "before", "grads"
# Moments that belong to one number of steps, in their order.
_ORDER = {AFTER: 0, BEFORE: 1, GRADS: 2}

Moment = tuple[int, int, int]
Sums = NDArray[np.uint64]


@dataclass(frozen=True)
class Apart:
    """The first moment at which replicas of a tensor differ.

    ``odd`` are the ranks that differ from the majority, or that alone changed theirs between two
    steps (``is_own_change``); empty when neither tells. ``replicas`` are all ranks compared, and
    ``tensors`` counts the tensors that differ at that moment. ``equal_step`` is the last step after
    which they were seen to be equal, -1 when none.
    """

    moment: Moment
    when: str
    step: int
    tensors: TensorSet
    place: int
    count: int
    replicas: tuple[int, ...]
    odd: tuple[int, ...]
    is_own_change: bool
    equal_step: int
    rows: Mapping[int, Checksums]

    @property
    def name(self) -> str:
        """The name of the first tensor that differs."""
        return self.tensors.names[self.place]


def find_apart(checksums: Iterable[Checksums]) -> Apart | None:
    """Find the first moment at which tensors differ that were replicas.

    Ranks are compared that hold the same names and shapes. A tensor is a replica where it was equal
    at the first look, and still was at the first look at which it had changed: values that all
    shards begin with, such as zeros, do not make them replicas.

    Args:
        checksums: Of all ranks, in any order.

    Returns:
        The first difference, or None.
    """
    sets: dict[tuple[int, int, TensorSet], list[Checksums]] = {}
    for one in checksums:
        if one.when in _ORDER:
            sets.setdefault((one.generation, one.optimizer, one.tensors), []).append(one)
    found = [apart for _, group in sorted(sets.items(), key=_age) if (apart := _find_in_set(group))]
    return min(found, key=lambda apart: apart.moment, default=None)


def _age(item: tuple[tuple[int, int, TensorSet], list[Checksums]]) -> tuple[int, int]:
    return item[0][:2]


def _find_in_set(group: Sequence[Checksums]) -> Apart | None:
    """Find the first difference among ranks that hold the same tensors."""
    looks: dict[Moment, dict[int, Checksums]] = {}
    for one in group:
        moment = (one.generation, one.step, _ORDER[one.when])
        looks.setdefault(moment, {})[one.rank] = one
    state = _State(group[0].tensors)
    for moment in sorted(looks):
        apart = state.look(moment, looks[moment])
        if apart is not None:
            return apart
    return None


class _State:
    """What is known of the replicas of one set of tensors, moment by moment.

    A tensor's ``classes`` give ranks with the same number that were equal so far; they are final
    once the tensor has changed.
    """

    def __init__(self, tensors: TensorSet) -> None:
        self._tensors = tensors
        self._kinds = {False: _Kind(len(tensors.names)), True: _Kind(len(tensors.names))}
        self._after: dict[int, Sums] = {}
        self._after_step = -1
        self._equal_step = -1

    def look(self, moment: Moment, rows: Mapping[int, Checksums]) -> Apart | None:
        when = next(iter(rows.values())).when
        if len(rows) > 1:
            apart = self._find_own_change(moment, rows) if when == BEFORE else None
            apart = apart or self._find_split(moment, when, rows)
            if apart is not None:
                return apart
            if when == AFTER:
                self._equal_step = moment[1]
        if when == AFTER:
            self._after = {rank: row.sums for rank, row in rows.items()}
            self._after_step = moment[1]
        return None

    def _find_own_change(self, moment: Moment, rows: Mapping[int, Checksums]) -> Apart | None:
        """Find tensors that some ranks changed between two steps while others did not."""
        ranks = [rank for rank in sorted(rows) if rank in self._after]
        if self._after_step != moment[1] or len(ranks) < 2:  # noqa: PLR2004 - to compare
            return None
        before = np.stack([self._after[rank] for rank in ranks])
        changed = np.stack([rows[rank].sums for rank in ranks]) != before
        for place in np.flatnonzero(changed.any(axis=0)).tolist():
            for members in _classes(before[:, place]):
                touched = [index for index in members if changed[index, place]]
                if 0 < len(touched) < len(members):
                    return self._make(
                        moment,
                        rows,
                        place,
                        replicas=[ranks[index] for index in members],
                        own=[ranks[index] for index in touched],
                        count=int(changed[touched[0]].sum()),
                    )
        return None

    def _find_split(self, moment: Moment, when: str, rows: Mapping[int, Checksums]) -> Apart | None:
        ranks = sorted(rows)
        sums = np.stack([rows[rank].sums for rank in ranks])
        splits = list(self._kinds[when == GRADS].update(ranks, sums))
        if not splits:
            return None
        place, members = splits[0]
        count = len({at for at, _ in splits})
        return self._make(moment, rows, place, replicas=members, count=count)

    def _make(
        self,
        moment: Moment,
        rows: Mapping[int, Checksums],
        place: int,
        *,
        replicas: Sequence[int],
        count: int,
        own: Sequence[int] = (),
    ) -> Apart:
        values = {rank: int(rows[rank].sums[place]) for rank in replicas}
        most, votes = Counter(values.values()).most_common(1)[0]
        odd = [rank for rank in replicas if values[rank] != most and 2 * votes > len(replicas)]
        return Apart(
            moment=moment,
            when=next(iter(rows.values())).when,
            step=moment[1],
            tensors=self._tensors,
            place=place,
            count=count,
            replicas=tuple(replicas),
            odd=tuple(own or odd),
            is_own_change=bool(own),
            equal_step=self._equal_step,
            rows=rows,
        )


class _Kind:
    """The classes of equal tensors of one kind, parameters or gradients."""

    def __init__(self, count: int) -> None:
        self._first: dict[int, Sums] = {}
        self._classes: dict[int, Sums] = {}
        self._is_final = np.zeros(count, dtype=bool)

    def update(self, ranks: Sequence[int], sums: Sums) -> Iterator[tuple[int, list[int]]]:
        """Take one look; yield each tensor whose replicas differ, with their ranks."""
        new = [index for index, rank in enumerate(ranks) if rank not in self._classes]
        for index in new:
            # A rank that comes later is no replica of any other.
            own = np.full(sums.shape[1], ranks[index] + 1, dtype=np.uint64)
            self._classes[ranks[index]] = sums[index].copy() if not self._first else own
        if not self._first:
            self._first = {rank: sums[index].copy() for index, rank in enumerate(ranks)}
            return
        classes = np.stack([self._classes[rank] for rank in ranks])
        first = np.stack([self._first.get(rank, sums[i]) for i, rank in enumerate(ranks)])
        has_changed = (sums != first).any(axis=0)
        for place in np.flatnonzero((sums != sums[:1]).any(axis=0)).tolist():
            for members in _classes(classes[:, place]):
                if len(members) > 1 and len(set(sums[members, place].tolist())) > 1:
                    if self._is_final[place]:
                        yield place, [ranks[index] for index in members]
                    else:
                        self._part(place, [ranks[index] for index in members], sums[members, place])
        self._is_final |= has_changed

    def _part(self, place: int, ranks: Sequence[int], values: Sums) -> None:
        """Take shards apart that only began with the same values."""
        for rank, value in zip(ranks, values.tolist(), strict=True):
            self._classes[rank][place] = value


def _classes(values: Sums) -> list[list[int]]:
    """Return the places of equal values, together."""
    found: dict[int, list[int]] = {}
    for index, value in enumerate(values.tolist()):
        found.setdefault(value, []).append(index)
    return list(found.values())
