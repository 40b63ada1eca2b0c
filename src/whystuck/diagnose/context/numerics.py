"""What findings about values explain each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from whystuck.diagnose import codes
from whystuck.evidence.finding import Confidence, Finding

WEIGHTS, NOT_FINITE, SKIPPED = codes.WEIGHTS_DIVERGED, codes.NOT_FINITE, codes.UPDATES_SKIPPED


def drop_consequences(found: Sequence[Finding]) -> list[Finding]:
    """Leave out findings about values that follow from another one.

    Values that are not finite and come no later than skipped updates are why these are skipped. A
    rank that alone skips an update has other parameters from then on.
    """
    by_code = {item.code: item for item in found if item.code[0] == codes.VALUES}
    weights, values, skipped = (by_code.get(code) for code in (WEIGHTS, NOT_FINITE, SKIPPED))
    if skipped is None:
        return list(found)
    since = skipped.details["since_step"]
    is_why = values and values.confidence is not Confidence.POSSIBLE
    if values and is_why and values.details.get("step", since + 1) <= since:
        return [item for item in found if item is not skipped]
    differs = skipped.details["reason"] == "ranks-differ"
    if weights and differs and weights.details["step"] >= since:
        return [item for item in found if item is not weights]
    return list(found)


def is_side_effect(item: Finding, found: Iterable[Finding]) -> bool:
    """Return whether skipped updates come after what stopped the job, or what differed before."""
    if item.code != SKIPPED:
        return False
    since = item.details["since_step"]
    return any(
        other.code[0] in {codes.HANG, codes.CRASH}
        or (other.code == WEIGHTS and other.details["step"] <= since)
        for other in found
    )
