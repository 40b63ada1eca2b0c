"""The ways to leave the common path, and how each is told at the line where two classes part."""

from __future__ import annotations

from enum import Enum

from whystuck.evidence.finding import Confidence


class DivergenceKind(Enum):
    """The ways to leave the common path."""

    EXTRA = "extra"
    SKIPPED = "skipped"
    LEFT = "left"
    OP = "op"
    SHAPE = "shape"
    DTYPE = "dtype"


# How a way was found; the weight decides between the two readings of a tie.
BY_SHIFT_AND_HISTORY = "shift and history"
BY_SHIFT = "shift"
BY_RANK = "rank"
BY_RANK_OF_OTHERS = "rank of others"
BY_SOURCE = "source"
# All ranks come to that line: who is there first is ahead, who is not yet there behind.
AHEAD = "ahead"
BEHIND = "behind"
BY_CONDITION = "condition"
BY_HISTORY = "history"
BY_ORDER = "order"
SWAPPED = "swapped"
WAY_SCORES = {
    BY_RANK: 7,
    BY_RANK_OF_OTHERS: 6,
    BY_SHIFT_AND_HISTORY: 5,
    BY_SOURCE: 4,
    SWAPPED: 4,
    AHEAD: 4,
    BEHIND: 3,
    BY_CONDITION: 4,
    BY_HISTORY: 3,
    BY_SHIFT: 2,
    BY_ORDER: 1,
}
CONFIDENCES = {
    BY_RANK: Confidence.CERTAIN,
    BY_RANK_OF_OTHERS: Confidence.LIKELY,
    BY_SHIFT_AND_HISTORY: Confidence.CERTAIN,
    BY_SOURCE: Confidence.CERTAIN,
    SWAPPED: Confidence.LIKELY,
    AHEAD: Confidence.LIKELY,
    BEHIND: Confidence.LIKELY,
    BY_CONDITION: Confidence.LIKELY,
    BY_HISTORY: Confidence.LIKELY,
    BY_SHIFT: Confidence.LIKELY,
    BY_ORDER: Confidence.POSSIBLE,
}
# What is known from the calls before alone.
BY_PAST = frozenset({BY_SHIFT_AND_HISTORY, BY_HISTORY, BY_SHIFT})
