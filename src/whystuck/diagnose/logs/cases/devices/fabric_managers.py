"""C210 where the fabric manager of a host does not fit its driver, so that no device works."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.devices.following import LACKS_DEVICES
from whystuck.diagnose.logs.cases.parts import find_time, is_said
from whystuck.diagnose.logs.story import ALOOF, LINKED, NEAR, OUTSIDE, Case
from whystuck.diagnose.logs.view import LogView, is_same_host
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6
_UNREADY = "cuda.system_not_ready"
# What torch says in place of finding a device.
_NO_DEVICE = "no GPUs found"


def make_fabric_managers(view: LogView) -> Iterator[Case]:
    """Make a case of each host whose fabric manager says that it is of another version.

    It does not run then. On such hosts no process gets a device before it runs, so that errors of
    processes there which find none follow from it.
    """
    by_node: dict[str, list[LogEvent]] = {}
    for event in view.list_signatures("fm.version_mismatch"):
        if is_said(event):
            by_node.setdefault(event.node, []).append(event)
    for node, events in by_node.items():
        yield _make_case(view, node, events)


def _make_case(view: LogView, node: str, events: Sequence[LogEvent]) -> Case:
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
    is_far = all(view.is_felt(event.time) is False for event in events)
    told = events[-1].groups
    of = f"the fabric manager of {node}" if node else "the fabric manager"
    return Case(
        code=codes.CONFIG_ERROR,
        summary=f"{of} is of another version ({told['fm']}) than the driver ({told['driver']}): it "
        "does not run, and no device works before it does",
        tier=OUTSIDE,
        nodes=(node,) if node else (),
        lines=(*events[:2], *felt)[:_MAX_LINES],
        exceptions=raised,
        time=find_time(events),
        details={"kind": "driver", "words": {"fm": told["fm"], "driver": told["driver"]}},
        remedies=(
            f"apt list --installed | grep -i -E 'fabricmanager|nvidia'   # on {node or 'it'}",
            "install both of one version, then `systemctl restart nvidia-fabricmanager`",
        ),
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
    return _NO_DEVICE in text or LACKS_DEVICES.search(text) is not None


def _is_on(own: str, node: str, pods: Collection[str]) -> bool:
    """Tell whether a line is of a host, of a pod that is on it, or of none that is known."""
    return not own or not node or is_same_host(own, node) or own in pods
