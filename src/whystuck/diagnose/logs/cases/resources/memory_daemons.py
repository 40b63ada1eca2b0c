"""C202 by what daemons say that watch memory: systemd-oomd and earlyoom end whoever uses most."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.story import ALOOF, LINKED, OUTSIDE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.ranks import name_ranks


def make_daemons(view: LogView) -> Iterator[Case]:
    """Make the case of a daemon that ends what uses most memory, before the kernel has to."""
    for event in list(view.list_signatures("oomd.killed"))[:1]:
        pid = event.groups.get("pid") or event.groups.get("pid2") or ""
        rank = view.find_rank_of_pid(int(pid), event.node) if pid else None
        who = name_ranks([rank]) if rank is not None else f"process {pid}" if pid else ""
        who = who or event.groups.get("what") or event.groups.get("what2") or "a process"
        yield Case(
            code=codes.HOST_OUT_OF_MEMORY,
            summary=f"a daemon that watches memory ended {who}"
            + (f" on {event.node}" if event.node else ""),
            tier=OUTSIDE,
            ranks=() if rank is None else (rank,),
            nodes=(event.node,) if event.node else (),
            lines=(event,),
            time=event.time,
            confidence=Confidence.LIKELY,
            details={},
            remedies=("use less host memory, or raise the limits of systemd-oomd or earlyoom",),
            support=ALOOF if view.is_felt(event.time) is False else LINKED,
            is_foreign=True,
        )
