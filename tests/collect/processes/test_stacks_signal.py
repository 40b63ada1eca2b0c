"""The signal for stacks goes only to a process that has the file for them open."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from whystuck.collect.processes.proc import has_open
from whystuck.collect.processes.target import Target
from whystuck.collect.scene import Scene


def test_process_that_has_closed_the_file_gets_no_signal(tmp_path: Path) -> None:
    folder = tmp_path / "scene"
    folder.mkdir()
    # Nothing in it handles the signal: it would die of it.
    with subprocess.Popen(["sleep", "300"]) as process:
        try:
            target = Target(0, process.pid, "n0", tmp_path)
            (tmp_path / f"faulthandler-{process.pid}").touch()
            Scene(folder, [target])._take_stacks_by_signal(target, folder)
            assert process.poll() is None
        finally:
            process.kill()
    assert process.returncode == -9
    assert not list(folder.iterdir())


def test_process_without_a_handler_gets_no_signal(tmp_path: Path) -> None:
    """Such as one whose interpreter has been taken down, with the probe of another release."""
    folder = tmp_path / "scene"
    folder.mkdir()
    stacks = tmp_path / "stacks"
    with stacks.open("wb") as file, subprocess.Popen(["sleep", "300"], stdout=file) as process:
        try:
            (tmp_path / f"faulthandler-{process.pid}").hardlink_to(stacks)
            target = Target(0, process.pid, "n0", tmp_path)
            assert has_open(process.pid, stacks)
            Scene(folder, [target])._take_stacks_by_signal(target, folder)
            assert process.poll() is None
        finally:
            process.kill()
    assert process.returncode == -9


def test_open_file_is_found_and_a_closed_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "stacks"
    with path.open("wb"):
        assert has_open(os.getpid(), path)
    assert not has_open(os.getpid(), path)
    assert not has_open(os.getpid(), tmp_path / "absent")
