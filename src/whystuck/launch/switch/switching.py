"""The switch of a running job: what its ranks are asked to record, and what they answered.

The file ``switch.json`` in the job folder is read by every rank once a second, and each tells in
``switched-PID`` what it has applied, and after which optimizer step.
"""

from __future__ import annotations

import fcntl
import math
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from whystuck.collect.beats import BeatSlot, read_beat
from whystuck.collect.processes.proc_files import is_alive
from whystuck.evidence.decoding import decode_json
from whystuck.evidence.records import SwitchRecord
from whystuck.launch.options import MAX_SPEC_CHARS

FILE_NAME = "switch.json"
MAX_BYTES = 65536
OnOff = Literal["on", "off"]
# The kinds of marks, which `marks` stands for where it does not name them.
MARK_KEYS = ("step", "forward", "checkpoint", "dataloader")

_LOCK_NAME = "switch.lock"
_RATE_S = 2.2
_MARGIN_S = 2.5
_MARGIN_STEPS = 2
_POLL_S = 0.1
_FRESH_S = 3.0
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Spec = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SPEC_CHARS)]


class SwitchState(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a switch file may say; what is left out stays as it is.

    ``marks`` says what the kinds of marks are that are left out; it is in no state that ranks get.
    """

    generation: _Number | None = None
    at_step: _Number | None = None
    comm: OnOff | None = None
    marks: OnOff | None = None
    step: OnOff | None = None
    forward: OnOff | None = None
    checkpoint: OnOff | None = None
    dataloader: OnOff | None = None
    inspect: _Spec | None = None

    def merged(self, newer: SwitchState) -> SwitchState:
        """Return this state with what ``newer`` says in its place."""
        return SwitchState(
            generation=newer.generation,
            at_step=newer.at_step,
            comm=newer.comm or self.comm,
            step=newer.step or newer.marks or self.step,
            forward=newer.forward or newer.marks or self.forward,
            checkpoint=newer.checkpoint or newer.marks or self.checkpoint,
            dataloader=newer.dataloader or newer.marks or self.dataloader,
            inspect=newer.inspect or self.inspect,
        )


@dataclass(frozen=True)
class RankSwitch:
    """A live rank of this node: its heartbeat, and its last answer if it gave any."""

    pid: int
    beat: BeatSlot
    answer: SwitchRecord | None


def read_small_file(path: Path) -> tuple[int, bytes]:
    """Return (time of the last change in ns, content) of a file that anybody may have made.

    Raises OSError, or ValueError when it is no plain file or too large.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a plain file")
        data = os.read(fd, MAX_BYTES + 1)
    finally:
        os.close(fd)
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES} bytes")
    return status.st_mtime_ns, data


def read_state(job_dir: Path) -> SwitchState:
    """Return what the job is asked for; what nobody said, or nobody can read, is off."""
    default = SwitchState(generation=0, at_step=0).merged(
        SwitchState(generation=0, at_step=0, comm="off", marks="off", inspect="off"),
    )
    try:
        modified_ns, data = read_small_file(job_dir / FILE_NAME)
        state = decode_json(data, SwitchState)
    except (OSError, ValueError):
        return default
    if state.generation is None:
        state.generation = modified_ns
    return default.merged(state)


def change_state(job_dir: Path, wanted: SwitchState) -> SwitchState:
    """Ask the ranks of a job for something else; return the whole of what is asked for now.

    Args:
        job_dir: The folder of the job.
        wanted: What is to change. Without ``generation`` it is the next one; without ``at_step``
            it is a step that no rank will have reached when all have read of it.

    Returns:
        The state that was written.

    Raises:
        OSError: The folder cannot be written, or is gone.
    """
    with _locked(job_dir):
        before = read_state(job_dir)
        state = before.merged(wanted)
        if state.generation is None:
            answered = (rank.answer.generation for rank in live_ranks(job_dir) if rank.answer)
            state.generation = max([before.generation or 0, *answered]) + 1
        if state.at_step is None:
            state.at_step = plan_step(job_dir)
        write_state(job_dir, state)
    return state


def write_state(job_dir: Path, state: SwitchState) -> None:
    """Write the file whole; raises OSError."""
    part = job_dir / f"{FILE_NAME}.part-{os.getpid()}"
    part.write_bytes(msgspec.json.encode(state))
    part.replace(job_dir / FILE_NAME)


def live_ranks(job_dir: Path) -> list[RankSwitch]:
    """Return the live ranks of a job on this node, by rank."""
    found = []
    for path in job_dir.glob("beat-*"):
        pid = path.name.partition("-")[2]
        beat = read_beat(path) if pid.isdecimal() else None
        # By its pid in its own namespace, which may be a container's: there, a beat says it lives.
        if beat is not None and (beat.age_s < _FRESH_S or is_alive(int(pid))):
            found.append(RankSwitch(int(pid), beat, _read_answer(job_dir / f"switched-{pid}")))
    return sorted(found, key=lambda one: (one.beat.rank, one.pid))


def plan_step(job_dir: Path) -> int:
    """Return a number of optimizer steps that all ranks will make, and none has made yet.

    It takes two beats of each rank, which come once a second. 0 when no rank has made a step.
    """
    first = {one.pid: one.beat for one in live_ranks(job_dir)}
    newest = dict(first)
    deadline_s = time.monotonic() + _RATE_S
    while any(beat.optimizer_steps for beat in newest.values()):
        moved = [pid for pid in first if newest[pid].monotonic_ns > first[pid].monotonic_ns]
        if len(moved) == len(first) or time.monotonic() > deadline_s:
            break
        time.sleep(_POLL_S)
        newest |= {one.pid: one.beat for one in live_ranks(job_dir)}
    steps = max((beat.optimizer_steps for beat in newest.values()), default=0)
    if steps == 0:
        return 0
    rate = max(_rate(beat, newest[pid]) for pid, beat in first.items())
    return steps + math.ceil(rate * _MARGIN_S) + _MARGIN_STEPS


def _rate(first: BeatSlot, last: BeatSlot) -> float:
    elapsed_s = (last.monotonic_ns - first.monotonic_ns) / 1e9
    return (last.optimizer_steps - first.optimizer_steps) / elapsed_s if elapsed_s > 0 else 0.0


def _read_answer(path: Path) -> SwitchRecord | None:
    try:
        return decode_json(path.read_bytes(), SwitchRecord)
    except (OSError, msgspec.DecodeError):
        return None


@contextmanager
def _locked(job_dir: Path) -> Iterator[None]:
    """Let one process at a time change the file."""
    with (job_dir / _LOCK_NAME).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
