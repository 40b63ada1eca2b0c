"""What /proc tells of a process: its place in its job, its parents, how it was started.

The environment is that of its start: what a process set itself later, and ranks of
``torch.multiprocessing.spawn`` do, is not seen here. The probe's heartbeat tells it instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from whystuck.agent.processes.commands import is_launcher, is_spawned, is_tool
from whystuck.agent.processes.launcher_env import find_place, read_number
from whystuck.collect.job_dirs import find_job_dir, read_artifact
from whystuck.collect.processes.proc import read_inner_pid
from whystuck.collect.processes.proc_files import read_environment, read_start, read_words
from whystuck.safe_text.escaping import show_line
from whystuck.safe_text.secrets import hide_arguments

MAX_PARENTS: Final = 64
_MAX_COMMAND_CHARS: Final = 200
_MAX_WORD_CHARS: Final = 2000
_MAX_NAME_CHARS: Final = 200
_NO_ID: Final = "none"  # torchrun's when nobody gave it one
_JOB_VARIABLES: Final = (
    *("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "JOB_ID"),
    *("PBS_JOBID", "LSB_JOBID", "COBALT_JOBID", "SLURM_JOBID"),
)


class Identity(msgspec.Struct, kw_only=True, frozen=True):
    """One process as its start shows it.

    ``parents`` are pids of this host, the nearest first and without 1. ``inner_pid`` is its number
    in its own PID namespace. ``is_elastic`` tells that a launcher gave it a rank and a local rank.
    Numbers of -1 and empty texts are unknown.
    """

    pid: int
    inner_pid: int = -1
    start_ticks: int = -1
    parents: tuple[int, ...] = ()
    command: str = ""
    is_launcher: bool = False
    is_spawned: bool = False
    is_tool: bool = False
    rank: int = -1
    local_rank: int = -1
    world_size: int = -1
    is_elastic: bool = False
    job: str = ""
    job_names: tuple[str, ...] = ()
    job_dir: str = ""


def identify(pid: int) -> Identity | None:
    """Read what /proc tells of a process; None when it is gone.

    What may not be read, as of a process of another user, stays unknown. Takes some 0.3 ms.
    """
    start = read_start(pid)
    if start is None:
        return None
    words = read_words(pid)
    try:
        environment = read_environment(pid)
    except (OSError, ValueError):
        environment = {}
    place = find_place(environment)
    job_dir = find_job_dir(pid, environment)
    job_names = _name_job(environment, job_dir)
    return Identity(
        pid=pid,
        inner_pid=read_inner_pid(pid),
        start_ticks=start[1],
        parents=_list_parents(start[0]),
        command=show_command(words),
        is_launcher=is_launcher(words),
        is_spawned=is_spawned(words),
        is_tool=is_tool(words),
        rank=place.rank,
        local_rank=place.local_rank,
        world_size=place.world_size,
        is_elastic=read_number(environment, "RANK") >= 0
        and read_number(environment, "LOCAL_RANK") >= 0,
        job=job_names[0] if job_names else "",
        job_names=job_names,
        job_dir=job_dir,
    )


def show_command(words: Sequence[str]) -> str:
    """Return the beginning of a command line in visible characters, without secrets."""
    # A word is a byte at least: more of them cannot be shown.
    shown = hide_arguments([word[:_MAX_WORD_CHARS] for word in words[:_MAX_COMMAND_CHARS]])
    return show_line(" ".join(shown), _MAX_COMMAND_CHARS)


def _list_parents(parent: int) -> tuple[int, ...]:
    parents: list[int] = []
    while parent > 1 and len(parents) < MAX_PARENTS:
        parents.append(parent)
        start = read_start(parent)
        parent = start[0] if start else 0
    return tuple(parents)


def _name_job(environment: Mapping[str, str], job_dir: str) -> tuple[str, ...]:
    """Return by what a job may be named: ids, the pid of its ``whystuck run``, its folder."""
    ids = [environment.get(name, "")[:_MAX_NAME_CHARS] for name in _JOB_VARIABLES]
    names = [one for one in ids if one and one != _NO_ID]
    if job_dir:
        names += [Path(job_dir).name, job_dir]
        with suppress(OSError, ValueError):
            names.append(str(int(read_artifact(Path(job_dir) / "owner", 32))))
    return tuple(dict.fromkeys(names))
