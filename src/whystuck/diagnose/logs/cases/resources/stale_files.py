"""C204 of ranks that lost a file system: those of one host alone did, so that host lost it."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time, is_said
from whystuck.diagnose.logs.cases.processes.exceptions import list_collected, read_collected
from whystuck.diagnose.logs.story import OWN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_MAX_LINES = 6
_SEVERAL = 2
# What kernels say of a file system that a host has lost.
_LOST = ("nfs.not_responding", "lustre.evicted")
# Nearer to the cause than what each rank raised for it.
_TIER = OWN - 1


def make_stale_files(view: LogView) -> Iterator[Case]:
    """Make the case of one host on which files are gone, while other hosts have them."""
    errors = [
        event
        for event in view.list_signatures("py.stale_fs")
        if is_said(event) and not view.is_of_machine(event)
    ]
    if not errors:
        return
    lost = [event for event in view.list_signatures(*_LOST) if is_said(event)]
    reports = [
        event
        for event in view.list_events(codes.PYTHON_EXCEPTION, "cause")
        if read_collected((event.text,))
    ]
    collected = {*read_collected(event.text for event in reports), *list_collected(view.exceptions)}
    if collected:
        node = _find_loser(view, lost, collected, {event.node for event in reports})
    else:
        node = _find_node(view, errors)
    if not node:
        return
    ranks = collected or {event.rank for event in errors if event.rank >= 0}
    here = [event for event in lost if event.node == node]
    rows = {(event.artifact, event.row) for event in errors}
    raised = tuple(
        item
        for item in view.exceptions
        if item.rank in ranks or (item.artifact, item.last_row) in rows
    )
    who = f"; {name_ranks(sorted(ranks))} failed there" if ranks else ""
    told = f": {here[0].text.strip()[:120]}" if here else ""
    yield Case(
        code=codes.PYTHON_EXCEPTION,
        summary=f"{node} lost a file system that other hosts have{who}{told}",
        tier=_TIER,
        nodes=(node,),
        victims=tuple(sorted(ranks)),
        lines=(*errors[:2], *here, *reports, *errors[2:])[:_MAX_LINES],
        exceptions=raised[:_MAX_LINES],
        time=find_time(here, errors),
        details=dict(zip(("exception", "message"), _part(errors[0]), strict=True)),
        remedies=(
            f"ssh {node} 'dmesg -T | grep -i -e nfs -e lustre; mount'   # and mount it again",
        ),
        scope=frozenset(ranks),
    )


def _part(event: LogEvent) -> tuple[str, str]:
    """Part what a line says was raised into its type and its message."""
    kind, _, message = event.text.strip().partition(": ")
    return kind, message


def _find_node(view: LogView, errors: list[LogEvent]) -> str:
    """Return the one host of several on which several files were gone.

    What all its ranks raised in the same words is a case of its own.
    """
    nodes = {event.node or view.node_by_rank.get(event.rank, "") for event in errors}
    texts = {event.text.strip() for event in errors}
    is_one = len(nodes) == 1 and len(texts) >= _SEVERAL and len(view.hosts - {""}) >= _SEVERAL
    return nodes.pop() if is_one else ""


def _find_loser(view: LogView, lost: list[LogEvent], ranks: set[int], printed: set[str]) -> str:
    """Return the one host whose kernel lost a file system, where these ranks may be those of it.

    Who prints what all of them raised does so on a host of its own.
    """
    nodes = {event.node for event in lost} - {""}
    node = nodes.pop() if len(nodes) == 1 else ""
    known = {view.node_by_rank[rank] for rank in ranks if rank in view.node_by_rank}
    is_theirs = known - printed <= {node} and view.list_ranks_on(node) <= ranks
    return node if is_theirs and not view.is_everywhere(ranks) else ""
