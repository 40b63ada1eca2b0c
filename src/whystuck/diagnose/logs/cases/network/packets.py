"""H122 by what ping tells: packets of a size do not get through, and large transfers stand."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import WAITS, find_time, is_said, list_ranks
from whystuck.diagnose.logs.story import WAIT, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence

_MAX_LINES = 6
_TIER = WAIT - 1


def make_packets(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that wait, where hosts cannot send each other large packets."""
    told = list(view.list_signatures("net.mtu"))
    waits = [event for event in view.list_signatures(*WAITS) if is_said(event)]
    if not (told and waits):
        return
    sizes = {value for event in told for value in event.groups.values() if value}
    yield Case(
        code=codes.TRANSFER_STALLED,
        summary=f"packets of more than {' and '.join(sorted(sizes))} bytes do not get through "
        "between hosts, as ping tells: MTUs differ on the way, and large transfers stand",
        tier=_TIER,
        victims=list_ranks(waits),
        lines=(*told, *waits)[:_MAX_LINES],
        time=find_time(waits),
        confidence=Confidence.POSSIBLE,
        details={"ends": []},
        remedies=(
            "ip link show   # on both hosts, and the switch between: one MTU on all of the way",
            "ping -M do -s 8972 PEER   # must get answers where the MTU is 9000",
        ),
    )
