"""The clock of the node: is it kept in step, and how far are file systems from it (N406)."""

from __future__ import annotations

import ctypes
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from whystuck.check.check import Check, Context
from whystuck.check.storage.measuring import ABOVE_FLAGS
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult
from whystuck.guarded.folders import make_file

_CODE = "N406"
_UNSYNCHRONIZED = 0x40
_NANOSECONDS = 0x2000
_SYNC_HINT = "start a time service: `systemctl enable --now chronyd`, or systemd-timesyncd, or ntpd"


class _Timex(ctypes.Structure):
    """``struct timex`` of the kernel, as far as it is read."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 192),
    )


class Clock(Check):
    """Whether the kernel's clock is in step, and whether it agrees with that of file servers."""

    name = "clock"
    codes = (_CODE,)

    def run(self, context: Context) -> CheckResult:
        """Ask the kernel, and compare the time of a new file with ours."""
        status = read_kernel_clock()
        figures: dict[str, float] = {}
        facts = {"source": _read_source(context)}
        problems: list[CheckProblem] = []
        if status is not None:
            is_synchronized, error_s = status
            facts["kept in step"] = "yes" if is_synchronized else "no"
            if is_synchronized:
                figures["max_error_ms"] = error_s * 1e3
            problems += _judge_kernel(status, context)
        for path in context.disks or (Path("/tmp"),):  # noqa: S108 - only for the time of a file
            offset_s = measure_offset(path)
            if offset_s is not None:
                figures["offset_ms"] = offset_s * 1e3
                problems += _judge_offset(path, offset_s, context)
        return self.make_result(
            problems, facts={k: v for k, v in facts.items() if v}, figures=figures
        )


def read_kernel_clock() -> tuple[bool, float] | None:
    """Return whether the kernel keeps its clock in step, and by how much it may be off.

    None where it does not tell.
    """
    state = _Timex()
    try:
        answer = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(state))
    except (OSError, AttributeError):
        return None
    if answer < 0:
        return None
    return not state.status & _UNSYNCHRONIZED, state.maxerror / 1e6


def measure_offset(folder: Path) -> float | None:
    """Return how far the time of a new file in a folder is from our clock; None without a file.

    It is positive where our clock is behind.
    """
    name = f".whystuck-check-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        place = os.open(folder, ABOVE_FLAGS)
    except OSError:
        return None
    try:
        before_s = time.time()
        with os.fdopen(make_file(place, name), "wb") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
            made_s = os.fstat(file.fileno()).st_mtime
        after_s = time.time()
    except OSError:
        return None
    finally:
        with suppress(OSError):
            os.unlink(name, dir_fd=place)
        os.close(place)
    # Within these bounds, nothing is known.
    return made_s - min(max(made_s, before_s), after_s)


def _read_source(context: Context) -> str:
    folder = "/sys/devices/system/clocksource/clocksource0"
    return context.read_text(f"{folder}/current_clocksource")


def _judge_kernel(status: tuple[bool, float], context: Context) -> Iterator[CheckProblem]:
    is_synchronized, error_s = status
    most_s = context.policy.clock.max_error_s
    if not is_synchronized:
        yield CheckProblem(
            code=_CODE,
            # Virtual machines and containers may be kept in step from outside.
            severity="note",
            confidence="possible",
            text="no time service keeps the clock of this node in step",
            subject="kernel",
            because=("adjtimex: the status has STA_UNSYNC",),
            remedies=(_SYNC_HINT,),
        )
    elif error_s > most_s:
        yield CheckProblem(
            code=_CODE,
            text=f"the clock may be off by {error_s:.3g} s, more than {most_s:g} s",
            subject="kernel",
            because=("adjtimex: maxerror",),
            remedies=("`chronyc tracking` tells why the time service is not sure",),
            measures={"max_error_ms": error_s * 1e3, "threshold_ms": most_s * 1e3},
        )


def _judge_offset(path: Path, offset_s: float, context: Context) -> Iterator[CheckProblem]:
    policy, off_s = context.policy.clock, abs(offset_s)
    if off_s <= policy.max_offset_s:
        return
    way = "behind" if offset_s > 0 else "ahead of"
    yield CheckProblem(
        code=_CODE,
        severity="error" if off_s > policy.error_offset_s else "warning",
        text=f"the clock of this node is {off_s:.3g} s {way} that of the file system of {path}, "
        f"more than {policy.max_offset_s:g} s",
        subject=str(path),
        because=("a new file has a time that is not between those before and after it was made",),
        remedies=(_SYNC_HINT, "compare `date` on this node, on another one and on the file server"),
        measures={"offset_ms": offset_s * 1e3, "threshold_ms": policy.max_offset_s * 1e3},
    )
