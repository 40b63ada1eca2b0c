"""N406 by what services and tools tell of the clocks of hosts, and who refuses what for that."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import WAITS, find_exceptions, find_time, is_said
from whystuck.diagnose.logs.cases.prompts import find_prompt_host
from whystuck.diagnose.logs.story import NOTE, OUTSIDE, WAIT, Case
from whystuck.diagnose.logs.view import LogView, is_same_host
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6
# Nearer than that processes did not find each other: their heartbeats are compared by clocks.
_TIER = WAIT - 1
# Clocks that are kept in step differ by less than this, whatever the network.
_LEAST_S = 1.0
# A battery clock drifts by seconds; one that is far from the clock of the system is not its own.
_LEAST_RTC_S = 30.0
_SPAN = re.compile(r"(?:(\d{1,4})h)?(?:(\d{1,4})m)?(\d{1,6}(?:\.\d{1,9})?)s")
_MEMBER = re.compile(r"'([\w.-]{1,120}?)_\d{1,7}_\d{1,7}'")


@dataclass(frozen=True)
class _Clock:
    """What a line tells of the clock of a host: how many seconds it is off, 0 for not in step."""

    host: str
    seconds: float
    event: LogEvent


def make_clocks_off(view: LogView) -> Iterator[Case]:
    """Make the case of hosts whose clocks are off."""
    clocks = [*_list_offsets(view), *_list_shown(view)]
    off = [one for one in clocks if abs(one.seconds) >= _LEAST_S]
    if not _list_lost(view):
        # A service that says how wrong a clock was then mends it.
        off = [one for one in off if not one.event.groups.get("wrong")]
    refused = [one for one in view.list_signatures("clock.refused") if is_said(one)]
    loose = _list_loose(view)
    removed = list(view.list_signatures("elastic.no_heartbeat"))
    felt = [one for one in loose if refused or _is_removed(removed, one.host)]
    exceptions = find_exceptions(view, refused)
    if not (off or refused or felt):
        return
    told = off or felt
    nodes = tuple(sorted({one.host for one in told} - {""}))
    lines = [*(one.event for one in told), *refused, *removed]
    yield Case(
        code=codes.CLOCK_SKEWED,
        summary=_describe(told, nodes, refused),
        tier=_find_tier(view, refused),
        nodes=nodes,
        lines=tuple(lines[:_MAX_LINES]),
        exceptions=exceptions,
        time=find_time(refused or removed),
        confidence=Confidence.LIKELY if off or refused else Confidence.POSSIBLE,
        details={"offset_s": max((abs(one.seconds) for one in told), default=0.0)},
        remedies=(
            "chronyc makestep   # on that host, as root; then see that the time service runs",
            "timedatectl; chronyc tracking   # on every host",
        ),
        scope=frozenset(one.rank for one in refused) - {-1},
    )


def _find_tier(view: LogView, refused: Sequence[LogEvent]) -> int:
    """Find what it explains: that a service refuses, or a rendezvous fails; and no collective."""
    if refused:
        return OUTSIDE
    is_met = any(view.list_signatures(*WAITS))
    return _TIER if _list_lost(view) and not is_met else NOTE


def _list_lost(view: LogView) -> list[LogEvent]:
    return list(view.list_signatures("elastic.no_heartbeat", "rdzv.fail", "rdzv.closed"))


def _describe(told: Sequence[_Clock], nodes: tuple[str, ...], refused: Sequence[LogEvent]) -> str:
    where = f" of {' and '.join(nodes)}" if nodes else " of a host"
    worst = max(told, key=lambda one: abs(one.seconds), default=None)
    if worst is None:
        return f"the clock{where} is off: what it sends is refused ({refused[0].text.strip()[:80]})"
    if not worst.seconds:
        lack = "what it sends is refused" if refused else "its heartbeats were found too old"
        return f"nothing keeps the clock{where} in step: {lack}"
    way = "slow" if worst.seconds < 0 else "fast"
    verb = "are" if len(nodes) > 1 else "is"
    return (
        f"the clock{'s' * (len(nodes) > 1)}{where} {verb} {abs(worst.seconds):.1f} s {way}: "
        "heartbeats, tokens and leases that hosts compare are too old, or of the future"
    )


def _find_host(view: LogView, event: LogEvent) -> str:
    return find_prompt_host(view, event, "clock.asked")


def _list_offsets(view: LogView) -> Iterator[_Clock]:
    for event in view.list_signatures("clock.offset"):
        told = event.groups
        if span := told.get("diff"):
            hours, minutes, seconds = _SPAN.fullmatch(span).groups("0")  # type: ignore[union-attr]
            yield _Clock("", int(hours) * 3600 + int(minutes) * 60 + float(seconds), event)
        elif told.get("s"):
            sign = -1 if told["way"] == "slow" else 1
            yield _Clock(_find_host(view, event), sign * float(told["s"]), event)
        elif told.get("ms"):
            yield _Clock(_find_host(view, event), -float(told["ms"]) / 1000, event)
        else:
            # How much is to be added to the clock.
            text = told.get("wrong") or told.get("off") or told.get("off2") or "0"
            yield _Clock(_find_host(view, event), -float(text), event)


def _list_shown(view: LogView) -> Iterator[_Clock]:
    """Yield how far the clock of a host is from its battery clock, which stand side by side."""
    shown: dict[str, datetime] = {}
    for event in view.list_signatures("clock.shown"):
        host = _find_host(view, event)
        time = datetime.fromisoformat(event.groups["t"])
        if event.groups["what"] == "Universal":
            shown[host] = time
        elif host in shown:
            seconds = (shown[host] - time).total_seconds()
            if abs(seconds) >= _LEAST_RTC_S and seconds % 900:
                # A battery clock may be set to the local time.
                yield _Clock(host, seconds, event)


def _list_loose(view: LogView) -> list[_Clock]:
    """Return the hosts whose clock nothing keeps in step."""
    return [
        _Clock(_find_host(view, event), 0.0, event)
        for event in view.list_signatures("clock.synced")
        if event.groups.get("is") == "no"
        or (event.groups.get("leap") or "Normal") != "Normal"
        or event.groups.get("stat") == "unsynchronised"
    ]


def _is_removed(removed: Sequence[LogEvent], host: str) -> bool:
    """Tell whether a rendezvous took out a host, as its heartbeat was too old."""
    members = [name for event in removed for name in _MEMBER.findall(event.groups["members"])]
    return any(is_same_host(name, host) for name in members)
