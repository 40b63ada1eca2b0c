"""How far a round came, by what its ranks print: most jobs print the number of their step."""

from __future__ import annotations

import re

# Only a number that the job counts on from a checkpoint tells progress; one that starts anew does
# no harm, as it is not larger than that of the round before.
_STEP = re.compile(
    rb"(?i)\b(?:global[ _-]?)?(?:step|iter(?:ation)?)s?[ \t]{0,20}[:=#\[]?[ \t]{0,20}(\d{1,12})\b"
)
NO_STEP = -1


def find_printed_step(text: bytes) -> int:
    """Return the number of the last step that a text names, `NO_STEP` where it names none."""
    last = NO_STEP
    for match in _STEP.finditer(text):
        last = int(match[1])
    return last
