"""The limits of the processes that this one starts (N404)."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

from whystuck.check.check import Check, Context
from whystuck.check.policy import LimitsPolicy
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult

_CODE = "N404"
_KB, _MB, _GB = 1 << 10, 1 << 20, 1 << 30
_HOUR_S = 3600
_SHOWN = {
    "open files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "locked memory": resource.RLIMIT_MEMLOCK,
    "stack": resource.RLIMIT_STACK,
    "core": resource.RLIMIT_CORE,
    "address space": resource.RLIMIT_AS,
    "file size": resource.RLIMIT_FSIZE,
    "CPU time": resource.RLIMIT_CPU,
}


class Limits(Check):
    """Limits of open files, processes, locked memory, stack, address space, files and time."""

    name = "limits"
    codes = (_CODE,)

    def run(self, context: Context) -> CheckResult:
        """Compare each soft limit with what jobs need."""
        facts = {name: _describe(resource.getrlimit(kind)) for name, kind in _SHOWN.items()}
        return self.make_result(list(_judge(context)), facts=facts)


def _judge(context: Context) -> Iterator[CheckProblem]:
    policy = context.policy.limits
    yield from _judge_files(policy)
    if os.geteuid():  # the kernel asks nothing of root
        yield from _judge_low(
            "processes", resource.RLIMIT_NPROC, policy.min_processes, "", "ulimit -u unlimited"
        )
    if context.list_names("/sys/class/infiniband"):
        yield from _judge_low(
            "locked memory (MB)",
            resource.RLIMIT_MEMLOCK,
            policy.min_locked_mb,
            "InfiniBand registers memory",
            "ulimit -l unlimited",
            unit=_MB,
        )
    yield from _judge_low(
        "stack (kB)", resource.RLIMIT_STACK, policy.min_stack_kb, "", "ulimit -s 8192", unit=_KB
    )
    yield from _judge_low(
        "address space (GB)",
        resource.RLIMIT_AS,
        policy.min_address_gb,
        "CUDA reserves more than the memory of host and devices",
        "ulimit -v unlimited",
        unit=_GB,
    )
    yield from _judge_low(
        "file size (GB)",
        resource.RLIMIT_FSIZE,
        policy.min_file_gb,
        "a larger checkpoint cannot be written",
        "ulimit -f unlimited",
        unit=_GB,
    )
    yield from _judge_low(
        "CPU time (hours)",
        resource.RLIMIT_CPU,
        policy.min_cpu_hours,
        "the kernel ends a process that has used it up, by SIGXCPU",
        "ulimit -t unlimited",
        unit=_HOUR_S,
    )


def _judge_files(policy: LimitsPolicy) -> Iterator[CheckProblem]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= policy.note_open_files:
        return
    wanted = "65536" if hard == resource.RLIM_INFINITY or hard >= 65536 else str(hard)  # noqa: PLR2004
    is_low = soft < policy.min_open_files
    least = policy.min_open_files if is_low else policy.note_open_files
    remedies = [f"ulimit -n {wanted}   # in the script that starts the job"]
    if hard != resource.RLIM_INFINITY and hard < policy.note_open_files:
        remedies.append("raise the hard limit: /etc/security/limits.conf, LimitNOFILE= of the unit")
    yield CheckProblem(
        code=_CODE,
        severity="warning" if is_low else "note",
        text=f"a process may open {soft} files; at least {least} are needed by many workers or "
        "ranks",
        subject="open files",
        because=(f"RLIMIT_NOFILE is {_describe((soft, hard))}",),
        remedies=tuple(remedies),
        measures={"limit": soft, "threshold": least},
    )


def _judge_low(
    what: str, kind: int, least: int, why: str, remedy: str, *, unit: int = 1
) -> Iterator[CheckProblem]:
    soft, hard = resource.getrlimit(kind)
    if soft == resource.RLIM_INFINITY or soft >= least * unit:
        return
    tail = f": {why}" if why else ""
    yield CheckProblem(
        code=_CODE,
        text=f"the limit of {what} is {soft / unit:.4g}, below {least}{tail}",
        subject=what.partition(" (")[0],
        because=(f"the limits are {_describe((soft, hard))} in the unit of the kernel",),
        remedies=(f"{remedy}   # in the script that starts the job",),
        measures={"limit": soft / unit, "threshold": least},
    )


def _describe(limits: tuple[int, int]) -> str:
    soft, hard = ("unlimited" if one == resource.RLIM_INFINITY else str(one) for one in limits)
    return soft if soft == hard else f"{soft} (hard {hard})"
