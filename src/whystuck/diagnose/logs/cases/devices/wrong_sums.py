"""N419 by tests of collectives (nccl-tests, rccl-tests) whose results are wrong."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6


def make_wrong_sums(view: LogView) -> Iterator[Case]:
    """Make the case of a test whose results are not what they must be.

    The test allows for rounding, so memory, a device or a link damages data, or the library does.
    Where all of its ranks are on one host, it is there; which of its devices, it does not tell.
    """
    tests: dict[tuple[str, str], list[LogEvent]] = {}
    for event in view.list_signatures("table.wrong"):
        tests.setdefault((event.artifact, event.groups["table"]), []).append(event)
    if not tests:
        return
    hosts = [told[0].groups["hosts"].split() for told in tests.values()]
    nodes = tuple(sorted({one[0] for one in hosts if len(one) == 1}))
    wrong = sum(map(_count, tests.values()))
    on = f" on {' and '.join(nodes)}" if nodes else ""
    several = next((one for one in hosts if len(one) > 1), [])
    over = f", in a test over {', '.join(several[:4])}" if several and not nodes else ""
    events = [event for told in tests.values() for event in told]
    yield Case(
        code=codes.ALLREDUCE_WRONG,
        summary=f"a test of collectives{on} gives {wrong} wrong value{'s' * (wrong != 1)}"
        f"{over}: data is damaged on the way, or in a device",
        tier=NOTE,
        nodes=nodes,
        # The sum of a test says it best.
        lines=tuple(sorted(events, key=lambda one: one.groups["of"] != "sum")[:_MAX_LINES]),
        time=find_time(events),
        confidence=Confidence.LIKELY,
        remedies=(
            (
                "run the test on fewer devices, and with NCCL_P2P_DISABLE=1, to find the device "
                "or link; take the host out of service meanwhile: `dcgmi diag -r 3`"
            ),
        ),
        is_foreign=True,
    )


def _count(told: list[LogEvent]) -> int:
    """Return how many values of a test are wrong: its last line tells, else its rows do."""
    total = [int(one.groups["wrong"]) for one in told if one.groups["of"] == "sum"]
    return max(total) if total else sum(int(one.groups["wrong"]) for one in told)
