"""H121 by a store or an id that an earlier run has used: more came to it than there are."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.rendezvous import name_reach
from whystuck.diagnose.logs.cases.network.rendezvous_lines import Answer, Told, find_counted
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.story import OWN, WAIT, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence

_MAX_LINES = 6


def make_closed(view: LogView) -> Iterator[Case]:
    """Make the case of launchers that find the rendezvous closed, and tell of nothing before.

    The store keeps that a run has ended: one of the same id cannot begin.
    """
    closed = list(view.list_signatures("rdzv.closed"))
    other = [event for event in view.events if event.signature != "rdzv.closed"]
    is_begun = any(event.role != "context" or event.pid for event in other) or bool(view.exits)
    is_begun |= any(file.loss_ranks for file in view.files)
    if is_begun or not any("ClosedError" in event.text for event in closed):
        return
    run = next((name for event in closed if (name := event.groups.get("run") or "")), "")
    yield Case(
        code=codes.RENDEZVOUS_FAILED,
        summary=f"the rendezvous{f' of run {run}' if run else ''} was closed before anybody could "
        "join: a run of the same id may have ended before",
        tier=WAIT,
        lines=tuple(closed[:_MAX_LINES]),
        exceptions=tuple(item for item in view.exceptions if "ClosedError" in item.type),
        time=find_time(closed),
        confidence=Confidence.POSSIBLE,
        details={"kind": "closed", "run": run},
        remedies=("start with another --rdzv-id: the store remembers that this one has ended",),
    )


def find_surplus(told: Told) -> Answer | None:
    """Find a store to which more processes came than there are: it is not this run's alone."""
    surplus = [counts for counts in told.meeting.counts if counts[0] > counts[1]]
    if not surplus:
        return None
    joined, world = max(surplus)
    file = _find_store_file(told)
    where = f"the store in {file}" if file else "the store"
    whose = (
        "an earlier run left its file behind"
        if file
        else "another run used it too: a file of an earlier one, or the same address at one time"
    )
    return Answer(
        "store-used-before",
        f"{joined} processes came to {where} of a job of {world}: {whose}",
        tier=OWN,
        keys=find_counted(told),
        details={"joined": joined, "expected": world, "file": file},
        remedies=_advise_on_store(file),
    )


def find_old_file(told: Told) -> Answer | None:
    """Find that ranks which meet by a file try addresses that refuse them: those of another run."""
    file = _find_store_file(told)
    if not file or told.meeting.addresses or name_reach(told.meeting) != "refused":
        return None
    return Answer(
        "store-used-before",
        f"an address in the store's file {file} refused the connection: an earlier run may have "
        "left the file behind, or a rank of this one has ended",
        confidence=Confidence.POSSIBLE,
        details={"file": file},
        remedies=_advise_on_store(file),
    )


def _find_store_file(told: Told) -> str:
    """Return the file by which ranks meet, as a call in a traceback or a line names it."""
    for event in told.view.list_signatures("store.file"):
        return event.groups.get("file") or event.groups.get("file2") or ""
    return ""


def _advise_on_store(file: str) -> tuple[str, ...]:
    return (
        f"rm {file or 'FILE'}   # before each run, or a file of another name for each of them",
        "or meet without a file: `torchrun`, or `init_method='env://'`",
    )
