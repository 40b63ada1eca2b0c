"""N404 by how many processes a user may have, where a program could not start another one."""

from __future__ import annotations

from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import (
    find_exceptions,
    find_time,
    is_said,
    list_ranks,
    place_exceptions,
)
from whystuck.diagnose.logs.story import OWN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.live import PythonException

_MAX_LINES = 6
# Threads of all processes of a user count: eight ranks with their loaders have some thousands.
_LOW = 1 << 15
_REFUSED = "Resource temporarily unavailable"
_STARTS = ("fork", "_launch", "start", "_start_thread", "start_new_thread", "spawn", "Popen")


def make_process_limits(view: LogView) -> Iterator[Case]:
    """Make the case of a limit that is shown to be low, where a thread or process was refused.

    Without the number, the same lines are a mistake in the environment.
    """
    felt = [one for one in view.list_signatures("py.thread_limit") if is_said(one)]
    exceptions = tuple(
        dict.fromkeys((*find_exceptions(view, felt), *filter(_is_refused, view.exceptions)))
    )
    low = [
        one
        for one in view.list_signatures("table.process_limit")
        if 0 < int(one.groups["count"]) <= _LOW
    ]
    if not low or not (felt or exceptions):
        return
    own = [one for one in low if one.groups["is_own"]] or low
    count = min(int(one.groups["count"]) for one in own)
    nodes = tuple(sorted({one.node for one in own} - {""}))
    victims = list_ranks([*felt, *exceptions])
    yield Case(
        code=codes.LIMITS_LOW,
        summary=f"a user may have {count} processes and threads"
        + (f" on {' and '.join(nodes)}" if nodes else "")
        + ": the ranks of the host, their threads and the workers of their loaders need more",
        # Before the mistake in the environment that the same lines tell without the limit.
        tier=OWN - 1,
        nodes=nodes,
        victims=victims,
        lines=(*own[:2], *felt)[:_MAX_LINES],
        exceptions=exceptions,
        where=place_exceptions(exceptions[:1]),
        time=find_time(felt, exceptions),
        # A shell may be on another host, or have another limit than the job.
        confidence=Confidence.LIKELY if own is not low else Confidence.POSSIBLE,
        details={"limit": "nproc", "count": count},
        remedies=(
            "ulimit -u   # inside the job, on that host: raise it where the job is started",
            "export OMP_NUM_THREADS=4 OPENBLAS_NUM_THREADS=4   # and fewer workers of loaders",
        ),
        scope=frozenset(victims),
    )


def _is_refused(item: PythonException) -> bool:
    """Tell whether an exception says that a process or thread could not be started."""
    inner = [frame.function for frame in item.frames[:2]]
    is_start = item.type.rpartition(".")[2] in {"BlockingIOError", "OSError"}
    is_start &= any(name in _STARTS for name in inner)
    return "can't start new thread" in item.message or (is_start and _REFUSED in item.message)
