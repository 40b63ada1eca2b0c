"""C210 by what launchers say that start ranks on other hosts: by ssh, mpirun, pdsh, Hydra."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time, is_said
from whystuck.diagnose.logs.story import OWN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6
# So far below what a launcher says it names the host.
_NEAR = 14
# A host before the words of its shell, of a log that has too few lines to tell that it is one.
_BEFORE = re.compile(r"^(?P<node>(?=[\w.]*[\d-])[A-Za-z][\w.-]{0,62}): (?!.*\bHYD)")
_NAMES = ("node", "node2", "node3", "node4")
_REASONS = ("why", "why2")


def make_unstarted(view: LogView) -> Iterator[Case]:
    """Make the case of hosts on which a launcher could not start anything."""
    said = [event for event in view.list_signatures("launch.daemon") if is_said(event)]
    if not said:
        return
    logins = [event for event in view.list_signatures("launch.login") if is_said(event)]
    targets = [event for event in view.list_signatures("launch.target") if _is_near(event, said)]
    events = [*logins, *targets, *said]
    nodes = tuple(sorted({name for event in events if (name := _find_host(event))}))
    why = next((text for event in logins if (text := _find_reason(event))), "")
    where = " and ".join(nodes[:4]) or "a host"
    reason = f" ({why})" if why else ""
    is_short = any("slots" in event.text for event in said)
    yield Case(
        code=codes.CONFIG_ERROR,
        summary="more ranks are to be started than the hosts have slots for"
        if is_short
        else f"the launcher could not start anything on {where}{reason}",
        tier=OWN,
        nodes=nodes,
        lines=tuple(events[:_MAX_LINES]),
        time=find_time(events),
        details={"kind": "launcher", "words": {"host": " ".join(nodes), "what": why}},
        remedies=_advise(nodes, is_short=is_short),
        scope=view.ranks,
    )


def _advise(nodes: Sequence[str], *, is_short: bool) -> tuple[str, ...]:
    if is_short:
        return ("mpirun --host A:8,B:8 ..., or slots=8 behind each host of the hostfile",)
    host = nodes[0] if nodes else "HOST"
    return (
        f"ssh -o BatchMode=yes {host} true   # from the host of the launcher: without a password",
        f"ssh {host} 'command -v orted prted python'   # what a shell without a terminal finds",
    )


def _is_near(event: LogEvent, said: Sequence[LogEvent]) -> bool:
    """Tell whether a line stands below one in which a launcher says that it failed."""
    return any(one.artifact == event.artifact and 0 <= event.row - one.row <= _NEAR for one in said)


def _find_host(event: LogEvent) -> str:
    named = next((name for key in _NAMES if (name := event.groups.get(key) or "")), "")
    if named or event.signature == "launch.target":
        return named
    before = _BEFORE.match(event.text)
    if before is not None:
        return before["node"]
    # What the launcher says is of its own host; what a shell says, of the one that it runs on.
    return event.node if "not found" in event.text or event.signature == "launch.login" else ""


def _find_reason(event: LogEvent) -> str:
    told = next((text for key in _REASONS if (text := event.groups.get(key) or "")), "")
    return told or event.text.rpartition(": ")[2].strip().rstrip(".")[:80]
