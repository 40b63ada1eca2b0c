"""C210 of libraries that were told to use a transport which is not there: libfabric, UCX, NCCL."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time, is_said, list_ranks
from whystuck.diagnose.logs.story import OWN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6
# What names the transport itself goes before what chooses the library that has it.
_CHOOSERS = {"CCL_ATL_TRANSPORT", "I_MPI_FABRICS"}


def make_transports(view: LogView) -> Iterator[Case]:
    """Make the case of a transport that is not there, which ends every rank that asks for it."""
    failed = [
        event
        for event in view.list_signatures("net.no_provider")
        if is_said(event) and not event.is_past
    ]
    if not failed:
        return
    absent = [event for event in view.list_signatures("net.provider_absent") if is_said(event)]
    asked = list(view.list_signatures("net.asked"))
    asked.sort(key=lambda event: event.groups["name"] in _CHOOSERS)
    ranks = list_ranks(failed)
    yield Case(
        code=codes.CONFIG_ERROR,
        summary=_describe(failed, absent, asked),
        tier=OWN,
        victims=ranks,
        lines=(*failed, *absent, *asked)[:_MAX_LINES],
        time=find_time(failed),
        details={"kind": "transport", "words": dict(asked[0].groups) if asked else {}},
        remedies=(
            "fi_info -l; ucx_info -d; ibv_devinfo   # on a node, in the container: what there is",
            (
                f"set {asked[0].groups['name']} to one of them, or leave it out"
                if asked
                else "choose one of them, or let the library choose"
            ),
            "install the library of the provider in the image, and give the container its devices",
        ),
        scope=view.ranks,
    )


def _describe(failed: list[LogEvent], absent: list[LogEvent], asked: list[LogEvent]) -> str:
    """Tell what was asked for, and what there is, as far as it is told."""
    name = next((net for event in failed if (net := event.groups.get("net") or "")), "")
    told = next((one for event in absent if (one := event.groups.get("name") or "")), "")
    have = next((one for event in absent if (one := event.groups.get("have") or "")), "")
    part = next((one for event in failed if (one := event.groups.get("part") or "")), "")
    what = name or told
    setting = f"{asked[0].groups['name']}={asked[0].groups['value']}" if asked else ""
    if setting:
        head = f"{setting} asks for a transport that is not there"
    elif what:
        head = f"the transport {what} is not there"
    elif part:
        head = f"Open MPI has no component for its framework {part}"
    else:
        head = "no transport that the library may use is there"
    return f"{head}; there are {have.strip()}" if have else head
