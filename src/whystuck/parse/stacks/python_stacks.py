"""Stacks of Python threads: py-spy JSON, py-spy text and faulthandler text."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from whystuck.evidence.decoding import json_decoder
from whystuck.evidence.live import FatalStack, StackSample, ThreadStack
from whystuck.evidence.numbers import is_number
from whystuck.evidence.ops.collectives import Frame
from whystuck.parse.errors import ParseError
from whystuck.parse.weight import check_json


class _SpyFrame(msgspec.Struct):
    name: str
    filename: str
    line: int


class _SpyThread(msgspec.Struct):
    frames: list[_SpyFrame]
    pid: int = 0
    thread_id: int = 0
    thread_name: str | None = None
    os_thread_id: int | None = None
    active: bool | None = None
    owns_gil: bool | None = None


_spy_decoder = json_decoder(list[_SpyThread])

# A thousand threads of a hundred frames have half of it.
_MAX_VALUES = 2_000_000
# A pattern is given no more of a line.
_MAX_LINE = 8192
_SPY_PROCESS = re.compile(r"^Process ([0-9]{1,10}): ?(.*)$")
_SPY_THREAD = re.compile(
    r'^Thread (0x[0-9A-Fa-f]{1,16}|[0-9]{1,20})\s*\(([a-z+ ]+)\)(?:: "(.*)")?\s*$'
)
_SPY_FRAME = re.compile(r"^ {4}(?=.*\)\s*$)(\S.*) \((.+?)(?::([0-9]{1,9}))?\)\s*$")
_FAULT_THREAD = re.compile(
    r"^(?:(Current thread|Thread) 0x([0-9A-Fa-f]{1,16})(?: \[(.*)\])?|Stack)"
    r" \(most recent call first\):"
)
_FAULT_FRAME = re.compile(r'^  File "(.*)", line ([0-9]{1,9}|\?\?\?) in (.*)$')
_FATAL = re.compile(r"^Fatal Python error: (.*)$", re.MULTILINE)


def parse_spy_json(
    data: bytes, *, rank: int, worker: bool = False, index: int = 0, artifact: str = ""
) -> StackSample:
    """Read what ``py-spy dump --json`` printed for one process.

    Args:
        data: The JSON text.
        rank: The rank the process belongs to.
        worker: Whether the process is a data-loader worker of that rank.
        index: The number of the sample.
        artifact: The path to cite.

    Returns:
        All threads of the process.

    Raises:
        ParseError: It is not the JSON of py-spy.
    """
    check_json(data, _MAX_VALUES)
    try:
        spied = _spy_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(f"not py-spy JSON ({str(error)[:120]})") from error
    if not spied:
        raise ParseError("py-spy saw no thread")
    threads = tuple(
        ThreadStack(
            thread_id=thread.thread_id,
            name=thread.thread_name or "",
            frames=tuple(Frame(frame.name, frame.filename, frame.line) for frame in thread.frames),
            is_main=thread.thread_name == "MainThread"
            or (thread.os_thread_id is not None and thread.os_thread_id == thread.pid),
            owns_gil=thread.owns_gil,
            active=thread.active,
        )
        for thread in spied
    )
    pid = spied[0].pid
    return StackSample(rank, pid, worker, index, threads, "py-spy", artifact)


def is_spy_text(text: str) -> bool:
    """Tell whether a text is what ``py-spy dump`` prints."""
    head = text[:4000].splitlines()
    return any(_SPY_PROCESS.match(line) for line in head) and any(
        _SPY_THREAD.match(line) for line in text[:20000].splitlines()
    )


def is_faulthandler_text(text: str) -> bool:
    """Tell whether a text holds stacks that faulthandler wrote."""
    return "(most recent call first):" in text


def parse_spy_text(text: str, *, rank: int, index: int = 0, artifact: str = "") -> StackSample:
    """Read the text that ``py-spy dump`` prints for one process.

    Args:
        text: The text.
        rank: The rank the process belongs to.
        index: The number of the sample.
        artifact: The path to cite.

    Returns:
        All threads of the process.

    Raises:
        ParseError: There is no thread in it.
    """
    pid, command = 0, ""
    heads: list[tuple[str, str, str]] = []
    frames: list[list[Frame]] = []
    for line in _list_lines(text):
        if match := _SPY_PROCESS.match(line):
            pid, command = int(match[1]), match[2]
        elif match := _SPY_THREAD.match(line):
            heads.append((match[1], match[2], match[3] or ""))
            frames.append([])
        elif heads and (match := _SPY_FRAME.match(line)):
            frames[-1].append(Frame(match[1], match[2], int(match[3] or 0)))
    if not heads:
        raise ParseError("no thread in the text of py-spy")
    threads = tuple(
        ThreadStack(
            thread_id=int(number, 16 if number.startswith("0x") else 10),
            name=name,
            frames=tuple(stack),
            is_main=name == "MainThread",
            owns_gil="gil" in state,
            active="active" in state,
        )
        for (number, state, name), stack in zip(heads, frames, strict=True)
    )
    return StackSample(rank, pid, "pt_data_worker" in command, index, threads, "py-spy", artifact)


def parse_faulthandler(
    text: str, *, rank: int, worker: bool = False, artifact: str = ""
) -> StackSample:
    """Read stacks that faulthandler wrote; the main thread is the last one it prints.

    Args:
        text: The text.
        rank: The rank the process belongs to.
        worker: Whether the process is a data-loader worker of that rank.
        artifact: The path to cite.

    Returns:
        All threads of the process.

    Raises:
        ParseError: There is no stack in it.
    """
    threads = _read_faulthandler_threads(text)
    return StackSample(rank, 0, worker, 0, threads, "faulthandler", artifact)


def parse_fatal(text: str, *, rank: int, artifact: str = "") -> FatalStack:
    """Read what faulthandler wrote while a fatal signal killed the process.

    Args:
        text: The text.
        rank: The rank of the process.
        artifact: The path to cite.

    Returns:
        The reason, and the threads, the one that crashed first; the main one where a thread that
        runs no Python crashed.

    Raises:
        ParseError: There is no fatal error in it.
    """
    match = _FATAL.search(text)
    if match is None:
        raise ParseError("no fatal error in the text of faulthandler")
    body = text[match.end() :]
    threads = _read_faulthandler_threads(body)
    current = re.findall(r"^(Current thread|Thread) 0x", body, re.MULTILINE)
    # The main thread comes last.
    first = current.index("Current thread") if "Current thread" in current else len(threads) - 1
    threads = (threads[first], *threads[:first], *threads[first + 1 :])
    return FatalStack(rank, match[1].strip(), threads, artifact)


def _read_faulthandler_threads(text: str) -> tuple[ThreadStack, ...]:
    heads: list[tuple[int, str]] = []
    frames: list[list[Frame]] = []
    for line in _list_lines(text):
        if match := _FAULT_THREAD.match(line):
            heads.append((int(match[2] or "0", 16), match[3] or ""))
            frames.append([])
        elif heads and (match := _FAULT_FRAME.match(line)):
            number = int(match[2]) if is_number(match[2]) else 0
            frames[-1].append(Frame(match[3], match[1], number))
    if not heads:
        raise ParseError("no stack in the text of faulthandler")
    return tuple(
        ThreadStack(number, name, tuple(stack), is_main=position == len(heads) - 1)
        for position, ((number, name), stack) in enumerate(zip(heads, frames, strict=True))
    )


def _list_lines(text: str) -> Iterator[str]:
    return (line[:_MAX_LINE] for line in text.splitlines())
