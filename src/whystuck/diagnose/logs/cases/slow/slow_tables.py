"""S309 and N413 by tables that other tools print: shares of time, clocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.cases.slow.own_times import SlowRank, find_rank_by_number
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6
# Of the time of a step, spent on its batch.
_STARVED = 40.0
_LEAST_STEPS = 3
# By the forms of torchvision, of mmengine and of timm.
_TIMES, _WAITS = ("t", "t2", "t3"), ("d", "d2", "d3")
# HW slowdown, software and hardware thermal slowdown, and power brake. A cap of power is normal.
_REASONS = {
    0x8: "HW Slowdown",
    0x20: "SW Thermal Slowdown",
    0x40: "HW Thermal Slowdown",
    0x80: "HW Power Brake Slowdown",
}
_LOW_CLOCK = 0.85
_BUSY = 50.0
# By so many degrees, a device is hotter than the others.
_HOTTER = 10.0


def make_starved(view: LogView) -> Iterator[Case]:
    """Make the case of loops that wait for their next batch, as profilers and programs print."""
    told = [
        (event, share)
        for event in view.list_signatures("profile.input_share", "progress.data_time")
        if (share := _read_share(event)) is not None
    ]
    shares = [share for _, share in told]
    is_profile = any(event.signature == "profile.input_share" for event, _ in told)
    if not shares or median(shares) < _STARVED or not (is_profile or len(shares) >= _LEAST_STEPS):
        return
    events = [event for event, _ in told]
    share = median(shares)
    yield Case(
        code=codes.STARVED_INPUT,
        summary=f"the loop waits for data: {share:.0f} % of its time goes to the next batch",
        tier=NOTE,
        lines=tuple(events[-_MAX_LINES:]),
        time=find_time(events),
    )


def _read_share(event: LogEvent) -> float | None:
    """Return how much of the time goes to data, in percent."""
    if share := event.groups.get("pct") or event.groups.get("share"):
        return float(share)
    whole = float(next(filter(None, map(event.groups.get, _TIMES)), 0))
    data = float(next(filter(None, map(event.groups.get, _WAITS)), 0))
    return 100 * data / whole if 0 <= data <= whole and whole else None


def make_throttled(view: LogView) -> Iterator[Case]:
    """Make the case of devices that are slowed for heat or power, as nvidia-smi lists them."""
    rows = {_name_device(event): event for event in view.list_signatures("table.device")}
    slow = {key: why for key, why in _list_slow(list(rows.values())).items() if why}
    reasons = list(view.list_signatures("table.slowdown"))
    if not slow and not reasons:
        return
    # Whose reasons they are, by the number that was asked for.
    told = {_name_device(one): one for one in reasons if one.groups["index"]}
    places = {(node, index) for _, node, index in (*slow, *told)}
    events = [*(rows[key] for key in slow), *reasons]
    buses = sorted({event.groups["bus"] for event in reasons} - {""})
    devices = sorted({int(index) for _, index in places}) or buses
    who = (
        f"device{'s' * (len(devices) > 1)} {', '.join(map(str, devices))}"
        if devices
        else "a device"
    )
    words = {word for text in slow.values() for word in text.split(", ")}
    why = ", ".join(sorted(words | {one.groups["reason"] for one in reasons}))
    nodes = tuple(sorted({event.groups.get("host") or event.node for event in events} - {""}))
    ranks = _find_ranks(view, told | {key: rows[key] for key in slow})
    same = None if ranks or len(places) != 1 else _find_same(view, *places)
    yield Case(
        code=codes.DEVICE_THROTTLED,
        summary=f"{who}{f' on {nodes[0]}' if len(nodes) == 1 else ''} "
        f"{'run slower than they' if len(devices) > 1 else 'runs slower than it'} could ({why}); "
        f"all ranks wait for the slowest device{f' ({same.why})' if same else ''}",
        tier=NOTE,
        ranks=(same.rank,) if same else ranks,
        nodes=nodes,
        lines=(*events[: _MAX_LINES - 1], same.event) if same else tuple(events[:_MAX_LINES]),
        time=find_time(events),
        details={"devices": devices, "reasons": why},
    )


def _find_same(view: LogView, place: tuple[str, str]) -> SlowRank | None:
    """Return the one slow rank where it has the number of the one slow device."""
    node, index = place
    return find_rank_by_number(view, int(index), node)


def _find_ranks(view: LogView, devices: Mapping[tuple[str, str, str], LogEvent]) -> tuple[int, ...]:
    """Return the ranks that have some devices; nobody where it is not told of each of them."""
    ranks = [
        int(row.groups["own"])
        if "own" in row.groups
        else view.find_rank_of_device(int(index), node)
        for (_, node, index), row in devices.items()
    ]
    known = {rank for rank in ranks if rank is not None}
    return tuple(sorted(known)) if len(known) == len(ranks) else ()


def _name_device(row: LogEvent) -> tuple[str, str, str]:
    """Return whose device a row is of: each host counts its own."""
    return row.artifact, row.groups.get("host") or row.node, row.groups["index"]


def _list_slow(rows: Sequence[LogEvent]) -> dict[tuple[str, str, str], str]:
    """Return why each device is slow, empty where it is not."""
    clocks = [float(row.groups["clock"]) for row in rows if "clock" in row.groups]
    usual = median(clocks) if clocks else 0.0
    heats = [float(row.groups["temperature"]) for row in rows if row.groups.get("temperature")]
    hot = median(heats) + _HOTTER if heats else float("inf")
    found: dict[tuple[str, str, str], str] = {}
    for row in rows:
        told = row.groups.get("reasons") or "0"
        bits = int(told, 16) if told.startswith("0x") else 0
        words = [name for bit, name in _REASONS.items() if bits & bit]
        words += (row.groups.get("flags") or "").replace("_", " ").split(",")
        clock, busy = float(row.groups.get("clock") or 0), float(row.groups.get("busy") or 0)
        heat = float(row.groups.get("temperature") or 0)
        # One that is idle is slow, and cold.
        is_at_work = busy >= _BUSY or ("busy" not in row.groups and heat >= hot)
        if clock and clock < _LOW_CLOCK * usual and is_at_work:
            words.append(f"{clock:.0f} MHz where others run at {usual:.0f} MHz")
        found[_name_device(row)] = ", ".join(filter(None, words))
    return found
