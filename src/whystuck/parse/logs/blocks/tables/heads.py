"""Whose values stand in a text: the pod, host, rank or process that is named above them.

People print the same of several hosts or containers one below the other, in a loop that prints the
name of each before it, or with a command for each. Counters of control groups are given an owner
here; readers of tables ask for headings themselves.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.lines.label_forms import NO_COUNT
from whystuck.parse.logs.lines.lines import LogLine

# The heading stands so near: `cpu.stat` has some ten lines, `cpu.pressure` two more.
_MOST_BYTES = 1 << 11
_MOST_LINES = 24
_LONGEST = 80
_MOST_NAMES = 2
_COUNTER = re.compile(r"\bnr_(?:periods|throttled)\b")
# Other lines of the files of a group, and what says which file it is.
_VALUE = re.compile(
    r"^[ \t]{0,8}(?:(?:max|\d{1,15})(?: \d{1,15})?|[a-z_][a-z_.]{1,40}[ :=]{1,4}-?\d{1,20}"
    r"|(?:some|full) avg10=.{0,100}|==> /\S{1,200} <==|(?:/sys/fs/cgroup|/proc)/\S{0,200}:?"
    r"|cpu\.(?:stat|max|pressure)(?:\.local)?:?)?[ \t\r]{0,8}$"
)
NAME = rf"{NO_COUNT}(?=[\w.]*[\d-])[A-Za-z][\w.-]{{1,62}}|(?:\d{{1,3}}\.){{3}}\d{{1,3}}"
_RANK = re.compile(
    r"(?<![\w./-])(?:global[ _]?)?(?:rank|r)[ _=:#-]{0,2}(\d{1,7})(?![\w.-])", re.IGNORECASE
)
_WORD = re.compile(r"[^\s/()\[\]{}=:,#*<>|~\"'`]+")
# Words of a heading that name nobody.
_PLAIN = {
    "pod",
    "pods",
    "container",
    "host",
    "node",
    "machine",
    "on",
    "of",
    "in",
    "for",
    "the",
    "-",
}
_DASHES = re.compile(r"^[-.>]{1,40}$")
_IS_NAME = re.compile(rf"^(?:{NAME})$")
# A name in front of the counter itself, as pdsh, stern and people put it.
_BEFORE = re.compile(rf"^\s{{0,4}}(?:pod/)?(?P<name>{NAME})\s{{0,4}}(?:[:|]\s{{0,4}}|\s)(?=\S)")
_EXEC = re.compile(
    r"\b(?:kubectl|oc|k|docker|podman|nerdctl|crictl|apptainer)\b.{0,80}? exec "
    rf"(?:(?:-[ncu]|--namespace|--container)[ =][\w.-]{{1,40}} |-{{1,2}}[\w=-]{{1,40}} ){{0,6}}"
    rf"(?:pods?/)?(?P<name>{NAME})(?=[ '\"])"
    rf"|\b(?:ssh|pdsh -w|clush -w|srun -w) (?:-\S{{1,40}} ){{0,4}}(?:\w{{1,40}}@)?"
    rf"(?P<host>{NAME})(?=[ '\"])"
    rf"|^\[?\w{{1,40}}@(?P<prompt>{NAME})[: ][^\n#$%]{{0,80}}[#$%] .{{0,400}}(?:cpu\.|/cgroup)"
)
_PID = re.compile(
    r"/proc/(?P<pid>\d{1,9})/root/|\bnsenter\b.{0,80}? (?:-t|--target)[ =](?P<ns>\d{1,9})\b"
)
# In a loop, the name is another one each time.
_VARIABLE = re.compile(r"\$[\w{]")


class Head(NamedTuple):
    """Whose counters stand below: what is not told is empty, -1 or 0."""

    node: str = ""
    rank: int = UNKNOWN_RANK
    pid: int = 0


def name_quota(line: LogLine, data: bytes, start: int) -> None:
    """Give a counter of a group, at a place of a block, the owner that stands above it."""
    if "nr_" not in line.text or line.node or line.rank != UNKNOWN_RANK:
        return
    if not _COUNTER.search(line.text):
        return
    head = _read_before(line.text) or _find_above(data[max(0, start - _MOST_BYTES) : start])
    line.node, line.rank, line.pid = head.node, head.rank, line.pid or head.pid


def _read_before(text: str) -> Head | None:
    """Read who stands in the line of a counter itself, in front of it."""
    before = text[: text.find("nr_")]
    if rank := _RANK.search(before):
        return Head(rank=int(rank[1])) if int(rank[1]) <= MAX_RANK else None
    match = _BEFORE.match(text)
    return Head(match["name"]) if match is not None and "nr_" not in match["name"] else None


def _find_above(above: bytes) -> Head:
    """Find the nearest heading; none behind a line that is neither one nor a value of a group."""
    lines = above.decode("utf-8", errors="replace").splitlines()
    for text in lines[: -_MOST_LINES - 1 : -1]:
        if not _VALUE.match(text):
            return read_command(text) or read_head(text) or Head()
    return Head()


def read_command(text: str) -> Head | None:
    """Read where a command runs; None where it does not say so."""
    if _VARIABLE.search(text):
        return None
    if pid := _PID.search(text):
        return Head(pid=int(pid["pid"] or pid["ns"]))
    match = _EXEC.search(text)
    name = match and (match["name"] or match["host"] or match["prompt"])
    return Head(str(name)) if name else None


def read_head(text: str) -> Head | None:
    """Read a line that holds a name, or a rank, and nothing else."""
    if len(text) > _LONGEST:
        return None
    ranks = {int(rank) for rank in _RANK.findall(text)}
    words = [word for word in _WORD.findall(_RANK.sub(" ", text)) if not _DASHES.match(word)]
    names = [word for word in words if word.lower() not in _PLAIN]
    is_head = len(ranks) <= 1 and len(names) <= _MOST_NAMES and (names or ranks)
    if not is_head or not all(map(_IS_NAME.match, names[:1])):
        return None
    rank = ranks.pop() if ranks else UNKNOWN_RANK
    return Head(names[0] if names else "", rank if rank <= MAX_RANK else UNKNOWN_RANK)
