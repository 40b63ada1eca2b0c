"""S306 by the counters of a group of processes: its quota of the processor is used up."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView

# Of the periods in which the group ran; below, a burst now and then is normal.
_LEAST_SHARE = 0.25
_LEAST_PERIODS = 100


def make_quotas(view: LogView) -> Iterator[Case]:
    """Make the case of processes that are held up in most periods, as cpu.stat tells."""
    told = {event.groups["what"]: event for event in view.list_signatures("cgroup.throttle")}
    if not {"periods", "throttled"} <= told.keys():
        return
    periods, held = (int(told[what].groups["count"]) for what in ("periods", "throttled"))
    if periods < _LEAST_PERIODS or held < _LEAST_SHARE * periods:
        return
    yield Case(
        code=codes.CPU_STARVED,
        summary=f"the quota of the processor was used up in {100 * held / periods:.0f} % of all "
        "periods: loaders and launches of kernels wait for it on all ranks of the container",
        tier=NOTE,
        lines=(told["throttled"], told["periods"]),
        details={"throttled_share": held / periods},
        remedies=(
            "raise the limit of the container (in Kubernetes `resources.limits.cpu`)",
            "or start fewer workers and threads: OMP_NUM_THREADS, num_workers",
        ),
    )
