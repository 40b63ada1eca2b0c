"""One op, as checks of users see it."""

from __future__ import annotations

import sys
import time

from .tensors import flatten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any, Callable

_MAX_FRAMES = 64
_MAX_SITE = 8
# Where Python waits while C++ runs backward; what waits for an op there is C++ too.
_ENGINE = "_engine_run_backward"
# At these ops, only some ranks give or get anything: by name, whether the root and others do.
_GIVES = {"broadcast": (True, False), "scatter": (True, False)}
_GETS = {"broadcast": (False, True), "reduce": (True, False), "gather": (True, False)}


class Op:
    """A collective or point-to-point op of this rank.

    Attributes:
        name: As in the op log, e.g. ``all_reduce``.
        group: The name of its process group.
        seq: Its number in the group, from 1; collectives and point-to-point ops apart.
        step: Optimizer steps made before.
        rank: The global rank of this process.
        peer: The global rank with which it exchanges, -1 for other ops and when that is not known.
        passed: How many ops with that peer, of its kind, there were with this one.
        received: How many receives from each peer, and from any (-1), were issued before it.
        time_ns: When it was issued, by the wall clock.
        inputs: All tensors that the op sends, one after the other. Buffers that it only fills are
            none of them.
        outputs: All tensors that hold what it has received, once it is over.
        site: ``(function, file, line)`` of the user's frames that issued it, innermost first.
    """

    __slots__ = (
        "frame", "group", "group_size", "inputs", "is_async", "is_p2p", "name", "number",
        "outputs", "passed", "peer", "rank", "received", "seq", "site", "step", "takes_finite",
        "takes_result", "takes_stats", "time_ns", "versions",
    )  # fmt: skip

    def __init__(self, number: int, name: str, group: str) -> None:
        self.number = number
        self.name = name
        self.group = group
        self.group_size = 0
        self.seq = 0
        self.step = 0
        self.rank = -1
        self.peer = -1
        self.passed = 0
        self.received: dict[int, int] = {}
        self.time_ns = time.time_ns()
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.site: list[tuple[str, str, int]] = []
        self.is_async = False
        self.is_p2p = name in ("send", "recv", "recv_any")
        self.takes_stats = False
        self.takes_finite = False
        self.takes_result = False
        self.frame: tuple[int, FrameType, int] | None = None
        self.versions: list[int] = []

    def set_tensors(self, inputs: list[Any], outputs: list[Any], *, is_root: bool) -> None:
        """Take the tensors, without those that mean nothing on this rank."""
        place = 0 if is_root else 1
        self.inputs = list(flatten(inputs)) if _GIVES.get(self.name, (True, True))[place] else []
        self.outputs = list(flatten(outputs)) if _GETS.get(self.name, (True, True))[place] else []

    @property
    def is_looked_into(self) -> bool:
        """Whether figures of its outputs are wanted."""
        return self.takes_stats or self.takes_finite or self.takes_result

    def describe(self) -> dict[str, Any]:
        """Return what tells this op from all others of the job."""
        return {
            "op": self.number,
            "name": self.name,
            "group": self.group,
            "seq": self.seq,
            "step": self.step,
        }

    def describe_order(self) -> dict[str, Any]:
        """Return what tells which values it can have got from which op of another rank."""
        about: dict[str, Any] = {"time_ns": self.time_ns}
        if self.peer >= 0:
            about |= {"peer": self.peer, "passed": self.passed}
        if self.received:
            about["received"] = {str(peer): count for peer, count in self.received.items()}
        return about


def find_site(is_hidden: Callable[[str], bool]) -> list[tuple[str, str, int]]:
    """Return the user's frames of the calling thread, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    found: list[tuple[str, str, int]] = []
    for _ in range(_MAX_FRAMES):
        if frame is None or len(found) == _MAX_SITE:
            break
        code = frame.f_code
        if not is_hidden(code.co_filename):
            found.append((code.co_name, code.co_filename, frame.f_lineno or 0))
        frame = frame.f_back
    return found


def find_engine(thread: int) -> tuple[int, FrameType, int] | None:
    """Return the call of autograd's engine that this thread is in, if any, to be known again."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return None
        if frame.f_code.co_name == _ENGINE:
            return thread, frame, frame.f_lasti
        frame = frame.f_back
    return None


def is_still_in(call: tuple[int, FrameType, int]) -> bool:
    """Tell whether a thread has not come back from a call."""
    thread, wanted, at = call
    frame = sys._current_frames().get(thread)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return False
        if frame is wanted:
            return frame.f_lasti == at
        frame = frame.f_back
    return False
