"""C209 as HCCL tells it: which device of the cluster has fallen silent, and since when."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time, is_said, list_victims
from whystuck.diagnose.logs.story import PARTED, Case
from whystuck.diagnose.logs.view import LogView

_MAX_LINES = 6


def make_abnormal(view: LogView) -> Iterator[Case]:
    """Make the case of one device that others call abnormal; several are told, and none blamed."""
    events = [event for event in view.list_signatures("hccl.abnormal") if is_said(event)]
    if not events:
        return
    places = sorted({(event.groups["host"], event.groups["dev"]) for event in events})
    nodes = sorted({host for host, _ in places})
    what = next((text for event in events if (text := event.groups.get("what") or "")), "")
    where = " and ".join(f"device {device} on {host}" for host, device in places[:4])
    yield Case(
        code=codes.PEER_LOST,
        summary=f"{where} fell silent before the others waited in vain"
        + (f" ({what[:1].lower()}{what[1:]})" if what else ""),
        tier=PARTED - 1,
        nodes=tuple(nodes) if len(places) == 1 else (),
        victims=list_victims(view, ()),
        lines=tuple(events[:_MAX_LINES]),
        time=find_time(events),
        details={"candidates": {"ranks": [], "nodes": nodes}} if len(places) > 1 else {},
        remedies=(
            f"npu-smi info; dmesg -T   # on {nodes[0]}: whether the process of the device is there",
        ),
    )
