"""N403 by how much room somebody shows in /dev/shm, where processes died for want of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import name_fatal, name_signal
from whystuck.diagnose.logs.cases.parts import find_exceptions, find_time, is_said, list_ranks
from whystuck.diagnose.logs.story import OWN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.live import PythonException
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6
# As the policy of `whystuck check` has it: batches of a few workers fill that.
_LEAST_FREE = 512 << 20
_MB = 1 << 20
_SAID = ("py.shm_small", "nccl.shm")
_BUS = "SIGBUS"
# Who gets memory there, in tracebacks of a full device.
_SHARES = (
    "multiprocessing/heap.py",
    "shared_memory.py",
    "torch/multiprocessing/",
    "/reductions.py",
)
_FULL = ("No space left", "Cannot allocate memory")


def make_shared_memory(view: LogView) -> Iterator[Case]:
    """Make the case of shared memory that is shown to be small or full, and that was felt.

    Room that is left says nothing: what a dead process had there is free again.
    """
    low = [one for one in view.list_signatures("table.shm") if _is_low(one)]
    if not low:
        return
    said = [one for one in view.list_signatures(*_SAID) if is_said(one)]
    crashed = [one for one in view.list_signatures("py.bus_error") if is_said(one)]
    raised = (*find_exceptions(view, [*said, *crashed]), *_find_full(view))
    exits = tuple(one for one in view.exits if name_signal(one) == _BUS)
    fatals = tuple(one for one in view.fatals if name_fatal(one.reason) == _BUS)
    if not (said or crashed or raised or exits or fatals):
        return
    felt = [*said, *crashed]
    ranks = list_ranks([*felt, *raised, *exits])
    nodes = _find_nodes(view, felt)
    size, free = (int(low[0].groups[name]) // _MB for name in ("size", "free"))
    yield Case(
        code=codes.SHM_SMALL,
        summary=f"shared memory (/dev/shm) has {free} MiB free of {size} MiB"
        + (f" on {' and '.join(nodes)}" if nodes else "")
        + ": processes that hand data over in it end with a bus error",
        # Before the mistake in the environment and the crash that the same lines tell.
        tier=OWN - 1,
        nodes=nodes,
        victims=ranks,
        lines=(*low[:2], *felt)[:_MAX_LINES],
        exceptions=tuple(raised),
        exits=exits,
        fatals=fatals,
        time=find_time(felt, raised, exits),
        details={"size_mb": size, "free_mb": free},
        remedies=(
            "docker run --shm-size=16g ... or --ipc=host",
            "Kubernetes: an emptyDir with `medium: Memory`, mounted at /dev/shm",
            "fewer workers of the data loader need less",
        ),
        scope=frozenset(ranks),
        entails=tuple(felt),
    )


def _is_low(event: LogEvent) -> bool:
    return int(event.groups["free"]) < _LEAST_FREE


def _find_full(view: LogView) -> Sequence[PythonException]:
    """Return the errors of a full device that were raised where shared memory is taken."""
    return [
        item
        for item in view.exceptions
        if any(word in item.message for word in _FULL)
        and any(part in frame.file for frame in item.frames for part in _SHARES)
    ]


def _find_nodes(view: LogView, felt: Sequence[LogEvent]) -> tuple[str, ...]:
    """Return the hosts that felt it, where others did not."""
    nodes = {one.node or view.node_by_rank.get(one.rank, "") for one in felt} - {""}
    return tuple(sorted(nodes)) if nodes < view.hosts else ()
