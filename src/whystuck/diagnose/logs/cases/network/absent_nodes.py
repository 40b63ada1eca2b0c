"""H121 of nodes that came to a rendezvous of torchrun, and of those that did not."""

from __future__ import annotations

import re

from whystuck.diagnose.algorithms.failures.rendezvous import is_number
from whystuck.diagnose.logs.cases.network.rendezvous_lines import Answer, Told
from whystuck.diagnose.logs.view import LogView

_DIGITS = re.compile(r"\d{1,9}")
# A launcher calls itself after its host, its process and a counter.
_MEMBER = re.compile(r"^(?P<host>.{1,200})_\d{1,9}_\d{1,9}$")
# That a name has no address of one kind is a warning: there is another kind.
_WARNINGS = {"net.dns6"}
_SEVERAL = 2


def has_store(told: Told, key: int) -> bool:
    """Tell whether a host only warns of a name, and came to the rendezvous at that name."""
    event = told.events.get(key)
    if event is None or event.signature not in _WARNINGS or told.meeting.endpoints:
        return False
    return event.node != "" and event.node in list_joined(told.view)


def list_joined(view: LogView) -> set[str]:
    """Return the hosts whose launchers came to the store of the rendezvous."""
    hosts = set[str]()
    for event in view.list_signatures("elastic.join"):
        member = _MEMBER.match(event.groups.get("member") or "")
        hosts.add(event.node or (member["host"] if member else ""))
    return hosts - {""}


def find_nodes_missing(told: Told) -> Answer | None:
    """Find how many nodes a launcher waited for, how many asked to join, and who did not."""
    view = told.view
    wanted = [
        int(event.groups["nodes"])
        for event in view.list_signatures("elastic.min_nodes")
        if is_number(event.groups.get("nodes") or "")
    ]
    joins = list(view.list_signatures("elastic.join"))
    came = {event.groups.get("member") or "" for event in joins}
    silent = _list_silent(view)
    most = max(wanted, default=len(came) + len(silent))
    if not came or len(came) >= most:
        return None
    nodes = tuple(silent) if len(silent) == most - len(came) else ()
    if nodes:
        who = f"{' and '.join(nodes)} wrote lines, but none of a launcher that joins"
    else:
        who = "there is no log of the others"
    return Answer(
        "missing-node",
        f"{len(came)} of {most} nodes came to the rendezvous; {who}",
        nodes=nodes,
        details={"joined": len(came), "expected": most, "members": sorted(came)},
        remedies=(
            (
                "look at the nodes that did not come: was the launcher started there, with the "
                "same --rdzv-id and --rdzv-endpoint"
            ),
        ),
    )


def _list_silent(view: LogView) -> list[str]:
    """Return hosts that wrote lines and are named like those that came, of which there are more."""
    joined = list_joined(view)
    shapes = {_DIGITS.sub("0", host) for host in joined}
    hosts = frozenset[str]().union(*(file.hosts for file in view.files))
    silent = sorted(host for host in hosts - joined if _DIGITS.sub("0", host) in shapes)
    return silent if len(joined) >= _SEVERAL and len(silent) < len(joined) else []
