"""Which rank was the first to have a value that is no number, before ranks added theirs up.

One step later all have it, from the weights that they updated together.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from whystuck.evidence.logs.lines import LogEvent

_STEP = re.compile(
    r"\b(?:global_?)?(?:step|iteration|iter|it)s?[ =:#_]{0,3}(\d{1,12})\b", re.IGNORECASE
)
# What a rank has of its own: what ranks have added up is the same on all, and they may print it at
# other steps each.
_OWN = re.compile(
    r"(?<![a-z])(?:local|unreduced|unsynced|pre-?(?:all)?-?reduce|pre-?sync|before(?: the)?(?: grad"
    r"ient)? (?:all[ -]?)?(?:reduce|sync))[ _-]?(?:loss|g?norm|grad_?norm|grads?)\b",
    re.IGNORECASE,
)
# A hook tells of what a layer gave out in the forward pass.
_HOOKED = re.compile(
    r"\b(?:outputs?|activations?|logits|hidden[ _]states?|inputs?)\b|\bhook\b", re.IGNORECASE
)


def find_first(
    events: Iterable[LogEvent], finite: Collection[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the few ranks that had such a value of their own first, and those that did not.

    Args:
        events: The lines that tell of such values, in the order of their logs.
        finite: The ranks that printed a finite loss.
    """
    for pattern in (_HOOKED, _OWN):
        first: dict[int, int] = {}
        for event in events:
            step = _STEP.search(event.text)
            if step is not None and event.rank >= 0 and pattern.search(event.text):
                number = int(step[1])
                first[event.rank] = min(number, first.get(event.rank, number))
        begin = min(first.values(), default=0)
        odd = {rank for rank, step in first.items() if step == begin}
        others = (first.keys() | set(finite)) - odd
        later = first.keys() - odd
        if odd and later and 2 * len(odd) < len(odd | others):
            return tuple(sorted(odd)), tuple(sorted(others))
    return (), ()
