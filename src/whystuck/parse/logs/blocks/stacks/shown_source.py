"""Source that people show beside stacks: what a command prints of a file, or a numbered listing.

Only texts of the size that people paste are looked through. What has no number of its own is
counted from the first line that the command names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

MOST_PASTED = 1 << 16
MAX_SHOWN = 64
_MAX_LINES = 400
_MAX_WIDTH = 300
# A listing leaves out so many lines at most; a text of unknown length has so few blank ones.
_MAX_STEP = 30
_MAX_BLANK = 3
# So many lines that go on make a listing of a file that nothing names.
_LEAST_BARE = 3
_COLUMNS = 2

_FILE = r"['\"]?(?P<file>[\w./~+-]{1,300}\.py)['\"]?"
_NUMBERING = re.compile(
    r"\b(?:nl|cat -\w{0,3}n\w{0,3}|bat|grep -\w{0,5}n\w{0,5})\b.{0,200}? " + _FILE
)
_PLAIN = (
    re.compile(
        r"\bsed (?:-[nEr]{1,3} )?(?:-e )?['\"]?(?P<first>\d{1,6})"
        r"(?:,(?P<by>\+)?(?P<last>\d{1,6}))?(?:p|!d)['\"]? " + _FILE
    ),
    re.compile(
        r"\bawk ['\"]NR ?[>=]=? ?(?P<first>\d{1,6}) ?(?:&&|,) ?"
        r"NR ?[<=]=? ?(?P<last>\d{1,6})['\"] " + _FILE
    ),
    re.compile(
        r"\bhead -(?:n ?)?(?P<end>\d{1,6}) "
        + _FILE
        + r"(?: ?\| ?tail -(?:n ?)?(?P<count>\d{1,6}))?"
    ),
    re.compile(
        r"\btail -n ?\+(?P<first>\d{1,6}) " + _FILE + r"(?: ?\| ?head -(?:n ?)?(?P<count>\d{1,6}))?"
    ),
    re.compile(r"(?:^|[$#%>] ?)(?:cat|less|more) " + _FILE + r"\s*$"),
    # `ckpt.py:36-46`, `ckpt.py, lines 36 to 46:`, `ckpt.py#L36-L46`, `ckpt.py l.36-46`
    re.compile(
        r"^[\W_]{0,12}"
        + _FILE
        + r"(?::|#L|,? ?\(?(?:lines? |ll?\. ?|L))(?P<first>\d{1,6}) ?(?:-|\u2013|\.\.|to) ?"
        r"L?(?P<last>\d{1,6})\)?[\W_]{0,12}$"
    ),
)
# The name of the file above a listing, alone or behind a sentence.
_NAME = re.compile(
    rf"^(?:[A-Za-z][^\n\"]{{0,80}}[.:;!] )?(?:[#/*=>-]{{1,12}} ?)?(?:(?:in|file|from):? )?"
    rf"`?{_FILE}`?(?: ?[:,(].{{0,60}})?"
    r"[ =<*-]{0,12}$"
)
_NUMBERED = re.compile(
    r"^\s{0,8}(?:-{0,4}>|\*)?\s{0,4}(?:[\w./~+-]{1,200}\.py[:-])?(?P<number>\d{1,6})"
    r"(?:\s{0,3}[|:](?=\s|$)|[:|-]|(?=\s)|$)(?:\s{1,4}(?:-{1,4}>|B)(?=\s))?(?P<text>.{0,400})$"
)
_NAMED_LINE = re.compile(r"^\s{0,8}(?P<file>[\w./~+-]{1,200}\.py)[:-]\d{1,6}[:-]")
# `loss.py:95   return sum(term(x) for term in terms)`: a statement, as logs begin with places, too.
_STATEMENT = re.compile(
    r"^\s{0,8}(?P<file>[\w./~+-]{1,200}\.py):\d{1,6}\s{1,8}"
    r"(?=(?:return|yield|for|if|while|with|def)\b)"
)
# A statement in a line of its own, or beside one of another file: two columns.
_CELL = re.compile(
    r"(?<!\S)[\w./~+-]{1,200}\.py:\d{1,6}\s{1,8}(?=(?:with|if|for|while|return|def)\b)"
)
# What ends a text without numbers: a prompt, a fence, a heading.
_PROMPT = re.compile(r"^(?:\[?[\w.@:~/()-]{0,80}(?: [\w~./-]{1,60})?\]?[$%] |```|==+|--- |>>> )")
_PYTHON = re.compile(
    r"^\s*(?:(?:async )?(?:def|for|with) .{1,200}|(?:if|elif|while|class|except) ?.{1,200}:"
    r"|(?:else|try|finally):|return\b|[\w.]{1,80}(?:, ?[\w.]{1,80}){0,4} [-+*|&]?= ?."
    r"|[\w.]{1,120}\()"
)
# One of these stands in each text that shows source; healthy logs of ranks have none of them.
_WORDS = re.compile(
    rb"\b(?:sed -|awk ['\"]|nl -|cat |bat |less |more |head -|tail -|grep -)[^\n]{0,200}\.py\b"
)
_LISTS = re.compile(
    rb"^[> ]{0,2}\s{0,8}(?:-{0,4}>|\*)?\s{0,4}(?:[\w./~+-]{1,200}\.py[:-])?\d{1,6}"
    rb"(?:[ \t]{0,3}[:|-]|[ \t])[ \t]{0,40}(?:[\w.]{1,80}\("
    rb"|(?:def|if|for|while|with|else|try|return|async|class|elif|except) ?[\w(:'\"-])",
    re.MULTILINE,
)
_RANGES = re.compile(rb"\.py['\"]?(?::|#L|,? ?\(?(?:lines? |ll?\. ?|L))\d{1,6} ?(?:-|\xe2|\.\.|to)")
_QUOTE = re.compile(r"^> ?")


@dataclass(slots=True)
class SourceSeen:
    """A piece of a file: its name, empty where nothing tells it, and its lines by number."""

    row: int
    file: str
    lines: dict[int, str] = field(default_factory=dict)


def find_shown(data: bytes, row: int) -> list[SourceSeen]:
    """Find the pieces of source in a text.

    Args:
        data: The text.
        row: The number of its first line.
    """
    if not any(hint.search(data) for hint in (_WORDS, _RANGES, _LISTS)):
        return []
    text = data.decode("utf-8", errors="replace")
    lines = [_QUOTE.sub("", line[:_MAX_WIDTH]).rstrip() for line in text.split("\n")]
    first, second = _split_columns(lines)
    return [*_list_pieces(first, row), *_list_pieces(second, row)][:MAX_SHOWN]


def _split_columns(lines: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the lines up to the statement of another file that stands beside one, and the rest."""
    ends = [_find_second(line) for line in lines]
    if not any(ends):
        return lines, ()
    cut = [line[:end] if end else line for line, end in zip(lines, ends, strict=True)]
    return cut, [line[end:] if end else "" for line, end in zip(lines, ends, strict=True)]


def _find_second(line: str) -> int:
    """Return where the second statement with its place begins in a line, 0 where there is none."""
    if line.count(".py:") != _COLUMNS:
        return 0
    starts = [match.start() for match in _CELL.finditer(line)]
    return starts[1] if len(starts) == _COLUMNS else 0


def _list_pieces(lines: Sequence[str], row: int) -> Iterator[SourceSeen]:
    at = 0
    while at < len(lines):
        seen, end = _read_piece(lines, at)
        if seen is not None:
            seen.row = row + at
            yield seen
        at = max(end, at + 1)


def _read_piece(lines: Sequence[str], at: int) -> tuple[SourceSeen | None, int]:
    """Read the piece that begins at a line; return it, and where it ends."""
    line = lines[at]
    if ".py" in line:
        if numbered := _NUMBERING.search(line):
            return _read_listing(lines, at + 1, numbered["file"], least=1)
        for pattern in _PLAIN:
            if match := pattern.search(line):
                return _read_plain(lines, at + 1, match.groupdict())
        if named := _NAMED_LINE.match(line) or _STATEMENT.match(line):
            return _read_listing(lines, at, named["file"], least=1)
        if match := _NAME.match(line):
            seen, end = _read_listing(lines, at + 1, match["file"], least=1)
            return seen, end if seen is not None else at + 1
    elif line[:1].isspace() or line[:1].isdecimal() or line[:1] in {"-", ">", "*"}:
        return _read_listing(lines, at, "", least=_LEAST_BARE)
    return None, at + 1


def _read_listing(
    lines: Sequence[str], at: int, file: str, least: int
) -> tuple[SourceSeen | None, int]:
    """Read lines that have their numbers; those of a listing rise."""
    seen, last, end, gaps = SourceSeen(0, file), 0, at, 0
    for place in range(at, min(len(lines), at + _MAX_LINES)):
        match = _NUMBERED.match(lines[place])
        number = int(match["number"]) if match else 0
        if match is None or not (0 < number - last <= _MAX_STEP or not seen.lines):
            gaps += 1
            if gaps > 1 or lines[place].strip(" .…"):
                break
            continue
        seen.lines[number], last, end, gaps = match["text"].expandtabs(), number, place + 1, 0
    is_code = any(_PYTHON.match(text) for text in seen.lines.values())
    return (seen, end) if len(seen.lines) >= least and is_code else (None, at)


def _read_plain(
    lines: Sequence[str], at: int, told: dict[str, str | None]
) -> tuple[SourceSeen | None, int]:
    """Read lines that a command prints as they are, from the first that it names."""
    first, count = _read_range(told)
    if at < len(lines) and (match := _NUMBERED.match(lines[at])) and int(match["number"]) == first:
        return _read_listing(lines, at, told["file"] or "", least=1)
    seen, blank = SourceSeen(0, told["file"] or ""), 0
    for place in range(at, min(len(lines), at + count)):
        line = lines[place].expandtabs()
        blank = blank + 1 if not line else 0
        is_past = blank > _MAX_BLANK and count == _MAX_LINES
        if is_past or _PROMPT.match(line):
            break
        seen.lines[first + place - at] = line
    end = at + len(seen.lines)
    is_code = any(_PYTHON.match(text) for text in seen.lines.values())
    return (seen, end) if is_code else (None, at)


def _read_range(told: dict[str, str | None]) -> tuple[int, int]:
    """Return the first line that a command prints, and how many."""
    first, end = int(told.get("first") or 1), int(told.get("end") or 0)
    count = int(told.get("count") or 0)
    if end:  # the last so many of the first so many
        first = max(1, end - (count or end) + 1)
        count = end - first + 1
    elif "last" in told:
        last = int(told["last"] or (0 if told.get("by") else first))
        count = last + 1 if told.get("by") else last - first + 1
    return first, max(0, min(_MAX_LINES, count or _MAX_LINES))
