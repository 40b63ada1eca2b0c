"""S301, S309 and N413 by tables that other tools print: times of ranks, shares, clocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks, parse_ranks

_MAX_LINES = 6
# Who is slow takes this much longer than the median, while all others are near to it.
_SLOW, _ALIKE = 1.25, 1.12
_LEAST_MS = 5.0
_LEAST_RANKS = 4
# Of more, the job is made of different stages rather than of slow ranks.
_MOST_SHARE = 0.25
# A rank's own work; what ranks do together takes as long as the slowest of them.
_OWN = ("compute", "forward", "backward", "batch", "data", "optimizer", "layer")
_SHARED = ("sync", "send", "recv", "reduce", "gather", "scatter", "all-", "broadcast", "communic")
# What a tool of NVIDIA's calls slow.
_LEAST_SCORE = 0.75
# Of the time of a step, spent on its batch.
_STARVED = 40.0
_LEAST_STEPS = 3
# HW slowdown, software and hardware thermal slowdown, and power brake. A cap of power is normal.
_REASONS = {
    0x8: "HW Slowdown",
    0x20: "SW Thermal Slowdown",
    0x40: "HW Thermal Slowdown",
    0x80: "HW Power Brake Slowdown",
}
_LOW_CLOCK = 0.85
_BUSY = 50.0


def make_stragglers(view: LogView) -> Iterator[Case]:
    """Make the case of ranks whose own work takes longer than that of all others."""
    times = _read_last_times(view)
    slow: dict[int, tuple[str, LogEvent, float, float]] = {}
    for phase, by_rank in times.items():
        for rank, middle in _find_slow(phase, {rank: ms for rank, (ms, _) in by_rank.items()}):
            ms, event = by_rank[rank]
            slow.setdefault(rank, (phase, event, ms, middle))
    if slow:
        yield _make_slow(slow, sorted({rank for by_rank in times.values() for rank in by_rank}))
        return
    named = list(view.list_signatures("straggler.named"))
    ranks = sorted({rank for event in named for rank in _read_named(event)})
    if not ranks:
        return
    yield Case(
        code=codes.SLOW_RANK,
        summary=f"{name_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} slower than the others, "
        "as the tool that compares them says",
        tier=NOTE,
        ranks=tuple(ranks),
        nodes=tuple(sorted({event.groups.get("node") or "" for event in named} - {""})),
        lines=tuple(named[:_MAX_LINES]),
        time=find_time(named),
    )


def _read_named(event: LogEvent) -> frozenset[int]:
    score = event.groups.get("score") or ""
    if score and float(score) >= _LEAST_SCORE:
        return frozenset()
    return parse_ranks(event.groups.get("ranks") or event.groups.get("rank") or "")


def _read_last_times(view: LogView) -> Mapping[str, dict[int, tuple[float, LogEvent]]]:
    """Return the times of each phase and rank in the last table of a log."""
    events = list(view.list_signatures("table.time"))
    if not events:
        return {}
    last = events[-1].artifact, events[-1].groups["table"]
    found: dict[str, dict[int, tuple[float, LogEvent]]] = {}
    for event in events:
        if (event.artifact, event.groups["table"]) == last:
            rank, ms = int(event.groups["own"]), float(event.groups["ms"])
            found.setdefault(event.groups["phase"], {})[rank] = ms, event
    return found


def _find_slow(phase: str, times: Mapping[int, float]) -> list[tuple[int, float]]:
    """Return the ranks that take longer for work of their own, with the median of all."""
    name = phase.lower()
    is_own = any(word in name for word in _OWN) and not any(word in name for word in _SHARED)
    if not is_own or len(times) < _LEAST_RANKS:
        return []
    middle = median(times.values())
    slow = [rank for rank, ms in times.items() if ms > max(middle * _SLOW, middle + _LEAST_MS)]
    others = [ms for rank, ms in times.items() if rank not in slow]
    is_clear = len(slow) <= _MOST_SHARE * len(times) and max(others) <= middle * _ALIKE + 1
    return [(rank, middle) for rank in slow] if is_clear else []


def _make_slow(slow: Mapping[int, tuple[str, LogEvent, float, float]], ranks: list[int]) -> Case:
    told = "; ".join(
        f"rank {rank}: {phase} {ms:.0f} ms, the median is {middle:.0f} ms"
        for rank, (phase, _, ms, middle) in sorted(slow.items())[:4]
    )
    phase, _, ms, middle = slow[min(slow)]
    return Case(
        code=codes.SLOW_RANK,
        summary=f"{name_ranks(slow)} {'takes' if len(slow) == 1 else 'take'} longer for work of "
        f"{'its' if len(slow) == 1 else 'their'} own than all others, who wait ({told})",
        tier=NOTE,
        ranks=tuple(sorted(slow)),
        victims=tuple(rank for rank in ranks if rank not in slow),
        lines=tuple(event for _, event, _, _ in slow.values())[:_MAX_LINES],
        details={"phase": phase, "clock_offset_ns": 0, "took_ms": ms, "others_ms": middle},
    )


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
    if share := event.groups.get("pct"):
        return float(share)
    whole = float(event.groups.get("t") or event.groups.get("t2") or 0)
    data = float(event.groups.get("d") or event.groups.get("d2") or 0)
    return 100 * data / whole if 0 <= data <= whole and whole else None


def make_throttled(view: LogView) -> Iterator[Case]:
    """Make the case of devices that are slowed for heat or power, as nvidia-smi lists them."""
    rows = {
        (event.artifact, event.groups["index"]): event
        for event in view.list_signatures("table.device")
    }
    slow = {key: why for key, why in _list_slow(list(rows.values())).items() if why}
    reasons = list(view.list_signatures("table.slowdown"))
    if not slow and not reasons:
        return
    is_same = any(view.list_signatures("table.rank_is_device"))
    indices = sorted({int(index) for _, index in slow})
    events = [*(rows[key] for key in slow), *reasons]
    buses = sorted({event.groups["bus"] for event in reasons})
    who = (
        f"device{'s' * (len(indices) > 1)} {', '.join(map(str, indices))}"
        if indices
        else f"the device {', '.join(buses)}"
    )
    words = {word for told in slow.values() for word in told.split(", ")}
    why = ", ".join(sorted(words | {one.groups["reason"] for one in reasons}))
    nodes = tuple(sorted({event.node for event in events} - {""}))
    yield Case(
        code=codes.DEVICE_THROTTLED,
        summary=f"{who}{f' on {nodes[0]}' if len(nodes) == 1 else ''} runs slower than it could "
        f"({why}); all ranks wait for the slowest device",
        tier=NOTE,
        ranks=tuple(indices) if is_same else (),
        nodes=nodes,
        lines=tuple(events[:_MAX_LINES]),
        time=find_time(events),
        details={"devices": indices or buses, "reasons": why},
    )


def _list_slow(rows: Sequence[LogEvent]) -> dict[tuple[str, str], str]:
    """Return why each device is slow, empty where it is not."""
    clocks = [float(row.groups["clock"]) for row in rows if "clock" in row.groups]
    usual = median(clocks) if clocks else 0.0
    found: dict[tuple[str, str], str] = {}
    for row in rows:
        told = row.groups.get("reasons") or "0"
        bits = int(told, 16) if told.startswith("0x") else 0
        words = [name for bit, name in _REASONS.items() if bits & bit]
        words += (row.groups.get("flags") or "").replace("_", " ").split(",")
        clock, busy = float(row.groups.get("clock") or 0), float(row.groups.get("busy") or 0)
        if clock and clock < _LOW_CLOCK * usual and busy >= _BUSY:
            words.append(f"{clock:.0f} MHz where others run at {usual:.0f} MHz")
        found[row.artifact, row.groups["index"]] = ", ".join(filter(None, words))
    return found
