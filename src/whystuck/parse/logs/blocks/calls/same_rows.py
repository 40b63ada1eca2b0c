"""Which ranks print the same error, as people say who paste only one of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.stacks.headings import read_rank_list
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

SAME_MARKS = (
    b"the same",
    b"same as ",
    b"same error",
    b"same message",
    b"same trace",
    b"same call",
    b"identical",
    "一样".encode(),
    "相同".encode(),
)
_MOST_CHARS = 400
_DENIED = re.compile(
    r"\b(?:not|but|except|unlike|nearly|almost|\w{1,8}n't|different)\b|不|除了|以外", re.IGNORECASE
)
_LIST = re.compile(
    r"\branks? ?(\d{1,7}(?:[ ,&、-]{1,3}\d{1,7}|,? ?(?:and|和) ?\d{1,7}){0,200})(?![\w.])",
    re.IGNORECASE,
)
# What is the same: what they print, not what they have or are.
_THING = re.compile(
    r"\b(?:prints?|printed|says?|said|errors?|messages?|tracebacks?|traces?|exceptions?|outputs?"
    r"|logs?|calls?)\b|报错|错误|日志|输出|异常",
    re.IGNORECASE,
)
_LIKE = re.compile(
    r"\b(?:same|identical)\b(?: (?:error|message|traceback|trace|call|output|thing))? "
    r"(?:as|to|like|with)(?: on| of| for)? \[?rank[ _]?(\d{1,7})\b",
    re.IGNORECASE,
)
_OTHERS = re.compile(
    r"\b(?:(?:all )?(?:the )?others?(?: ranks| processes)?|(?:the )?rest(?: of the ranks)?"
    r"|(?:the )?remaining ranks|其他|其余)\b",
    re.IGNORECASE,
)


class SameReader:
    """Takes single lines."""

    is_open = False

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the ranks that it says print the same."""
        text = line.text[:_MOST_CHARS]
        if not is_mark:
            return
        like = _LIKE.search(text)
        if line.rank != UNKNOWN_RANK:
            # Behind the mark of a rank that is not shown whole: `[rank3]: ... same as rank 0`.
            if like is not None:
                yield _tell(line, row, {line.rank, int(like[1])})
            return
        if _DENIED.search(text) or not (like or _THING.search(text)):
            return
        ranks = {rank for match in _LIST.finditer(text) for rank in read_rank_list(match[1])}
        if like is not None and _OTHERS.search(text):
            yield _tell(line, row, {int(like[1])}, others="yes")
        elif len(ranks) > 1:
            yield _tell(line, row, ranks)


def _tell(line: LogLine, row: int, ranks: set[int], others: str = "") -> TabledSeen:
    told = ",".join(str(rank) for rank in sorted(ranks) if rank <= MAX_RANK)
    return TabledSeen("table.same", row, line, {"ranks": told, "others": others})
