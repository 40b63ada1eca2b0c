"""What ranks on their way out have printed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from whystuck.collect.processes.outputs import collect_outputs, is_past_program
from whystuck.collect.processes.target import Target

CODE = "import sys; print('bye', file=sys.stderr, flush=True); print(flush=True); sys.stdin.read()"


def _dump(*names: str) -> bytes:
    frames = [{"name": name} for name in names]
    return json.dumps([{"pid": 7, "os_thread_id": 7, "frames": frames}]).encode()


def test_main_thread_without_its_program_is_past_it() -> None:
    assert is_past_program(_dump("_shutdown"))
    assert is_past_program(_dump("Event.wait", "finish"))
    assert not is_past_program(_dump("all_reduce", "main", "<module>"))
    assert not is_past_program(_dump())
    assert not is_past_program(b"{")


class Ranks:
    """Processes that print a line and wait, each into a file of its own or into one for all."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack = folder, stack

    def start(self, rank: int, name: str) -> Target:
        out = self.stack.enter_context((self.folder / name).open("ab"))
        process = subprocess.Popen(
            [sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out
        )
        self.stack.callback(process.communicate)
        assert process.stdout is not None
        process.stdout.readline()
        return Target(rank, process.pid, "n0")


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    with ExitStack() as stack:
        yield Ranks(tmp_path, stack)


def test_file_of_a_rank_is_its_log(tmp_path: Path, ranks: Ranks) -> None:
    targets = [ranks.start(0, "0.err"), ranks.start(1, "1.err")]
    collect_outputs(targets, [1], tmp_path / "000")
    assert (tmp_path / "000/n0/rank-1/log.txt").read_text() == "bye\n"
    assert not (tmp_path / "000/n0/rank-0").exists()


def test_file_of_several_ranks_is_that_of_their_launcher(tmp_path: Path, ranks: Ranks) -> None:
    targets = [ranks.start(0, "job.err"), ranks.start(1, "job.err")]
    for _ in range(2):
        collect_outputs(targets, [1], tmp_path / "000")
    assert (tmp_path / "000/n0/launcher.txt").read_text() == "bye\nbye\n"
    assert not list((tmp_path / "000").rglob("log.txt"))


def test_process_that_has_gone_has_no_output(tmp_path: Path) -> None:
    collect_outputs([Target(0, 4194304, "n0")], [0], tmp_path / "000")
    assert not (tmp_path / "000").exists()
