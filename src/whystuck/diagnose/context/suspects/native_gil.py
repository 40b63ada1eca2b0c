"""Explains a process by the native stacks of its threads: who keeps the GIL that others want."""

from __future__ import annotations

import re

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.gil import wants_gil
from whystuck.diagnose.context.facts import Facts
from whystuck.diagnose.context.suspects.suspicion import Suspicion
from whystuck.evidence.finding import Confidence
from whystuck.evidence.live import ThreadStack
from whystuck.evidence.ops.collectives import Frame

_RUNS_PYTHON = re.compile(r"^_?PyEval_Eval")
_BLOCKS = re.compile(
    r"^_*(?:GI_+)?(?:(?:pthread_(?:mutex|rwlock|cond|join|barrier)|lll_lock_wait|futex|recv|accept"
    r"|sem_(?=\w*wait))\w*|(?:(?:clock_)?nanosleep|p?poll|p?select|epoll_wait|read"
    r"|connect|waitpid|wait4)\d*)(?:@|$)"
)
_SOURCE, _NAMELESS = "gdb", "??"
# With `--native` it shows the frames of libraries, and always who owns the GIL.
_SAMPLER = "py-spy"
# Libraries that give the GIL back before they block.
_GIVES_BACK = re.compile(r"^(?:lib(?:c|pthread|python|torch|c10|cuda|nccl)[\w.+-]*\.so|python3?)")


def explain_native_gil(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a process whose only thread that may have the GIL is kept in an extension."""
    samples = facts.stacks.samples_by_rank.get(rank, [])
    if not samples or samples[-1].source not in (_SOURCE, _SAMPLER):
        return None
    threads = samples[-1].threads
    waiting = [one for one in threads if wants_gil(one) and not one.owns_gil]
    is_told = samples[-1].source == _SAMPLER
    running = [one for one in threads if one not in waiting and _runs_python(one)]
    if is_told:
        running = [one for one in threads if one.owns_gil]
    if not waiting or len(running) != 1:
        return None
    holder = running[0]
    inner = _list_native(holder)
    call = next((frame for frame in inner if _is_extension(frame)), None)
    is_blocked = bool(inner) and bool(_BLOCKS.match(inner[0].function))
    # Who pastes stacks has seen that nothing moves; else it may compute there for a moment.
    is_busy = samples[-1].row is not None and len(waiting) > 1 and inner[:1] == (call,)
    if call is None or not (is_blocked or is_busy):
        return None
    count = len(waiting)
    text = f"{count} threads wait" if count > 1 else "a thread waits"
    library, how = call.file.rpartition("/")[2], "blocked" if is_blocked else "busy"
    return Suspicion(
        rank,
        codes.GIL_HELD,
        Confidence.LIKELY if is_told and is_blocked else Confidence.POSSIBLE,
        f"is {how} in {call.function} of {library}, and keeps the GIL, for which {text}",
        tuple(frame for frame in inner[inner.index(call) :] if frame.function != _NAMELESS),
        because=(
            facts.stacks.cite(
                rank,
                f"{text} in take_gil, and "
                + ("its owner is" if is_told else "no other thread runs Python than one")
                + f" in {call.file}",
            ),
        ),
        details={"thread": holder.name, "library": call.file},
    )


def _runs_python(thread: ThreadStack) -> bool:
    return any(_RUNS_PYTHON.match(frame.function) for frame in thread.frames)


def _list_native(thread: ThreadStack) -> tuple[Frame, ...]:
    """Return the frames inside of the innermost one of Python."""
    frames = thread.frames
    at = next((i for i, frame in enumerate(frames) if _is_python(frame)), 0)
    return frames[:at]


def _is_python(frame: Frame) -> bool:
    return bool(_RUNS_PYTHON.match(frame.function)) or frame.file.endswith(".py")


def _is_extension(frame: Frame) -> bool:
    return ".so" in frame.file and not _GIVES_BACK.search(frame.file.rpartition("/")[2])
