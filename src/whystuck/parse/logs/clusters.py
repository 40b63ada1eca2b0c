"""Lines that look like errors and that no signature knows, folded by their form."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.parse.logs.lines.lines import LogLine

# Texts that a line which looks like an error has, and that output of jobs that are well hardly has.
CLUSTER_MARKS = (
    b" ERROR",
    b"ERROR ",
    b"[ERROR",
    b"ERROR:",
    b'"ERROR"',
    b"|ERROR",
    b"FATAL",
    b"CRITICAL",
    b"error: ",
    b"Error: ",
    b"fatal: ",
    b"failed: ",
    b"failed to ",
    b"Failed to ",
    b"FAILED",
    b"panic: ",
    b"terminate called",
    b" Assertion ",
    b"core dumped",
)
MAX_TEMPLATES = 400
MAX_RANKS = 4096
_MAX_TEXT = 400

_LOOKS = re.compile(
    r"\b(?:ERROR|FATAL|CRITICAL)\b|\b(?:[A-Za-z]\w*)?[Ee]rror: |\bfatal: |\b[Ff]ailed(?:: | to )|"
    r"\bFAILED\b|\bpanic: |terminate called| Assertion |core dumped"
)
_FINE = re.compile(
    r"\b(?:0|no|zero|without|ignor\w+|any) (?:\w+ )?(?:errors?|failures?|FAILED|ERRORS?)\b|"
    r"\b[Ee]rrors?: (?:\d|[Nn]one\b|[Ff]alse\b)|\bwill (?:be )?(?:retr|ignor)|\bretry(?:ing)?\b|"
    # The heading of torchelastic's table.
    r"^\S+ FAILED$",
    re.IGNORECASE,
)
_MASK = re.compile(
    r"0[xX][0-9a-fA-F]+|'[^']{0,200}'|\"[^\"]{0,200}\"|(?<!\w)/[\w.@%+/-]+|"
    r"\b[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]+)*\b|[-+]?\d[\d.,:]*\w*"
)


@dataclass(slots=True)
class ClusterSeen:
    """Lines of one form."""

    template: str
    sample: str
    row: int
    line: LogLine
    count: int = 0
    ranks: set[int] = field(default_factory=set)
    tasks: set[int] = field(default_factory=set)


class ClusterReader:
    """Folds the lines of one log."""

    def __init__(self) -> None:
        self._clusters: dict[str, ClusterSeen] = {}
        # Lines of further forms than are kept.
        self.left_out = 0

    def read(self, line: LogLine, row: int) -> None:
        """Take a line that no signature knows."""
        text = line.text[:_MAX_TEXT].strip()
        if not _LOOKS.search(text) or _FINE.search(text):
            return
        template = mask(text)
        known = self._clusters.get(template)
        if known is None:
            if len(self._clusters) >= MAX_TEMPLATES:
                self.left_out += 1
                return
            known = self._clusters[template] = ClusterSeen(template, text, row, line)
        known.count += 1
        if line.rank != UNKNOWN_RANK:
            if len(known.ranks) < MAX_RANKS:
                known.ranks.add(line.rank)
        elif line.task != UNKNOWN_RANK and len(known.tasks) < MAX_RANKS:
            known.tasks.add(line.task)

    @property
    def clusters(self) -> list[ClusterSeen]:
        """What was folded, in the order of the log."""
        return list(self._clusters.values())


def mask(text: str) -> str:
    """Put ``<*>`` in the place of numbers, paths and quoted names."""
    return _MASK.sub("<*>", text)
