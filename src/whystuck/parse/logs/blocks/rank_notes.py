"""What people write between what tools print: whose node it is, who is silent, who is slow."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.label_forms import NO_COUNT
from whystuck.parse.logs.lines.lines import LogLine

_MAX_NOTES = 64
_MAX_LINE = 400
_RANK = r"(?<!local )(?<!node )rank[ =:_#]{0,2}(?P<NAME>\d{1,7})(?![\w-]|\.\d)"
_NODE = r"(?:node|host|machine|box|server)"
_END = r"[^\w\n]{0,8}$"
_PLACE = re.compile(
    # `on the node of rank 9:`, `on rank 9's node:`
    rf"\b{_NODE} (?:(?:of|with|running|hosting|for|where|(?:that|which) (?:has|runs|hosts)) )"
    rf"(?:the )?(?:global )?{_RANK.replace('NAME', 'of')}(?: runs| is| lives| sits)?{_END}"
    rf"|\b{_RANK.replace('NAME', 'its')}['\u2019]?s? {_NODE}{_END}"
    # `ps of rank 9:`
    rf"|\b(?:ps|top|htop|wchan|kernel stack) (?:of|on|for|from) (?:the )?"
    rf"{_RANK.replace('NAME', 'shown')}{_END}"
    # `$ cat /proc/71220/stack   # rank 9`
    r"|(?:/proc/|\b(?:ps|top|strace|grep) ).{0,200}#[# ]{0,3}(?:(?:this is|of|on|the) )?"
    rf"{_RANK.replace('NAME', 'noted')}{_END}",
    re.IGNORECASE,
)
_VERBS = (
    r"(?:says?|said|prints?|printed|logs|logged|wr(?:ites?|ote)|shows?|showed) (?:just )?nothing"
    r"|(?:does not|doesn['\u2019]?t|did not|didn['\u2019]?t|never) "
    r"(?:say|print|log|write|answer|respond|report|react|speak|show)\w{0,4}"
    r"|(?:silent|quiet|mute|unresponsive|frozen)"
)
_SILENT = re.compile(
    rf"\b{_RANK.replace('NAME', 'silent')},? (?:(?:itself|alone|only|has|is|was|just|still|then|"
    rf"simply|completely|dead|all|it) ){{0,3}}(?:{_VERBS})\b"
    r"|\b(?:nothing|no (?:output|lines?|logs?|word|trace|stack|answer|sign)) (?:at all )?"
    rf"(?:from|of|by|on|for) {_RANK.replace('NAME', 'nothing')}",
    re.IGNORECASE,
)
# Whose the lines beside it are: `^^ only rank 6 prints this`, `goes on and on, only from rank 6`.
_TEXT = r"(?:this|these|those|that|it|them|lines?|messages?|output|logs?|the above|such)"
_WRITER = re.compile(
    r"(?<!not )\b(?:only|just) (?:from|by|on) (?:the )?(?:global )?"
    rf"{_RANK.replace('NAME', 'from')}(?=[^\w/]|$)(?!.{{0,80}}\branks? ?\d)"
    r"|(?<!not )\b(?:only|just) (?:the )?(?:global )?"
    rf"{_RANK.replace('NAME', 'who')} (?:keeps? (?:on )?)?(?:print|log|writ|show|output)\w{{0,4}} "
    rf"{_TEXT}\b",
    re.IGNORECASE,
)
_WRITES = re.compile(r"\b(?:print|logg?|writ|output|lines?|messages?)\w{0,4}\b", re.IGNORECASE)
_OTHER_LINES = re.compile(
    r"\b(?:loss\w*|metrics?|steps?|errors?|warnings?|tracebacks?|stacks?|timeouts?)\b",
    re.IGNORECASE,
)
_HOST = rf"{NO_COUNT}(?P<NAME>(?=[\w.]*[\d-])[A-Za-z][\w.-]{{0,61}}\w)"
_PAIRS = (
    r"(?:every|any|all|each|those|the|only)(?: of)?(?: the| other)? ?"
    r"(?:pairs?|tests?|runs?|combinations?|ones) "
    r"(?:with|of|involving|including|containing|through|that (?:has|have|includes?|uses?)) "
    rf"(?:the )?(?:{_NODE} )?{_HOST}"
)
_SLOW_HOST = re.compile(
    r"\b(?:except|but|apart from|other than|besides|only) (?:for |with |in )?"
    rf"{_PAIRS.replace('NAME', 'odd')}"
    rf"|\b{_PAIRS.replace('NAME', 'slow')},? (?:\w{{1,12}} ){{0,4}}"
    r"(?:slow|slower|bad|worse|low|lower|poor|drops?|less|half|third|terrible)\b",
    re.IGNORECASE,
)
_KINDS = (
    ("note.place", _PLACE, ("of", "its", "shown", "noted")),
    ("note.silent", _SILENT, ("silent", "nothing")),
    ("note.writer", _WRITER, ("from", "who")),
)
_HINT = re.compile(rb"(?i)rank|pairs? |tests? |runs? |combination|ones ")


def find_rank_notes(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find lines that say of which rank's node the next ones are, or who is silent, slow or writes.

    Args:
        data: The text.
        row: The number of its first line.
    """
    found = 0
    for at, raw in enumerate(data.split(b"\n")) if _HINT.search(data) else ():
        if not _HINT.search(raw) or found >= _MAX_NOTES:
            continue
        text = raw[:_MAX_LINE].decode("utf-8", errors="replace").rstrip()
        if match := _SLOW_HOST.search(text):
            found += 1
            groups = {"host": match["odd"] or match["slow"]}
            yield TabledSeen("note.slow_host", row + at, LogLine(text.strip()), groups)
        for name, pattern, names in _KINDS:
            match = pattern.search(text)
            rank = next((match[one] for one in names if match[one]), "") if match else ""
            is_about = name != "note.writer" or _is_about_lines(text)
            if rank and int(rank) <= MAX_RANK and is_about:
                found += 1
                yield TabledSeen(name, row + at, LogLine(text.strip()), {"of": rank})


def _is_about_lines(text: str) -> bool:
    """Tell whether a sentence is about the lines beside it, rather than about others."""
    return _WRITES.search(text) is not None and _OTHER_LINES.search(text) is None
