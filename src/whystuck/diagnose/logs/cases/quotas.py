"""S306 by the counters of a group of processes: its quota of the processor is used up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from whystuck.diagnose import codes
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent

# Of the periods in which the group ran; below, a burst now and then is normal.
_LEAST_SHARE = 0.25
_LEAST_PERIODS = 100
# Rows from one counter of a group to the next; all files have them one below the other.
_MOST_APART = 1
_MAX_LINES = 6


@dataclass(frozen=True)
class _Count:
    """In how many of its periods a group was held up."""

    share: float
    lines: tuple[LogEvent, ...]


def make_quotas(view: LogView) -> Iterator[Case]:
    """Make the case of processes that are held up in most periods, as cpu.stat tells."""
    counts = [one for pair in _list_pairs(view) if (one := _count(pair)) is not None]
    held = [one for one in counts if one.share >= _LEAST_SHARE]
    if not held:
        return
    worst = max(held, key=lambda one: one.share)
    yield Case(
        code=codes.CPU_STARVED,
        summary=f"the quota of the processor was used up in {100 * worst.share:.0f} % of all "
        "periods: loaders and launches of kernels wait for it on all ranks of the container",
        tier=NOTE,
        lines=tuple(line for one in [worst, *held] for line in one.lines)[:_MAX_LINES],
        details={"throttled_share": worst.share},
        remedies=(
            "raise the limit of the container (in Kubernetes `resources.limits.cpu`)",
            "or start fewer workers and threads: OMP_NUM_THREADS, num_workers",
        ),
    )


def _list_pairs(view: LogView) -> Iterator[dict[str, LogEvent]]:
    """Yield the counters of each group that somebody printed; one text may show several."""
    pair: dict[str, LogEvent] = {}
    last: LogEvent | None = None
    for event in view.list_signatures("cgroup.throttle"):
        is_near = last is not None and last.artifact == event.artifact
        is_near = is_near and last is not None and event.row - last.row <= _MOST_APART
        if event.groups["what"] in pair or not is_near:
            yield pair
            pair = {}
        pair[event.groups["what"]] = last = event
    yield pair


def _count(pair: dict[str, LogEvent]) -> _Count | None:
    """Read the counters of one group, None where one is missing or it hardly ran."""
    if not {"periods", "throttled"} <= pair.keys():
        return None
    periods, held = (int(pair[what].groups["count"]) for what in ("periods", "throttled"))
    if periods < _LEAST_PERIODS:
        return None
    return _Count(held / periods, (pair["throttled"], pair["periods"]))
