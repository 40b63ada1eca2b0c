"""Forms of lines that tell of progress, or of nothing: of hundreds in a row, few are read."""

from __future__ import annotations

import re
from dataclasses import dataclass

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.parse.logs.lines.line_texts import ToldText
from whystuck.parse.logs.lines.lines import LogLine
from whystuck.parse.logs.owners.said_places import NOTHING_SAID

# No log has more; the forms of one that has are all looked at.
_MOST = 1000
# What tells of ranks, processes, places and the job: a line with one of these words is taken apart.
_TELLING = re.compile(
    r"rank|world|worker|pid|proc|group|device|gpu|pci|bus|spawn|restart|clock|environ|opcount"
    r"|logs |#",
    re.IGNORECASE,
)
# A list of numbers may be the members of a group.
_LIST = re.compile(rb"[\[({]0[,;]")
# What `date` prints is shorter than this.
_LEAST = 60
# A time is another one in each line of a writer.
_TIME = re.compile(rb"(?:\d{4}-\d\d-\d\d.)?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?")


@dataclass(frozen=True, slots=True)
class PlainLine:
    """A line that tells no more than progress.

    Attributes:
        line: The line.
        prefix: What stands before its text.
        is_named: Whether that names who wrote it.
        is_progress: Whether it tells of progress.
    """

    line: LogLine
    prefix: bytes
    is_named: bool
    is_progress: bool

    def cut(self, data: bytes) -> str:
        """Return the text of a line like this one, without what stands before it."""
        return data[len(self.prefix) :].decode("utf-8", errors="replace")

    def has_writer(self, data: bytes) -> bool:
        """Tell whether a line of the same form is of the same writer."""
        if not self.is_named or data.startswith(self.prefix):
            return True
        return _drop_times(data[: len(self.prefix)]) == _drop_times(self.prefix)


class PlainForms:
    """Remembers which forms of lines tell no more than progress, with a line of each."""

    def __init__(self) -> None:
        self._known: dict[bytes, PlainLine | None] = {}  # None for a form that tells more

    def learn(self, form: bytes, data: bytes, line: LogLine, told: ToldText) -> None:
        """Take a line that was taken apart."""
        if form in self._known or len(self._known) >= _MOST:
            return
        text = line.text.encode()
        is_plain = _is_plain(line, told) and not _LIST.search(form) and data.endswith(text)
        is_named = bool(line.owner or line.node or line.pid) or line.writer != UNKNOWN_RANK
        prefix = data[: len(data) - len(text)]
        plain = PlainLine(line, prefix, is_named, told.is_progress)
        # In a merged log, lines of others come behind the last one of a rank.
        is_plain = is_plain and not (is_named and told.is_progress)
        self._known[form] = plain if is_plain else None

    def find_like(self, form: bytes, data: bytes, *, is_last: bool) -> PlainLine | None:
        """Return a line of the same form and writer that tells all that this one would.

        Args:
            form: The form of a line.
            data: The line.
            is_last: Whether few such lines come behind it: the last ones tell of progress.
        """
        known = self._known.get(form)
        if known is None or (is_last and known.is_progress):
            return None
        return known if known.has_writer(data) else None


def _is_plain(line: LogLine, told: ToldText) -> bool:
    is_alone = told.said is NOTHING_SAID and not (told.kind or told.groups or told.rank_pids)
    is_date = line.text[-1:].isdecimal() and len(line.text) < _LEAST and not told.is_progress
    return is_alone and not is_date and not _TELLING.search(line.text)


def _drop_times(prefix: bytes) -> bytes:
    return _TIME.sub(b"", prefix)
