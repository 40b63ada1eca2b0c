"""N410 by counters of errors: the port that counts them where others like it do not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.devices.pairs import find_slow_pairs
from whystuck.diagnose.logs.story import WAIT, Case
from whystuck.diagnose.logs.view import LogView, is_same_host
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent

# Nearer to a cause than that ranks waited, or that a transfer was given up.
_TIER = WAIT - 2
_MAX_LINES = 6
# A link that was plugged in or repaired once has some of each.
_LEAST = {"symbols": 1000, "downs": 10, "recoveries": 50, "errors": 1000}
# So many ports tell which rate is the usual one.
_LEAST_PORTS = 3
# The others are well where they have less than this part of it.
_WELL = 0.01
_WORDS = {
    "symbols": "symbol errors",
    "downs": "times down",
    "recoveries": "recoveries",
    "errors": "receive errors",
}


@dataclass
class _Port:
    """The counters of one card of one host."""

    host: str
    card: str
    counts: dict[str, int] = field(default_factory=dict)
    events: list[LogEvent] = field(default_factory=list)

    def exceeds(self, other: _Port) -> bool:
        """Tell whether it counts far more of anything than another port."""
        return any(
            count >= _LEAST[what] and other.counts.get(what, 0) <= _WELL * count
            for what, count in self.counts.items()
        )


def make_port_errors(view: LogView) -> Iterator[Case]:
    """Make the case of ports that count errors, where most of those that are shown do not."""
    ports: dict[tuple[str, str], _Port] = {}
    for event in view.list_signatures("table.port_errors"):
        key = event.node or event.artifact, event.groups["card"]
        port = ports.setdefault(key, _Port(event.node, key[1]))
        port.counts[event.groups["what"]] = int(event.groups["count"])
        port.events.append(event)
    pairs = find_slow_pairs(view)
    slow = _list_slow(view) | _list_noted(view, ports, pairs)
    bad = [
        port
        for key, port in ports.items()
        if _is_odd(port, list(ports.values())) or (key in slow and port.exceeds(_Port("", "")))
    ]
    if not bad:
        return
    is_slow = any((port.host or port.events[0].artifact, port.card) in slow for port in bad)
    rest = "it next to none" if len(ports) > 1 else "it are faster" if is_slow else ""
    nodes = tuple(sorted({port.host for port in bad} - {""}))
    first = max(bad, key=lambda port: max(port.counts.values()))
    counts = {what: count for what, count in first.counts.items() if count >= _LEAST[what]}
    told = ", ".join(f"{count} {_WORDS[what]}" for what, count in counts.items())
    name = f"port of {first.card}" if first.card else "a port"
    yield Case(
        code=codes.FABRIC_ERRORS,
        summary=f"{name}{f' on {first.host}' if first.host else ''} counts {told}, and others like "
        f"{rest}: its cable or its other end is broken",
        tier=_TIER,
        nodes=nodes,
        lines=tuple(event for port in bad for event in port.events)[:_MAX_LINES],
        confidence=Confidence.LIKELY,
        details={"port": first.card, **counts},
        remedies=(
            "perfquery -R, and again after a minute of the job: do the counters rise?",
            "change the cable, or leave the port out with `NCCL_IB_HCA=^CARD`",
        ),
        is_foreign=True,
        entails=tuple(
            row
            for host, rows in pairs.items()
            if any(is_same_host(host, node) for node in nodes)
            for row in rows
        ),
    )


def _list_slow(view: LogView) -> set[tuple[str, str]]:
    """Find the cards that came up at half the rate of most of their host, or less.

    By itself that tells nothing: many hosts have a slower card for their storage.
    """
    rates: dict[str, dict[str, float]] = {}
    for event in view.list_signatures("table.port"):
        if event.groups["state"] == "active" and (rate := event.groups.get("rate")):
            card = event.groups["card"]
            rates.setdefault(event.node or event.artifact, {})[card] = float(rate)
    usual = {host: sorted(cards.values())[len(cards) // 2] for host, cards in rates.items()}
    return {
        (host, card)
        for host, cards in rates.items()
        for card, rate in cards.items()
        if len(cards) >= _LEAST_PORTS and 2 * rate <= usual[host]
    }


def _list_noted(
    view: LogView, ports: Iterable[tuple[str, str]], slow: Iterable[str]
) -> set[tuple[str, str]]:
    """Find the ports of hosts whose pairs are all slow, as somebody says or a table shows."""
    hosts = {event.groups["host"] for event in view.list_signatures("note.slow_host")} | {*slow}
    return {(host, card) for host, card in ports if any(is_same_host(host, one) for one in hosts)}


def _is_odd(port: _Port, ports: list[_Port]) -> bool:
    """Tell whether a port counts errors that most of the others do not."""
    others = [other for other in ports if other is not port]
    return bool(others) and 2 * sum(map(port.exceeds, others)) > len(others)
