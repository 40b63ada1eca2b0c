"""Whether a process moves: CPU time, bytes, and frames that change between samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from whystuck.evidence.live import ProcessSample, StackSample

_NS_PER_S = 1e9


@dataclass(frozen=True)
class Activity:
    """How a process moved over the samples; shares and rates are None when unknown.

    ``disk_moves`` says that the disk which the main thread waited for in the last look, in one call
    such as ``fsync``, completed requests meanwhile. ``asleep_s`` is how long before the last look
    the main thread is known not to have run at all.
    """

    state: str = ""
    span_s: float = 0.0
    cpu_share: float | None = None
    children_cpu_share: float | None = None
    read_bytes: int = 0
    write_bytes: int = 0
    stack_moves: bool = False
    function_moves: bool = False
    disk_moves: bool = False
    asleep_s: float = 0.0
    woke: bool = False
    samples: int = 0
    artifact: str = ""

    @property
    def is_stopped(self) -> bool:
        """Whether the kernel holds the process stopped."""
        return self.state in {"T", "t"}

    @property
    def read_mb_per_s(self) -> float:
        """Megabytes read a second between the samples."""
        return self.read_bytes / self.span_s / 1e6 if self.span_s else 0.0

    @property
    def write_mb_per_s(self) -> float:
        """Megabytes written a second between the samples."""
        return self.write_bytes / self.span_s / 1e6 if self.span_s else 0.0


def measure_activity(processes: Sequence[ProcessSample], stacks: Sequence[StackSample]) -> Activity:
    """Compare the first and the last look at one process.

    Args:
        processes: Looks at /proc, of one process.
        stacks: Stack samples of the same process.

    Returns:
        What changed between them.
    """
    looks = sorted(processes, key=lambda sample: sample.taken_ns)
    # Without frames it was torn while it was read, and shows no movement.
    mains = [sample.main.frames for sample in stacks if sample.main and sample.main.frames]
    lines = {tuple((frame.file, frame.line) for frame in frames) for frames in mains}
    functions = {tuple((frame.file, frame.function) for frame in frames) for frames in mains}
    moves = Activity(
        stack_moves=len(lines) > 1,
        function_moves=len(functions) > 1,
        samples=len(mains),
    )
    if not looks:
        return moves
    first, last = looks[0], looks[-1]
    span_s = (last.taken_ns - first.taken_ns) / _NS_PER_S
    # A state that is T in every look only: a tracer stops a process for a moment.
    states = {look.state for look in looks}
    state = last.state if states <= {"T", "t"} or last.state not in {"T", "t"} else "S"
    return replace(
        moves,
        state=state,
        span_s=span_s,
        cpu_share=(last.cpu_s - first.cpu_s) / span_s if span_s > 0 else None,
        children_cpu_share=_share_children(first, last, span_s),
        read_bytes=last.read_bytes - first.read_bytes,
        write_bytes=last.write_bytes - first.write_bytes,
        disk_moves=_has_moving_disk(first, last),
        asleep_s=_measure_sleep(looks),
        woke=_has_woken(looks),
        artifact=last.artifact,
    )


def _measure_sleep(looks: Sequence[ProcessSample]) -> float:
    """Measure how long the main thread was never put on a processor before the last look."""
    last = looks[-1]
    asleep_ns = 0
    for look in reversed(looks):
        if look.switches < 0 or look.switches != last.switches or look.state == "R":
            break
        asleep_ns = last.taken_ns - look.taken_ns
    return asleep_ns / _NS_PER_S


def _has_woken(looks: Sequence[ProcessSample]) -> bool:
    ran = {later.switches != look.switches for look, later in pairwise(looks)}
    return len(ran) > 1 and all(look.switches >= 0 for look in looks)


def _share_children(first: ProcessSample, last: ProcessSample, span_s: float) -> float | None:
    """Return the share of a core that the children used; None when not all of them were seen."""
    if span_s <= 0 or min(first.children_cpu_s, last.children_cpu_s) < 0:
        return None
    # A child that ended and was not waited for takes its time with it: that is movement too.
    return abs(last.children_cpu_s - first.children_cpu_s) / span_s


def _has_moving_disk(first: ProcessSample, last: ProcessSample) -> bool:
    before = {(wait.thread_id, wait.mount): wait.done for wait in first.file_waits}
    return any(
        wait.is_main and before.get((wait.thread_id, wait.mount), wait.done) != wait.done
        for wait in last.file_waits
    )
