"""Quotes text in Markdown so that nothing in it acts: no HTML, link, image, mention or table break.

What renderers make links of by themselves (addresses, ``www.``, mail, names of hosts, mentions,
numbers of issues) is shown as code: a backslash does not stop all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from whystuck.safe_text.escaping import escape_line

_TICKS = re.compile("`+")
_WORD = re.compile(r"[^\s`]+")
# Words that renderers link without being asked.
_LINKED = re.compile(
    r"://|//|[wW]{3}\.|@|#\d|GH-\d|(?:mailto|xmpp):|\S\.[^\W\d_]{2}", re.IGNORECASE
)
# What Markdown, HTML or the mathematics of GitHub act on; an underscore within a word is none.
_SPECIAL = re.compile(r"[\\*\[\]#~!$`]|(?<![^\W_])_|_(?![^\W_])")
_LINE_START = re.compile(r"\A(?:[-+](?=[\s-]|$)|=(?==*$)|\d{1,9}(?=[.)](?:\s|$)))")


def code(text: str) -> str:
    """Quote a text as inline code; the fence is longer than any run of backticks inside.

    A pipe, which would end the cell of a table, is written outside of the code.
    """
    return "&#124;".join(_code_part(part) if part else "" for part in escape_line(text).split("|"))


def fence(text: str, language: str = "") -> str:
    """Quote lines as a block of code."""
    mark = "`" * max(3, _longest_ticks(text) + 1)
    lines = (escape_line(line) for line in text.split("\n"))
    return "\n".join((f"{mark}{language}", *lines, mark))


def escape(text: str) -> str:
    """Return a text of which nothing acts; what stands between backticks is code."""
    pieces: list[tuple[bool, str]] = []
    for is_code, part in split_code(escape_line(text).strip(" ")):
        pieces += [(True, part)] if is_code else _split_links(part)
    return _LINE_START.sub(_escape_start, "".join(_join(pieces)), count=1)


def split_code(text: str) -> Iterator[tuple[bool, str]]:
    """Yield the parts of a text, and whether each stands between two runs of as many backticks."""
    runs = list(_TICKS.finditer(text))
    ends = _pair_ticks([len(run[0]) for run in runs])
    at = index = 0
    while index < len(runs):
        end = ends[index]
        if end >= 0:
            yield from (
                (False, text[at : runs[index].start()]),
                (True, text[runs[index].end() : runs[end].start()]),
            )
            at = runs[end].end()
            index = end
        index += 1
    yield False, text[at:]


def strong(text: str) -> str:
    """Return a text of which nothing acts in bold; nothing where it is empty."""
    shown = escape(text)
    return f"**{shown}**" if shown else ""


def _pair_ticks(lengths: list[int]) -> list[int]:
    """Return for each run of backticks the next one of the same length; -1 where there is none."""
    ends = [-1] * len(lengths)
    later: dict[int, int] = {}
    for index in range(len(lengths) - 1, -1, -1):
        ends[index] = later.get(lengths[index], -1)
        later[lengths[index]] = index
    return ends


def _split_links(text: str) -> Iterator[tuple[bool, str]]:
    """Yield the parts of a text, and whether each has to be code."""
    done = 0
    for word in _WORD.finditer(text):
        if _LINKED.search(word[0]):
            yield from ((False, text[done : word.start()]), (True, word[0]))
            done = word.end()
    yield False, text[done:]


def _join(pieces: list[tuple[bool, str]]) -> Iterator[str]:
    """Yield the pieces as Markdown; code beside code is one, as two fences would be."""
    some = [(is_code, text) for is_code, text in pieces if text]
    for is_code, group in groupby(some, key=itemgetter(0)):
        text = "".join(text for _, text in group)
        yield code(text) if is_code else _escape_words(text)


def _escape_words(text: str) -> str:
    escaped = _SPECIAL.sub(lambda match: "\\" + match[0], text).replace("&", "&amp;")
    return escaped.replace("<", "&lt;").replace(">", "&gt;").replace("|", "&#124;")


def _escape_start(match: re.Match[str]) -> str:
    return f"{match[0]}\\" if match[0].isdigit() else f"\\{match[0]}"


def _code_part(text: str) -> str:
    mark = "`" * (_longest_ticks(text) + 1)
    # A renderer takes one blank off each side, save where there is nothing else.
    edge = " " if text.strip(" ") and (text[0] in " `" or text[-1] in " `") else ""
    return f"{mark}{edge}{text}{edge}{mark}"


def _longest_ticks(text: str) -> int:
    return max((len(run) for run in _TICKS.findall(text)), default=0)
