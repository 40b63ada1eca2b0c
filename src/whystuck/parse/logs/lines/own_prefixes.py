"""What a launcher of somebody's own puts before lines, in a form that is known from nowhere.

It is learned from lines whose rest has a head that is known: a rank as torch writes it, a line of
C++, of NCCL, a traceback. What stands before that, with other numbers, is a prefix of other lines
of the log too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.lines.line_forms import match_prefix

_MAX_PREFIX = 80
_MAX_FORMS = 8
_MAX_WORDS = 5
# What stands behind a prefix: heads that are of one line alone, and those of a block of lines.
_HEAD = re.compile(
    r"\[[Rr]ank ?\d{1,7}\]:|\[default\d{1,4}\]:"
    r"|\[?[EWIF]\d{3,4} \d\d:\d\d:\d\d\.\d{6}|\[[EWIF] [\w./]{1,80}\.(?:cpp|cc|h|hpp):\d"
    r"|[A-Za-z0-9][\w.-]{0,62}:\d{1,18}:\d{1,18} \[\d{1,4}\] NCCL "
    r"|(?P<block>(?:Exception Group )?Traceback \(most recent call last\)|  File \")"
)
_MARKS = (b"[rank", b"[Rank", b"[default", b".cpp:", b".h", b" NCCL ", b"Traceback (", b'  File "')
_BARS = frozenset(" \t|+-")  # of a group of exceptions
_ENDS = re.compile(r"[\s>|:\])}#$~.,-]$")
_CLOCK = r"\d{1,4}(?:[-/:.]\d{1,4}){2,3}(?:[.,]\d{1,9})?"
_TIMES = re.compile(rf"(?<![\w.])(?!\d{{1,3}}(?:\.\d{{1,3}}){{3}}){_CLOCK}")
_WORD = re.compile(r"[A-Za-z]{2,}")
_TOKEN = re.compile(
    r"(?P<ip>(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.]))"
    rf"|(?P<clock>{_CLOCK})"
    r"|(?P<named>(?P<name>[A-Za-z_]{1,20})[ =:_#-]?(?P<number>\d{1,7})"
    r"(?!(?!\.(?:log|err|out|txt)\b)[\w.-]{0,20}[A-Za-z\d]))"
    r"|(?P<alone>(?<![\w.])\d{1,7}(?![\w.]{0,20}\w))"
    r"|(?P<host>[A-Za-z][\w.-]{0,62}\d[\w.-]{0,20})"
)
_RANKS = frozenset({"r", "rk", "rank", "w", "wk", "wkr", "worker", "proc", "task"})
_LOCALS = frozenset({"gpu", "cuda", "dev", "device", "local", "lr", "localrank", "local_rank"})
_COUNTED = re.compile(
    r"job|run|try|attempt|v|version|exp|seed|step|epoch|iter|iteration|batch|round|phase|stage|layer"
    r"|fold|shard|trial|global|default|line|row|col"
)
_NODES = frozenset({"n", "h", "node", "host", "server", "machine", "pod"})


@dataclass(frozen=True)
class OwnPrefix:
    """A form of what stands before lines: groups ``rank``, ``local`` and ``node`` say whose."""

    pattern: re.Pattern[str]

    def read(self, text: str) -> Taken | None:
        """Read it at the beginning of a text; None where it does not stand there."""
        match = self.pattern.match(text)
        if match is None:
            return None
        told = match.groupdict()
        rank = int(told.get("rank") or UNKNOWN_RANK)
        return Taken(
            end=match.end(),
            task=rank if rank <= MAX_RANK else UNKNOWN_RANK,
            local=int(told.get("local") or -1),
            node=told.get("node") or "",
            # A time is another one in each line.
            owner=_TIMES.sub("", match[0]).strip(),
        )


@dataclass(frozen=True)
class Taken:
    """What a prefix tells of its line: how long it is, and who wrote the line."""

    end: int
    task: int
    local: int
    node: str
    owner: str


@dataclass(frozen=True)
class _Seen:
    """A prefix that was found: itself, the rank that stands behind it, and whether in a block."""

    text: str
    rank: int
    is_block: bool


def list_heads(lines: Iterable[bytes]) -> list[bytes]:
    """Return the lines that may have a head, from which prefixes are learned."""
    # Most logs have none of most marks.
    lines = list(lines)
    whole = b"\n".join(lines)
    marks = [mark for mark in _MARKS if mark in whole]
    return [data for data in lines if any(mark in data for mark in marks)] if marks else []


def find_head(text: str) -> re.Match[str] | None:
    """Find a head that is known behind something that is not, without the prefixes that are."""
    match = _HEAD.search(text, 1, _MAX_PREFIX)
    return None if match is None or match_prefix(text) else match


def find_own_prefixes(texts: Iterable[str], read_rank: Callable[[str], int]) -> list[OwnPrefix]:
    """Find the forms of what stands before lines, behind all prefixes that are known.

    Args:
        texts: Lines, without the prefixes that are known.
        read_rank: Reads the rank that the rest of a line says of its writer.
    """
    forms: dict[str, list[_Seen]] = defaultdict(list)
    for text in texts:
        match = find_head(text)
        if match is None:
            continue
        prefix = text[: match.start()]
        if _is_prefix(prefix):
            is_block = match["block"] is not None
            rank = UNKNOWN_RANK if is_block else read_rank(text[match.start() :])
            forms[_shape(prefix)].append(_Seen(prefix, rank, is_block))
    found = [_make(seen) for seen in forms.values() if len(seen) > 1 or not seen[0].is_block]
    return found[:_MAX_FORMS]


def _is_prefix(text: str) -> bool:
    """Tell a prefix from a sentence, and from the blanks before a frame."""
    used = set(text)
    is_blank = not text.strip() or (used <= _BARS and not used.isdisjoint("|+"))
    is_short = len(_WORD.findall(text)) <= _MAX_WORDS and used.isdisjoint("\"'`")
    return not is_blank and is_short and _ENDS.search(text) is not None


def _shape(prefix: str) -> str:
    return re.sub(r"\d+", "0", prefix)


def _make(seen: Sequence[_Seen]) -> OwnPrefix:
    """Make the form of prefixes that differ in numbers alone."""
    text = seen[0].text
    rank = _choose_rank(seen)
    parts, place, is_node_told = list[str](), 0, False
    for at, match in enumerate(_TOKEN.finditer(text)):
        parts.append(re.escape(text[place : match.start()]))
        place = match.end()
        name = (match["name"] or "").lower().strip("_")
        if at == rank:
            parts.append(_number("rank", match[0]))
        elif name in _LOCALS and "local" not in "".join(parts):
            parts.append(_number("local", match[0]))
        elif not is_node_told and (match["ip"] or match["host"] or _is_host(match, name)):
            is_node_told = True
            parts.append(f"(?P<node>{_digits(match[0])})")
        else:
            parts.append(_digits(match[0]))
    parts.append(re.escape(text[place:]))
    return OwnPrefix(re.compile("".join(parts)))


def _is_host(match: re.Match[str], name: str) -> bool:
    """Tell hosts as `c12` and `node 3` from what is counted: `job17`, `step 12`."""
    is_joined = bool(name) and match[0].lower() == name + (match["number"] or "")
    return name in _NODES or (is_joined and not _COUNTED.fullmatch(name))


def _digits(text: str) -> str:
    return re.sub(r"\d+", lambda _: r"\d{1,18}", re.escape(text))


def _number(name: str, token: str) -> str:
    """Return the expression of a token whose last number has a name."""
    head = token.rstrip("0123456789")
    return rf"{_digits(head)}(?P<{name}>\d{{1,7}})"


def _choose_rank(seen: Sequence[_Seen]) -> int:
    """Return which token counts ranks, by what stands behind it or by its numbers; -1 for none."""
    columns: dict[int, list[tuple[int, int]]] = defaultdict(list)
    names: dict[int, str] = {}
    for one in seen:
        for at, match in enumerate(_TOKEN.finditer(one.text)):
            number = match["number"] or match["alone"]
            if number is not None:
                columns[at].append((int(number), one.rank))
                names[at] = (match["name"] or "").lower().strip("_")
    for at, column in columns.items():
        name, numbers = names[at], {number for number, _ in column}
        if (name and name not in _RANKS) or len(column) != len(seen):
            continue
        told = [(number, rank) for number, rank in column if rank != UNKNOWN_RANK]
        # Numbers of writers are counted from 0 without large gaps.
        is_dense = len(numbers) > 1 and 0 in numbers and max(numbers) < 2 * len(numbers)
        is_same = bool(told) and all(number == rank for number, rank in told)
        if (is_same if told else is_dense) or name == "rank":
            return at
    return -1
