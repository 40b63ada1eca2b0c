"""N413 by limits of power: devices that may take far less than those of their peers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6
# Limits differ a little by model and by what an administrator prefers.
_LOW = 0.8
# Who is at its limit runs slower as well; where clocks are alike, the limit is not reached.
_ALIKE = 0.95
# One device of another kind is no rule for the others.
_LEAST = 3
_MOST_SHARE = 0.5
_Rows = Mapping[tuple[str, str], LogEvent]


def make_power_limits(view: LogView) -> Iterator[Case]:
    """Make the case of devices whose limit of power is far below that of the others."""
    rows: _Rows = {
        (event.groups["host"], event.groups["index"]): event
        for event in view.list_signatures("table.power")
    }
    if len(rows) < _LEAST:
        return
    usual = median(float(row.groups["limit"]) for row in rows.values())
    clock = median(float(row.groups.get("clock") or 0) for row in rows.values())
    low = [key for key, row in rows.items() if _is_low(row, usual, clock)]
    if not low or len(low) > _MOST_SHARE * len(rows):
        return
    limit = min(float(rows[key].groups["limit"]) for key in low)
    hosts = sorted({host for host, _ in low} - {""})
    # Of a host with others that are not low, it is the device that is odd.
    whole = [host for host in hosts if all(key in low for key in rows if key[0] == host)]
    ranks = () if whole == hosts and hosts else _find_ranks(view, low)
    devices = sorted(index for _, index in low)
    who = f"the devices of {', '.join(hosts)}" if hosts and whole == hosts else ""
    where = f" on {', '.join(hosts)}" if hosts else ""
    who = who or f"device{'s' * (len(low) > 1)} {', '.join(devices)}{where}"
    may = "may" if who.startswith("the devices") or len(low) > 1 else "may only"
    yield Case(
        code=codes.DEVICE_THROTTLED,
        summary=f"{who} {may} take {limit:.0f} W, where others may take {usual:.0f} W: "
        "they run at lower clocks, and all ranks wait for them",
        tier=NOTE,
        ranks=ranks,
        nodes=tuple(hosts),
        lines=tuple(rows[key] for key in low)[:_MAX_LINES],
        time=find_time([rows[key] for key in low]),
        details={"devices": devices, "reasons": "power limit"},
        remedies=(f"nvidia-smi -pl {usual:.0f}   # on the host, as root",),
    )


def _is_low(row: LogEvent, usual: float, clock: float) -> bool:
    own = float(row.groups.get("clock") or 0)
    is_slower = not (own and clock) or own < _ALIKE * clock
    return float(row.groups["limit"]) < _LOW * usual and is_slower


def _find_ranks(view: LogView, devices: list[tuple[str, str]]) -> tuple[int, ...]:
    """Return the ranks that have some devices; nobody where it is not told of each of them."""
    ranks = [
        view.find_rank_of_device(int(index), host) if index.isdecimal() else None
        for host, index in devices
    ]
    known = {rank for rank in ranks if rank is not None}
    return tuple(sorted(known)) if len(known) == len(ranks) else ()
