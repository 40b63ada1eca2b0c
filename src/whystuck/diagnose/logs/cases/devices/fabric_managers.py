"""C210 where the fabric manager of a host does not run, so that no device works.

It does not fit the driver, or tools show that it has failed or was never started.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.devices.following import LACKS_DEVICES
from whystuck.diagnose.logs.cases.parts import find_time, is_said
from whystuck.diagnose.logs.story import ALOOF, LINKED, NEAR, OUTSIDE, Case
from whystuck.diagnose.logs.view import LogView, is_same_host
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6
_UNREADY = "cuda.system_not_ready"
_UNREADY_TEXT = "system not yet initialized"
# States of its service in which it does not run.
_OFF = {"failed", "inactive", "deactivating"}
# What torch says in place of finding a device.
_NO_DEVICE = "no GPUs found"


@dataclass(frozen=True)
class _Down:
    """What tells that the fabric manager of a host does not run, and what is to be said of it."""

    node: str
    events: tuple[LogEvent, ...]
    why: str
    words: dict[str, str]
    remedies: tuple[str, ...]


def make_fabric_managers(view: LogView) -> Iterator[Case]:
    """Make a case of each host whose fabric manager is of another version, or does not run.

    On such hosts no process gets a device before it runs, so that errors of processes there which
    find none follow from it. That it is off means nothing where they do: few hosts need one.
    """
    by_node: dict[str, list[LogEvent]] = {}
    for event in view.list_signatures("fm.version_mismatch"):
        if is_said(event):
            by_node.setdefault(event.node, []).append(event)
    for node, events in by_node.items():
        yield _make_case(view, _tell_versions(node, events))
    for down in () if by_node else _list_off(view):
        case = _make_case(view, down)
        if any(event.signature == _UNREADY for event in case.entails) or _is_raised(case):
            yield case


def _tell_versions(node: str, events: Sequence[LogEvent]) -> _Down:
    told = events[-1].groups
    return _Down(
        node,
        tuple(events),
        f"is of another version ({told['fm']}) than the driver ({told['driver']}): it does not run",
        {"fm": told["fm"], "driver": told["driver"]},
        (
            f"apt list --installed | grep -i -E 'fabricmanager|nvidia'   # on {node or 'it'}",
            "install both of one version, then `systemctl restart nvidia-fabricmanager`",
        ),
    )


def _list_off(view: LogView) -> Iterator[_Down]:
    """Yield hosts whose fabric manager is off or has failed, as the last line about it says."""
    last = {event.groups["host"]: event for event in view.list_signatures("table.service")}
    for host, event in last.items():
        if event.groups["state"] in _OFF:
            yield _Down(
                host,
                (event,),
                f"does not run ({event.groups['state']})",
                {"state": event.groups["state"]},
                (
                    f"journalctl -u nvidia-fabricmanager   # on {host or 'it'}: why it ended",
                    "systemctl enable --now nvidia-fabricmanager   # of the version of the driver",
                ),
            )


def _is_raised(case: Case) -> bool:
    return any(_UNREADY_TEXT in item.message for item in case.exceptions)


def _make_case(view: LogView, down: _Down) -> Case:
    node = down.node
    pods = {
        one.groups["pod"]
        for one in view.list_signatures("table.pod_host")
        if is_same_host(one.groups["host"], node)
    }
    felt = [event for event in _list_felt(view) if _is_on(event.node, node, pods)]
    raised = tuple(
        item
        for item in view.exceptions
        if _lacks_device(item.message) and _is_on(item.node, node, pods)
    )
    is_far = all(view.is_felt(event.time) is False for event in down.events)
    of = f"the fabric manager of {node}" if node else "the fabric manager"
    return Case(
        code=codes.CONFIG_ERROR,
        summary=f"{of} {down.why}, and no device works before it does",
        tier=OUTSIDE,
        nodes=(node,) if node else (),
        lines=(*down.events[:2], *felt)[:_MAX_LINES],
        exceptions=raised,
        time=find_time(down.events),
        details={"kind": "driver", "words": down.words},
        remedies=down.remedies,
        scope=view.list_possible_ranks_on(node) if node else view.ranks,
        support=LINKED if felt or raised else ALOOF if is_far else NEAR,
        is_foreign=True,
        entails=tuple(felt),
    )


def _list_felt(view: LogView) -> Iterator[LogEvent]:
    """Yield what processes say that got no device."""
    yield from view.list_signatures(_UNREADY)
    for code in (codes.PYTHON_EXCEPTION, codes.CONFIG_ERROR):
        for event in view.list_events(code, "cause"):
            if _lacks_device(event.text):
                yield event


def _lacks_device(text: str) -> bool:
    return _NO_DEVICE in text or _UNREADY_TEXT in text or LACKS_DEVICES.search(text) is not None


def _is_on(own: str, node: str, pods: Collection[str]) -> bool:
    """Tell whether a line is of a host, of a pod that is on it, or of none that is known."""
    return not own or not node or is_same_host(own, node) or own in pods
