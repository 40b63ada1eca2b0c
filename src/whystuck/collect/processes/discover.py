"""Finding the ranks of a job that was not started with whystuck.

A rank is known by its environment (``RANK``, from torchrun and its like), by its parent
(``torch.multiprocessing.spawn``), or by its open sockets (processes that hold a connection to each
other and have torch loaded).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from whystuck.collect.job_dirs import find_job_dir
from whystuck.collect.processes.proc_files import has_loaded, read_environment, read_words
from whystuck.collect.processes.stacks import find_py_spy
from whystuck.collect.programs import run_program
from whystuck.evidence.ranks import MAX_RANK

_TORCH_LIBRARY = b"libtorch"
_SPAWN_MARKS = ("multiprocessing.spawn", "multiprocessing.forkserver", "--multiprocessing-fork")
_LOCALS_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class FoundRank:
    """A process taken for a rank; ``guessed`` when only the order of starting tells its number."""

    rank: int
    pid: int
    job_dir: Path | None = None
    guessed: bool = False


@dataclass(frozen=True)
class FoundJob:
    """The ranks of one job on this node; ``world_size`` is 0 when unknown."""

    name: str
    ranks: tuple[FoundRank, ...]
    world_size: int = 0


@dataclass
class _Candidate:
    process: psutil.Process
    environment: dict[str, str]
    parents: list[int]
    is_spawned: bool
    uid: int = 0
    ports: set[int] = field(default_factory=set)
    peers: set[int] = field(default_factory=set)

    @property
    def pid(self) -> int:
        return int(self.process.pid)


def discover_jobs(pids: Iterable[int] = ()) -> list[FoundJob]:
    """Return the jobs of this node, or those that ``pids`` (ranks or their launcher) belong to."""
    wanted = set(pids)
    candidates = _find_candidates()
    if wanted:
        chosen = [c for c in candidates if c.pid in wanted or wanted & set(c.parents)]
        # a rank named alone stands for itself; its launcher stands for all below it
        candidates = chosen
    by_environment = [c for c in candidates if _rank_of(c) is not None]
    ranks = _drop_helpers(by_environment)
    jobs = _group_by_rendezvous(ranks)
    claimed = {c.pid for c in by_environment}
    launchers = {pid for c in by_environment for pid in c.parents}
    rest = [
        c for c in candidates if c.pid not in claimed | launchers and not claimed & set(c.parents)
    ]
    return jobs + _find_spawned(rest, accept_all=bool(wanted))


def _find_candidates() -> list[_Candidate]:
    candidates = []
    for process in psutil.process_iter():
        try:
            if not has_loaded(process.pid, _TORCH_LIBRARY):
                continue
            environment = read_environment(process.pid)
            parents = [parent.pid for parent in process.parents()]
            uid = process.uids().real
            command = " ".join(read_words(process.pid))
        except (psutil.Error, OSError):
            continue
        spawned = any(mark in command for mark in _SPAWN_MARKS)
        candidate = _Candidate(process, environment, parents, spawned, uid)
        _read_sockets(candidate)
        candidates.append(candidate)
    return sorted(candidates, key=lambda c: (c.process.create_time(), c.pid))


def _read_sockets(candidate: _Candidate) -> None:
    try:
        connections = candidate.process.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return
    for connection in connections:
        if connection.laddr:
            candidate.ports.add(connection.laddr.port)
        if connection.raddr and connection.status == psutil.CONN_ESTABLISHED:
            candidate.peers.add(connection.raddr.port)


def _rank_of(candidate: _Candidate) -> int | None:
    return _number(candidate.environment, "RANK")


def _number(environment: Mapping[str, str], name: str) -> int | None:
    """Return a variable that is a rank or a number of ranks."""
    try:
        number = int(environment[name])
    except (KeyError, ValueError):
        return None
    return number if 0 <= number <= MAX_RANK + 1 else None


def _drop_helpers(candidates: list[_Candidate]) -> list[_Candidate]:
    """Keep the topmost process of each rank: those below it are its workers and helpers.

    A launcher that was itself given ``RANK`` by the platform has no ``LOCAL_RANK``, but has
    processes below it that do.
    """
    launchers = {
        candidate.pid
        for candidate in candidates
        if "LOCAL_RANK" not in candidate.environment
        and any(
            candidate.pid in other.parents and "LOCAL_RANK" in other.environment
            for other in candidates
        )
    }
    ranks = {c.pid: _rank_of(c) for c in candidates if c.pid not in launchers}
    return [
        candidate
        for candidate in candidates
        if candidate.pid in ranks
        and not any(ranks.get(parent, -1) == ranks[candidate.pid] for parent in candidate.parents)
    ]


def _group_by_rendezvous(candidates: list[_Candidate]) -> list[FoundJob]:
    # Another user can give his processes the names of any job.
    groups: dict[tuple[str, int], list[_Candidate]] = {}
    for candidate in candidates:
        environment = candidate.environment
        name = environment.get("TORCHELASTIC_RUN_ID") or "job"
        address = f"{environment.get('MASTER_ADDR', '')}:{environment.get('MASTER_PORT', '')}"
        groups.setdefault((f"{name} at {address}", candidate.uid), []).append(candidate)
    jobs = []
    for (name, _), members in groups.items():
        found = tuple(
            FoundRank(_rank_of(c) or 0, c.pid, _job_dir(c))
            for c in sorted(members, key=lambda c: _rank_of(c) or 0)
        )
        world_size = max(_number(c.environment, "WORLD_SIZE") or 0 for c in members)
        jobs.append(FoundJob(name, found, world_size))
    return jobs


def _job_dir(candidate: _Candidate) -> Path | None:
    folder = find_job_dir(candidate.pid, candidate.environment)
    return Path(folder) if folder else None


def _find_spawned(candidates: list[_Candidate], *, accept_all: bool) -> list[FoundJob]:
    """Take siblings made by multiprocessing, and processes connected to each other, as ranks."""
    linked = {one.pid for one in candidates if _is_linked(one, candidates)}
    above_spawned = {pid for one in candidates if one.is_spawned for pid in one.parents}
    # What started ranks and holds no connection to them is not one of them; what is below a
    # rank is its worker.
    groups: dict[int, list[_Candidate]] = {}
    for one in candidates:
        is_launcher = one.pid in above_spawned and one.pid not in linked
        is_rank = one.is_spawned or one.pid in linked or accept_all
        if is_rank and not is_launcher and not linked & set(one.parents):
            parent = one.parents[0] if one.is_spawned and one.parents else 0
            groups.setdefault(parent, []).append(one)
    return [
        FoundJob(f"processes of {parent or 'this node'}", _number_ranks(members))
        for parent, members in groups.items()
        if len(members) > 1 or accept_all
    ]


def _is_linked(candidate: _Candidate, others: list[_Candidate]) -> bool:
    return any(candidate.peers & other.ports for other in others if other is not candidate)


def _number_ranks(members: list[_Candidate]) -> tuple[FoundRank, ...]:
    known = [_read_spawn_index(candidate.pid) for candidate in members]
    if None in known or len(set(known)) != len(known):
        return tuple(FoundRank(i, c.pid, _job_dir(c), guessed=True) for i, c in enumerate(members))
    pairs = sorted(zip(known, members, strict=True), key=lambda pair: pair[0] or 0)
    return tuple(FoundRank(i or 0, c.pid, _job_dir(c)) for i, c in pairs)


def _read_spawn_index(pid: int) -> int | None:
    """Return the index that ``torch.multiprocessing.spawn`` gave a process, from its stack."""
    py_spy = find_py_spy()
    if py_spy is None:
        return None
    command = [py_spy, "dump", "--nonblocking", "--locals", "--json", "--pid", str(pid)]
    try:
        done = run_program(command, _LOCALS_TIMEOUT_S)
        frames = [frame for thread in json.loads(done.stdout) for frame in thread["frames"]]
        for frame in frames:
            if frame["name"] == "_wrap" and frame["filename"].endswith("multiprocessing/spawn.py"):
                values = {one["name"]: one.get("repr") for one in frame.get("locals") or []}
                return int(values["i"])
    except (OSError, ValueError, KeyError, TypeError, subprocess.TimeoutExpired):
        return None
    return None
