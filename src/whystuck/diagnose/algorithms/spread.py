"""Where values that are not finite appear first, and where they have only been passed on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from whystuck.evidence.inspection import Inspection, NotFinite


@dataclass(frozen=True)
class Origin:
    """The first ops into which values went that are not finite: one of each rank."""

    first: tuple[NotFinite, ...]
    inspected: frozenset[int]

    @property
    def is_everywhere(self) -> bool:
        """Whether all ranks have them at the same time, so that none of them is the source."""
        return len(self.inspected) > 1 and {one.rank for one in self.first} == self.inspected


def find_origin(inspections: Iterable[Inspection]) -> Origin | None:
    """Find the ranks that had values which are not finite before they could get them from others.

    Args:
        inspections: What was seen of each rank.

    Returns:
        The first ops of those ranks, or None when all values are finite.
    """
    looked = list(inspections)
    events = [event for one in looked if (event := _find_first(one)) is not None]
    if not events:
        return None
    step = min(event.step for event in events)
    early = [event for event in events if event.step == step]
    first = [event for event in early if not any(_comes_before(one, event) for one in early)]
    return Origin(tuple(first), frozenset(one.rank for one in looked))


def _find_first(inspection: Inspection) -> NotFinite | None:
    """Return the first such input of a rank, unless it had received some before."""
    for event in sorted(inspection.not_finite, key=lambda one: (one.number, one.side)):
        if _is_scaling(inspection, event):
            continue
        return event if event.side == "in" else None
    return None


def _is_scaling(inspection: Inspection, event: NotFinite) -> bool:
    """Tell whether an op belongs to a step that a scaler has skipped, or may yet skip.

    Gradients that overflow are how a scaler finds its scale.
    """
    for update in inspection.scaler:
        if update.first_op <= event.number <= update.last_op:
            return update.is_skipped
    last = max((update.last_op for update in inspection.scaler), default=None)
    return last is not None and event.number > last


def _comes_before(one: NotFinite, event: NotFinite) -> bool:
    """Tell whether an op of another rank has passed its values on before this one."""
    if one.group != event.group or one.is_p2p or event.is_p2p:
        return False
    return one.seq < event.seq


def is_ordered(first: Sequence[NotFinite]) -> bool:
    """Tell whether ops are the same one, so that none of them can follow from another."""
    return len({(one.group, one.seq, one.is_p2p) for one in first}) == 1 and (
        len(first) == 1 or not first[0].is_p2p
    )
