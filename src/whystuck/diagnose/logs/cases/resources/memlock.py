"""N404 by how much memory processes of a host may lock, where its network cards ask for more."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_exceptions, find_time, is_said, list_ranks
from whystuck.diagnose.logs.story import OWN, Case
from whystuck.diagnose.logs.view import LogView, is_same_host
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6
# UCX puts the host, the process and the thread before its lines.
_UCX = re.compile(r"^\[([A-Za-z][\w.-]{0,62}):\d{1,9}\s{0,8}:\d{1,9}\]")
# Kernels allow 64 KiB, later 8 MiB; what cards of one rank register for NCCL is far more.
_LOW_KIB = 1 << 20


def make_memlock(view: LogView) -> Iterator[Case]:
    """Make the case of hosts whose limit is shown to be low, and whose cards got no memory.

    The limit alone may be that of a shell, and breaks nothing; where no host is named, it may be
    that of another one.
    """
    felt = [one for one in view.list_signatures("nccl.memory_lock") if is_said(one)]
    told = list(view.list_signatures("table.memlock"))
    # A command that prints two numbers for a host also prints another thing, such as `nproc`.
    count = Counter(_name_look(one) for one in told)
    shown = [
        one for one in told if _is_low(one) and (count[_name_look(one)] == 1 or _is_labelled(one))
    ]
    where = {_find_host(view, one) for one in felt} - {""}
    low = [one for one in shown if _is_of_job(one) or _is_of(one.groups["host"], where)]
    if not (felt and low):
        return
    nodes = tuple(sorted({one.groups["host"] for one in low} - {""})) or tuple(sorted(where))
    size = min(int(one.groups["kib"]) for one in low)
    exceptions = find_exceptions(view, felt)
    yield Case(
        code=codes.LIMITS_LOW,
        summary=f"processes may lock {size} KiB of memory"
        + (f" on {' and '.join(nodes)}" if nodes else "")
        + ": network cards need all that they send from",
        # Before the mistake in the environment that the same lines tell without the limit.
        tier=OWN - 1,
        nodes=nodes,
        victims=list_ranks([*felt, *exceptions]),
        lines=(*low[:2], *felt)[:_MAX_LINES],
        exceptions=exceptions,
        time=find_time(felt, exceptions),
        details={"limit": "memlock", "kib": size},
        remedies=(
            "ulimit -l   # inside the job: it has to be unlimited, or as large as device memory",
            "LimitMEMLOCK=infinity for the service that starts the job, such as slurmd",
            "docker run --ulimit memlock=-1",
        ),
        scope=frozenset(list_ranks([*felt, *exceptions])),
    )


def _is_low(event: LogEvent) -> bool:
    kib = event.groups["kib"]
    return kib.isdecimal() and int(kib) < _LOW_KIB


def _name_look(event: LogEvent) -> tuple[str, str, str]:
    return event.artifact, event.groups["asked"], event.groups["host"]


def _is_of_job(event: LogEvent) -> bool:
    """Tell whether a process of the job printed its own limit, or a shell that of no named host."""
    is_own = "RLIMIT_MEMLOCK is" in event.text or _is_labelled(event)
    return "(current: " in event.text or (not event.groups["host"] and is_own)


def _is_labelled(event: LogEvent) -> bool:
    """Tell whether a line says itself that it is about locked memory, as `ulimit -a` does."""
    return "locked memory" in event.text


def _find_host(view: LogView, event: LogEvent) -> str:
    ucx = _UCX.match(event.text)
    return event.node or view.node_by_rank.get(event.rank, "") or (ucx[1] if ucx else "")


def _is_of(host: str, where: set[str]) -> bool:
    """Tell whether a limit is of one of the hosts that felt it."""
    return any(is_same_host(host, one) for one in where)
