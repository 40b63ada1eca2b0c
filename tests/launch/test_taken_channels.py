"""A rank gets its outputs when the relay reads them: what it writes is never overtaken."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.probe.kineto.fabric import wait_until

from whystuck.launch.link import make_pair
from whystuck.launch.output import rank_outputs, relay
from whystuck.launch.output.logfile import LogFile
from whystuck.launch.output.rank_outputs import JobOutputs, RelayEnd
from whystuck.launch.output.streams import look_at_outputs


@dataclass
class Started:
    """A relay that runs, and what keeps the logs of what it copies."""

    process: subprocess.Popen[bytes]
    outputs: JobOutputs
    command_fd: int

    def open(self) -> list[int]:
        return self.outputs.open_channels(os.getpid(), [1])


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    control, its_control = make_pair()
    ours, its_log = make_pair()
    read_fd, command_fd = os.pipe()
    words = [str(its_control.fileno()), str(its_log.fileno()), f"{read_fd}:1:1"]
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(relay.__file__), *words],
        stdout=subprocess.PIPE,
        pass_fds=(its_control.fileno(), its_log.fileno(), read_fd),
    )
    for end in (its_control, its_log):
        end.close()
    os.close(read_fd)
    log = LogFile(tmp_path / "launcher")
    outputs = JobOutputs(look_at_outputs(), RelayEnd(ours), log, lambda _: log, lambda _: None)
    outputs.start()
    yield Started(process, outputs, command_fd)
    process.kill()
    process.communicate()
    for end in (control, ours):
        end.close()


def test_rank_waits_until_the_relay_reads_what_it_writes(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_outputs, "_MAX_TAKE_S", 60.0)
    os.write(started.command_fd, b"starts the rank\n")
    started.process.send_signal(signal.SIGSTOP)
    found: list[int] = []
    opening = threading.Thread(target=lambda: found.extend(started.open()))
    opening.start()
    opening.join(0.3)
    assert opening.is_alive()

    started.process.send_signal(signal.SIGCONT)
    opening.join(60)
    os.write(found[0], b"of the rank\n")
    os.close(found[0])
    os.write(started.command_fd, b"the rank has ended\n")
    os.close(started.command_fd)

    assert started.process.stdout is not None
    lines = [started.process.stdout.readline() for _ in range(3)]
    assert lines == [b"starts the rank\n", b"of the rank\n", b"the rank has ended\n"]


def test_rank_starts_beside_a_relay_that_is_stopped(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_outputs, "_MAX_TAKE_S", 0.01)
    started.process.send_signal(signal.SIGSTOP)
    first = started.open()
    monkeypatch.setattr(rank_outputs, "_MAX_TAKE_S", 3600.0)  # is not waited for again
    opened = [*first, *started.open(), *started.open()]
    assert len(opened) == 3

    started.process.send_signal(signal.SIGCONT)
    wait_until(lambda: not started.outputs._untaken)
    opened += started.open()  # and is, once the relay has come to all
    assert not started.outputs._untaken
    for fd in (*opened, started.command_fd):
        os.close(fd)


def test_rank_has_no_channel_where_the_relay_is_gone(started: Started) -> None:
    started.process.kill()
    started.process.wait()
    wait_until(lambda: not started.open())
    assert not started.outputs._untaken
    os.close(started.command_fd)


def test_what_a_rank_wrote_comes_before_what_the_next_one_writes(started: Started) -> None:
    """Each leaves the end of its last line in its channel, as Python without buffers writes it."""
    for number in range(50):
        (end,) = started.open()
        os.write(end, f"{number} ends".encode())
        os.write(end, b"\n")
        os.close(end)
    os.close(started.command_fd)

    assert started.process.stdout is not None
    lines = [started.process.stdout.readline() for _ in range(50)]
    assert lines == [f"{number} ends\n".encode() for number in range(50)]
