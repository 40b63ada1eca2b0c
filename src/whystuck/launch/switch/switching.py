"""The switch of a running job: what its ranks are asked to record, and what they answered.

The file ``switch.json`` in the job folder is read by every rank once a second, and each tells in
``switched-PID`` what it has applied, and after which optimizer step.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from whystuck.collect.beats import BeatSlot
from whystuck.evidence.decoding import decode_json
from whystuck.guarded.folders import folder_at, put_file
from whystuck.launch.options import MAX_SPEC_CHARS
from whystuck.launch.switch.ranks import live_ranks
from whystuck.launch.switch.step_plan import plan_step, wake_probes

FILE_NAME = "switch.json"
MAX_BYTES = 65536
OnOff = Literal["on", "off"]
# The kinds of marks, which `marks` stands for where it does not name them.
MARK_KEYS = ("step", "forward", "checkpoint", "dataloader")

_LOCK_NAME = "switch.lock"
# It is held for some milliseconds.
_LOCK_S = 10.0
_LOCK_LOOK_S = 0.01
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


def change_state(
    job_dir: Path, wanted: SwitchState, earlier: Mapping[int, BeatSlot] | None = None
) -> SwitchState:
    """Ask the ranks of a job for something else; return the whole of what is asked for now.

    Args:
        job_dir: The folder of the job.
        wanted: What is to change. Without ``generation`` it is the next one; without ``at_step``
            it is a step that no rank will have reached when all have read of it.
        earlier: Beats of ranks from a while ago, if there are any: it takes less time with them.

    Returns:
        The state that was written.

    Raises:
        OSError: The folder cannot be written, or is gone, or another process keeps its lock.
    """
    with _locked(job_dir):
        before = read_state(job_dir)
        state = before.merged(wanted)
        if state.generation is None:
            answered = (rank.answer.generation for rank in live_ranks(job_dir) if rank.answer)
            state.generation = max([before.generation or 0, *answered]) + 1
        if state.at_step is None:
            state.at_step = plan_step(job_dir, earlier)
        write_state(job_dir, state)
    # A rank that does not answer looks within a second.
    wake_probes(job_dir)
    return state


def write_state(job_dir: Path, state: SwitchState) -> None:
    """Write the file whole; raises OSError."""
    with folder_at(job_dir) as folder:
        put_file(folder, FILE_NAME, msgspec.json.encode(state))


def _take(lock: int) -> None:
    """Take a lock; raise OSError where another process does not let it go, as one that hangs."""
    until_s = time.monotonic() + _LOCK_S
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() > until_s:
            reason = f"another process has held `{_LOCK_NAME}` in its folder for {_LOCK_S:g} s"
            raise TimeoutError(errno.ETIMEDOUT, reason)
        time.sleep(_LOCK_LOOK_S)


@contextmanager
def _locked(job_dir: Path) -> Iterator[None]:
    """Let one process at a time change the file."""
    # A pipe that the job has laid in its place would be waited for.
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with folder_at(job_dir) as folder:
        lock = os.open(_LOCK_NAME, flags, 0o600, dir_fd=folder)
    try:
        _take(lock)
        yield
    finally:
        os.close(lock)
