"""The limits of the cgroups that this process is in, and what has broken them so far (N405)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from whystuck.check.check import Check, Context
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult

_CODE = "N405"
_MB = 1 << 20
# Version 1 writes a number near 2^63 for "no limit".
_NO_LIMIT = 1 << 60
_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")


@dataclass(frozen=True)
class Group:
    """A cgroup of one hierarchy: ``folder`` is where it lies, ``version`` 1 or 2."""

    path: str
    folder: str
    version: int
    controllers: frozenset[str]


class Cgroup(Check):
    """Memory, CPU and number of processes that the cgroups grant."""

    name = "cgroup"
    codes = (_CODE,)

    def why_skipped(self, context: Context) -> str:
        """Return why there is nothing to check."""
        return "" if list_groups(context) else "this process is in no cgroup that can be read"

    def run(self, context: Context) -> CheckResult:
        """Look at each group and those above it: the limit is often there."""
        problems: dict[str, CheckProblem] = {}
        facts: dict[str, str] = {}
        for group in list_groups(context):
            found = (
                *_judge_memory(group, context, facts),
                *_judge_cpu(group, context, facts),
                *_judge_processes(group, context, facts),
            )
            for problem in found:
                problems.setdefault(problem.subject, problem)
        return self.make_result(list(problems.values()), facts=facts)


def list_groups(context: Context) -> list[Group]:
    """Return the groups of this process and those above them, the deepest of each first."""
    found = []
    for line in context.read_text("/proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        place = PurePosixPath(path or "/")
        for one in (place, *place.parents):
            found += _find_folders(str(one), names, context)
    return found


def _find_folders(path: str, names: str, context: Context) -> list[Group]:
    inside = path.lstrip("/")
    if not names:
        folders = [f"{root}/{inside}".rstrip("/") for root in _ROOTS]
        kind = (2, frozenset({"memory", "cpu", "pids"}))
    else:
        folders = [f"{_ROOTS[0]}/{names}/{inside}".rstrip("/")]
        kind = (1, frozenset(names.split(",")))
    return [Group(path, folder, *kind) for folder in folders if context.list_names(folder)]


def _judge_memory(group: Group, context: Context, facts: dict[str, str]) -> Iterator[CheckProblem]:
    if "memory" not in group.controllers:
        return
    is_new = group.version == 2  # noqa: PLR2004 - of the two versions
    limit_file, used_file = (
        ("memory.max", "memory.current")
        if is_new
        else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    )
    limit = context.read_number(f"{group.folder}/{limit_file}")
    used = context.read_number(f"{group.folder}/{used_file}", 0) - _count_cache(group, context)
    kills_file = "memory.events" if is_new else "memory.oom_control"
    kills = read_field(context, f"{group.folder}/{kills_file}", "oom_kill")
    if kills > 0:
        facts.setdefault("killed for memory", f"{kills} processes in {group.path} so far")
    if not 0 < limit < _NO_LIMIT:
        return
    policy, free = context.policy.cgroup, limit - max(used, 0)
    facts.setdefault("memory limit", f"{limit / 1e9:.1f} GB, {free / 1e9:.1f} GB free")
    least = max(policy.min_free_mb * _MB, int(limit * policy.min_free_share))
    if free >= least:
        return
    killed = (f"the kernel has ended {kills} processes in it so far",) if kills > 0 else ()
    yield CheckProblem(
        code=_CODE,
        text=f"the memory limit of cgroup {group.path} leaves {free // _MB} MB of {limit // _MB} "
        f"MB, below {least // _MB} MB",
        subject="memory",
        because=(f"{limit_file} is {limit}, in use without file cache {max(used, 0)}", *killed),
        remedies=("raise the memory limit of the container or the job, e.g. `#SBATCH --mem`",),
        measures={"free_mb": free / _MB, "limit_mb": limit / _MB, "threshold_mb": least / _MB},
    )


def _count_cache(group: Group, context: Context) -> int:
    """Return the bytes of file cache, which the kernel gives up when memory is needed."""
    name = "inactive_file" if group.version == 2 else "total_inactive_file"  # noqa: PLR2004
    return max(0, read_field(context, f"{group.folder}/memory.stat", name))


def _judge_cpu(group: Group, context: Context, facts: dict[str, str]) -> Iterator[CheckProblem]:
    if "cpu" not in group.controllers:
        return
    quota, period = _read_quota(group, context)
    stat = f"{group.folder}/cpu.stat"
    periods = read_field(context, stat, "nr_periods")
    throttled = read_field(context, stat, "nr_throttled")
    if quota <= 0 or period <= 0:
        return
    policy, cpus = context.policy.cgroup, quota / period
    usable = len(os.sched_getaffinity(0))
    facts.setdefault("CPU quota", f"{cpus:g} of {usable} CPUs")
    remedies = ("raise the CPU limit of the container or the job, e.g. `#SBATCH --cpus-per-task`",)
    if cpus < policy.min_cpus:
        yield CheckProblem(
            code=_CODE,
            text=f"cgroup {group.path} grants {cpus:g} CPUs, below {policy.min_cpus:g}",
            subject="cpu",
            because=(f"the quota is {quota} µs in {period} µs",),
            remedies=remedies,
            measures={"cpus": cpus, "threshold": policy.min_cpus},
        )
    share = throttled / periods if periods >= policy.min_periods else 0.0
    if share > policy.max_throttled_share:
        yield CheckProblem(
            code=_CODE,
            text=f"the CPU quota of cgroup {group.path} stopped its processes in {share:.0%} of "
            f"all periods so far, more than {policy.max_throttled_share:.0%}",
            subject="throttling",
            because=(f"cpu.stat: nr_throttled {throttled} of nr_periods {periods}",),
            remedies=remedies,
            measures={"throttled_percent": 100 * share, "cpus": cpus},
        )


def _read_quota(group: Group, context: Context) -> tuple[int, int]:
    """Return what may be used in a period, and the period, in µs; no quota is -1."""
    if group.version == 1:
        quota = context.read_number(f"{group.folder}/cpu.cfs_quota_us")
        return quota, context.read_number(f"{group.folder}/cpu.cfs_period_us")
    quota_text, _, period_text = context.read_text(f"{group.folder}/cpu.max").partition(" ")
    if not quota_text.isdecimal() or not period_text.isdecimal():
        return -1, -1
    return int(quota_text), int(period_text)


def _judge_processes(
    group: Group, context: Context, facts: dict[str, str]
) -> Iterator[CheckProblem]:
    if "pids" not in group.controllers:
        return
    most = context.read_number(f"{group.folder}/pids.max")
    if most < 0:
        return
    free = most - context.read_number(f"{group.folder}/pids.current", 0)
    facts.setdefault("process limit", f"{most}, {free} free")
    least = context.policy.cgroup.min_free_processes
    if free >= least:
        return
    yield CheckProblem(
        code=_CODE,
        text=f"cgroup {group.path} allows {free} more processes and threads, below {least}",
        subject="processes",
        because=(f"pids.max is {most}",),
        remedies=("raise the limit, e.g. `docker run --pids-limit -1`, TasksMax= of the unit",),
        measures={"free": free, "limit": most, "threshold": least},
    )


def read_field(context: Context, path: str, name: str) -> int:
    """Return the number behind a name in a file of such lines; -1 when there is none."""
    for line in context.read_text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdecimal():
            return int(value)
    return -1
