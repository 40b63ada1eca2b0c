"""Answers of NCCL's RAS that somebody wrote into a log, whole or in part."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from whystuck.evidence.nodes.ras import RasMember, RasStatus
from whystuck.parse.ras import parse_ras_lines

RAS_MARKS = (
    b") MISMATCH", b") INCOMPLETE", b" compiled with CUDA ", b"     Comms     Nodes",
    b"Missing communicator data from", b"considered dead (unreachable",
)  # fmt: skip
_HEAD = re.compile(r"NCCL version \S{1,40} compiled with CUDA")
_TABLE = re.compile(r"Group\s{1,9}Comms\s{1,9}Nodes\s{1,9}Ranks\b")
_COMM = re.compile(r"#[0-9]{1,9}-[0-9]{1,9} \([0-9a-f]{1,16}\) (?:INCOMPLETE|ERROR|MISMATCH)\b")
# The processes that give no answer stand above the communicators, and what is cut may begin here.
_SILENT = re.compile(
    r" {1,8}(?:Missing communicator data from [0-9]{1,9} job process(?:es)?"
    r"|[0-9]{1,9} job process(?:es are| is) considered dead \(unreachable.{0,80})\s*$"
)
# Quotes of mail and Markdown.
_QUOTE = re.compile(r"(?:[>|] ?)+")
# The table of communicators, with its heads, stands between the first line and the first of these.
_MAX_STRANGERS = 40
_MAX_LINES = 4000
MAX_ANSWERS = 64


@dataclass(slots=True)
class RasSeen:
    """The lines of one answer, from a row on."""

    row: int
    lines: list[str] = field(default_factory=list)

    def parse(self, artifact: str) -> RasStatus:
        """Read what the lines tell."""
        return parse_ras_lines(self.lines, artifact=artifact)


class RasReader:
    """Follows one answer at a time."""

    def __init__(self) -> None:
        self._seen: RasSeen | None = None
        self._comms: set[str] = set()
        self._strangers = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may belong to an answer."""
        return self._seen is not None

    def read(self, text: str, row: int) -> Iterator[RasSeen]:
        """Take the next line; yield the answer that it ends."""
        text = _QUOTE.sub("", text, count=1) if text[:1] in ">|" else text
        head, comm = _HEAD.match(text), _COMM.match(text)
        # The same communicator again is of an answer that came later.
        is_new = head is not None or (comm is not None and comm[0] in self._comms)
        if self._seen is not None and is_new:
            yield from self.finish()
        if self._seen is None:
            is_begun = head or comm or _TABLE.match(text) or _SILENT.match(text)
            if not is_begun:
                return
            self._seen = RasSeen(row)
        if comm is not None:
            self._comms.add(comm[0])
        is_own = head or comm or not text.strip() or text[:1] in " =-"
        self._strangers = 0 if is_own else self._strangers + 1
        if self._strangers > _MAX_STRANGERS or len(self._seen.lines) >= _MAX_LINES:
            yield from self.finish()
        else:
            self._seen.lines.append(text)

    def finish(self) -> Iterator[RasSeen]:
        """Yield the answer that the log ends in."""
        seen, self._seen, self._strangers = self._seen, None, 0
        is_told = bool(self._comms)
        self._comms = set()
        # A job says with which CUDA its NCCL was compiled, too.
        if seen is not None and is_told:
            yield seen


def list_owners(answers: Iterable[RasSeen], world_size: int) -> Iterator[RasMember]:
    """Yield the processes of ranks that answers name; in smaller groups, ranks count otherwise.

    Args:
        answers: Some answers.
        world_size: The number of ranks of the job, 0 where nothing tells.
    """
    for answer in answers:
        status = answer.parse("")
        if status.alike > 1 or status.largest < world_size:
            continue
        for comm in status.comms:
            if comm.size == status.largest > 0:
                counted = (one for count in comm.counts for one in count.members)
                for member in (*counted, *comm.missing, *comm.absent):
                    if member.pid > 0:
                        yield member
