"""The state of a node: cgroups of both versions as the kernel writes them, and this machine."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from whystuck.collect.node import host
from whystuck.collect.node.host import collect_host

NEW = {
    "memory.max": "1073741824\n",
    "memory.current": "1073000000\n",
    "memory.peak": "1073741824\n",
    "memory.events": "low 0\nhigh 0\nmax 4711\noom 2\noom_kill 1\noom_group_kill 0\n",
}
OLD = {
    "memory.limit_in_bytes": "2147483648\n",
    "memory.usage_in_bytes": "2000000000\n",
    "memory.max_usage_in_bytes": "2147483648\n",
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    "memory.failcnt": "60\n",
}


def _make(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def test_group_of_version_2(tmp_path: Path) -> None:
    _make(tmp_path / "job/step", NEW)
    _make(tmp_path / "job", NEW | {"memory.max": "max\n"})
    step, job = collect_host(["/job/step"], [], tmp_path).groups
    assert (step.path, step.version, step.limit, step.used) == ("/job/step", 2, 1 << 30, 1073000000)
    assert (step.peak, step.oom_kills, step.limit_hits) == (1 << 30, 1, 4711)
    assert (job.path, job.limit) == ("/job", 0)


def test_group_of_version_1(tmp_path: Path) -> None:
    _make(tmp_path / "memory/job", OLD)
    _make(tmp_path / "memory", OLD | {"memory.limit_in_bytes": "9223372036854771712\n"})
    job, root = collect_host(["/job"], [], tmp_path).groups
    assert (job.version, job.limit, job.used, job.peak) == (1, 1 << 31, 2000000000, 1 << 31)
    assert (job.oom_kills, job.limit_hits) == (3, 60)
    assert (root.path, root.limit) == ("/", 0)


def test_group_in_a_container_is_found_at_the_root(tmp_path: Path) -> None:
    """The path is that of the host, which the container does not see."""
    _make(tmp_path, NEW)
    (group,) = collect_host(["/kubepods/pod1/c2"], [], tmp_path).groups
    assert (group.path, group.limit, group.oom_kills) == ("/", 1 << 30, 1)


@pytest.mark.parametrize("broken", ["", "no number\n", "oom_kill\n", "\0"])
def test_group_whose_files_are_broken_has_no_figures(tmp_path: Path, broken: str) -> None:
    _make(tmp_path / "job", dict.fromkeys(NEW, broken))
    (group,) = collect_host(["/job"], [], tmp_path).groups
    assert (group.limit, group.used, group.oom_kills, group.limit_hits) == (0, 0, -1, -1)


def test_groups_without_a_path_are_none(tmp_path: Path) -> None:
    assert collect_host(["", "job"], [], tmp_path).groups == ()


def test_file_system_that_does_not_answer_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()

    def read(path: Path) -> os.statvfs_result:
        if path == tmp_path:
            release.wait(60)
        return statvfs(path)

    statvfs = os.statvfs
    monkeypatch.setattr(host, "_ROOM_TIMEOUT_S", 0.05)
    monkeypatch.setattr(os, "statvfs", read)
    state = collect_host([], [tmp_path])
    release.set()
    assert str(tmp_path) not in [volume.path for volume in state.volumes]
    assert state.memory > 0


def test_this_machine_has_memory_and_room(tmp_path: Path) -> None:
    state = collect_host([], [tmp_path, tmp_path / "missing"])
    assert state.memory > state.available > 0
    assert state.time_ns > 0
    assert len(state.volumes) in {1, 2, 3}
    assert all(0 < volume.size >= volume.free for volume in state.volumes)
