"""What faulthandler writes into a log while a fatal signal ends the process."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from whystuck.evidence.live import ThreadStack
from whystuck.evidence.numbers import is_number
from whystuck.evidence.ops.collectives import Frame
from whystuck.parse.logs.lines.lines import LogLine

FATAL_MARKS = (b"Fatal Python error: ",)
_MAX_STRANGERS = 400
_MAX_THREADS = 256
_MAX_FRAMES = 200

_FATAL = re.compile(r"^\s*Fatal Python error: (.*)$")
_THREAD = re.compile(
    r"^(?:(?P<current>Current thread|Thread) 0x(?P<number>[0-9A-Fa-f]{1,16})(?: \[(?P<name>.*)\])?"
    r"|Stack) \(most recent call first\):"
)
_FRAME = re.compile(r'^  File "(.*)", line (\d{1,9}|\?\?\?) in (.*)$')
_END = re.compile(r"^Extension modules: |^Current thread's C stack trace")


@dataclass(slots=True)
class FatalSeen:
    """The stacks of one process that a fatal signal ended."""

    row: int
    line: LogLine
    reason: str
    last_row: int = 0
    # The line of the innermost frame of the thread that crashed.
    site_row: int = 0
    threads: list[ThreadStack] = field(default_factory=list)
    # The thread whose frames come now, and the last line that belongs to the stacks.
    at: int = 0
    seen: int = 0
    # Whether the thread that crashed runs Python; one that does not is not listed.
    is_current_known: bool = False


class FatalReader:
    """Follows the stacks of all writers of one log."""

    def __init__(self) -> None:
        self._open: dict[str, FatalSeen] = {}
        self._lines = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may belong to a stack."""
        return bool(self._open)

    def is_of(self, owner: str) -> bool:
        """Whether the lines of a writer may belong to a stack."""
        return owner in self._open

    def read(self, line: LogLine, row: int) -> Iterator[FatalSeen]:
        """Take the next line; yield the stacks that it ends."""
        self._lines += 1
        text = line.text
        if match := _FATAL.match(text):
            yield from self._close(line.owner)
            fatal = FatalSeen(row, line, match[1].strip()[:200], row, seen=self._lines)
            self._open[line.owner] = fatal
        elif self._open:
            fatal_or_none = self._open.get(line.owner)
            if fatal_or_none is not None and _take(fatal_or_none, text, row):
                fatal_or_none.seen = self._lines
            elif _END.match(text):
                yield from self._close(line.owner)
            for owner in [
                owner
                for owner, one in self._open.items()
                if self._lines - one.seen > _MAX_STRANGERS
            ]:
                yield from self._close(owner)

    def finish(self) -> Iterator[FatalSeen]:
        """Yield the stacks that the log ends in."""
        for owner in list(self._open):
            yield from self._close(owner)

    def _close(self, owner: str) -> Iterator[FatalSeen]:
        fatal = self._open.pop(owner, None)
        if fatal is not None:
            if fatal.threads:
                # faulthandler prints the main thread last.
                main = replace(fatal.threads.pop(fatal.at), is_main=True)
                fatal.threads.insert(fatal.at if fatal.is_current_known else 0, main)
            yield fatal


def _take(fatal: FatalSeen, text: str, row: int) -> bool:
    threads = fatal.threads
    if match := _THREAD.match(text):
        if len(threads) < _MAX_THREADS:
            # The one that crashed comes first.
            is_current = match["current"] == "Current thread"
            fatal.is_current_known |= is_current
            fatal.at = 0 if is_current else len(threads)
            number = int(match["number"] or "0", 16)
            threads.insert(fatal.at, ThreadStack(number, match["name"] or "", ()))
    elif (match := _FRAME.match(text)) and threads:
        thread = threads[fatal.at]
        if len(thread.frames) < _MAX_FRAMES:
            number = int(match[2]) if is_number(match[2]) else 0
            frame = Frame(match[3], match[1], number)
            threads[fatal.at] = replace(thread, frames=(*thread.frames, frame))
            if (fatal.at == 0 or not fatal.is_current_known) and not thread.frames:
                fatal.site_row = row
    else:
        return False
    fatal.last_row = row
    return True
