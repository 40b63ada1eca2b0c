"""Python stacks out of a short Kineto trace that was taken with stacks of a rank that stands still.

Kineto gives the frames that were there before its window to one chain of parents, all threads one
behind the other, on process 0 and thread 0; names of threads are lost. A chain is cut where a
thread begins. Frames that are entered within the window are of no use here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from whystuck.evidence.decoding import json_decoder
from whystuck.evidence.live import StackSample, ThreadStack
from whystuck.evidence.ops.collectives import Frame
from whystuck.parse.errors import ParseError

_NAME = re.compile(r"(.+)\((\d{1,7})\): (.+)", re.DOTALL)
_MAX_FRAMES = 100_000
# A frame that was there all the time begins and ends with the window, within so much of it.
_EDGE = 0.1
# Who runs a module: what is behind them belongs to the same thread.
_RUNNERS = frozenset(
    {
        "_call_with_frames_removed",
        "_run_code",
        "_run_module_code",
        "run_path",
        "exec",
        "_run_script",
    }
)
_MAIN_ROOTS = frozenset({"<module>", "_run_module_as_main"})


class _Arguments(msgspec.Struct):
    number: int = msgspec.field(name="Python id", default=-1)
    parent: int | None = msgspec.field(name="Python parent id", default=None)


class _Event(msgspec.Struct):
    name: str = ""
    cat: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: _Arguments | msgspec.UnsetType = msgspec.UNSET


class _Head(msgspec.Struct):
    traceEvents: list[msgspec.Raw]  # noqa: N815 - its name in the file
    pythonFiles: dict[str, str] = {}  # noqa: N815 - as the keys beside it


_head_decoder = json_decoder(_Head)
_event_decoder = json_decoder(_Event)


def parse_profiler_stacks(data: bytes, *, rank: int, artifact: str = "") -> StackSample:
    """Read the stacks that a trace of Kineto holds.

    Args:
        data: The trace. Its key ``pythonFiles`` has the paths of files that Kineto names without
            their folder.
        rank: The rank the process belongs to.
        artifact: The path to cite.

    Returns:
        The threads that were somewhere in Python for the whole window. The main thread is the one
        that runs a module.

    Raises:
        ParseError: It is no such trace, or has no frame.
    """
    try:
        head = _head_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(f"not a trace of Kineto ({str(error)[:120]})") from error
    events = [event for raw in head.traceEvents if (event := _read_event(raw)) is not None]
    if not events:
        raise ParseError("no Python frame in the trace: it was taken without stacks")
    threads: list[ThreadStack] = []
    for chain in _list_chains(_keep_whole(events)):
        frames = [frame for event in chain if (frame := _read_frame(event, head.pythonFiles))]
        for part in _cut_threads(frames):
            is_main = part[0].function in _MAIN_ROOTS
            threads.append(ThreadStack(0, "", tuple(reversed(part)), is_main=is_main))
    if not threads:
        raise ParseError("no Python frame lasted as long as the trace")
    pid = next((event.pid for event in events if isinstance(event.pid, int) and event.pid), 0)
    return StackSample(
        rank,
        pid,
        worker=False,
        index=0,
        threads=_number(threads),
        source="profiler",
        artifact=artifact,
    )


def _read_event(raw: msgspec.Raw) -> _Event | None:
    try:
        event = _event_decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return event if event.cat == "python_function" and event.args is not msgspec.UNSET else None


def _keep_whole(events: Sequence[_Event]) -> list[_Event]:
    """Keep the frames that were there from the begin of the window to its end."""
    begin = min(event.ts for event in events)
    end = max(event.ts + event.dur for event in events)
    edge = (end - begin) * _EDGE
    whole = [
        event for event in events if event.ts - begin <= edge and end - event.ts - event.dur <= edge
    ]
    return whole[:_MAX_FRAMES]


def _list_chains(events: Sequence[_Event]) -> Iterator[list[_Event]]:
    """Yield chains of frames from the outermost on."""
    by_parent: dict[int, _Event] = {}
    numbers = set()
    for event in events:
        if isinstance(event.args, _Arguments):
            numbers.add(event.args.number)
            if event.args.parent is not None:
                by_parent.setdefault(event.args.parent, event)
    for event in events:
        if not isinstance(event.args, _Arguments) or event.args.parent in numbers:
            continue
        chain, seen = [event], {event.args.number}
        while (below := by_parent.get(_number_of(chain[-1]))) and _number_of(below) not in seen:
            seen.add(_number_of(below))
            chain.append(below)
        yield chain


def _number_of(event: _Event) -> int:
    return event.args.number if isinstance(event.args, _Arguments) else -1


def _read_frame(event: _Event, files: Mapping[str, str]) -> Frame | None:
    match = _NAME.fullmatch(event.name)
    if match is None:
        return None
    return Frame(match[3], files.get(match[1], match[1]), int(match[2]))


def _cut_threads(frames: Sequence[Frame]) -> Iterator[list[Frame]]:
    """Cut a chain of frames, outermost first, where a thread begins."""
    part: list[Frame] = []
    for frame in frames:
        if part and _is_root(frame, part[-1]):
            yield part
            part = []
        part.append(frame)
    if part:
        yield part


def _is_root(frame: Frame, above: Frame) -> bool:
    if frame.function == "_bootstrap":
        return frame.file.endswith("threading.py")
    if frame.function == "_run_module_as_main":
        return True
    return frame.function == "<module>" and above.function not in _RUNNERS


def _number(threads: Sequence[ThreadStack]) -> tuple[ThreadStack, ...]:
    """Give threads numbers, as theirs are not told."""
    return tuple(
        ThreadStack(number, one.name, one.frames, is_main=one.is_main)
        for number, one in enumerate(threads, start=1)
    )
