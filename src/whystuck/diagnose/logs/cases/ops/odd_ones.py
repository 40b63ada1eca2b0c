"""Which ranks are the odd ones, by what each of them tells of one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from whystuck.diagnose.algorithms.ops.alignment import split_by
from whystuck.diagnose.logs.cases.ops.agreement import find_values
from whystuck.diagnose.logs.view import LogView


@dataclass(frozen=True)
class OddOnes:
    """The few ranks that differ; ``is_clear`` tells that the others are surely more."""

    ranks: tuple[int, ...]
    is_clear: bool


def choose_odd(values: Mapping[int, object]) -> OddOnes:
    """Find the few ranks that differ from all others; one against one may be either's mistake."""
    common, *others = split_by(values)
    odd = tuple(sorted(rank for ranks in others for rank in ranks))
    return OddOnes(odd, len(common) > 1 and len(odd) < len(common))


def choose_by_past(values: Mapping[int, object], past: Mapping[int, object]) -> OddOnes:
    """Find the odd ones by others that made the same call, where no side is larger.

    Args:
        values: What the ranks tell that wait in the call.
        past: What the others tell of it: it is over for them, as they are of another group of the
            same kind. Only where all of these are alike do they tell what is usual.
    """
    odd, usual = choose_odd(values), set(past.values())
    own = tuple(rank for rank, value in sorted(values.items()) if value not in usual)
    is_told = len(usual) == 1 and len(past) > 1 and 0 < len(own) < len(values)
    return odd if odd.is_clear or not is_told else OddOnes(own, is_clear=True)


def add_alike(view: LogView, values: Mapping[int, object]) -> Mapping[int, object]:
    """Add the ranks that somebody says print the same as one of those that tell.

    Where what is said contradicts what they tell, it counts for nothing.
    """
    by_text = {str(value): value for value in values.values()}
    found = find_values(view, (), {rank: str(value) for rank, value in values.items()})
    return {rank: by_text[text] for rank, text in found.items()} if found else values
