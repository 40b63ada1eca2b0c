"""What people show of process groups: who is in them, and in which order a rank uses them.

Both stand among the variables of a frame, or are printed at the start: `gen_group ranks=[0, 1]`,
`order: ["gen", "disc"]`. Only texts of the size that people paste are looked through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

_MAX_NOTES = 256
_MAX_MEMBERS = 256
# Between the number of a rank and what is said of its order, in the variables of a frame.
_NEAR_LINES = 4
_LIST = r"[\[({]\s?(\d{1,7}(?:\s?,\s?\d{1,7}){1,255})\s?[\])}]"
_MEMBERS = re.compile(
    r"(?<![\w.])([A-Za-z][\w-]{0,60})['\"]?(?: (?:process )?group)?[ :(]{1,3}(?:with |of |has )?"
    rf"(?:global )?(?:ranks|members)[ =:]{{0,3}}{_LIST}"
    rf"|(?<![\w.])([A-Za-z][\w-]{{0,60}}_(?:group|pg))['\"]?\s?[=:]\s?{_LIST}"
)
# `self.ep_group = dist.new_group([0, 1])`, or a comment behind a call on the group.
_MADE = re.compile(
    r"(?<!\w)([A-Za-z][\w-]{0,60})\)?\s{0,8}(?:=|:|#|//|<--?) {0,2}(?:is |made by )?"
    rf"(?:(?:torch\.)?dist(?:ributed)?\.)?new_group\(\s?(?:ranks\s?=\s?)?{_LIST}"
)
_ORDER = re.compile(
    r"(?<![a-z])(?:\w{1,30}_)?order(?: of (?:the )?(?:process )?groups)?\s?(?:is\s?)?[=:]\s?"
    r"[\[(]?\s?"
    r"(['\"]?[A-Za-z][\w-]{0,60}['\"]?(?:\s?(?:,|->|>|→|then|\|)\s?['\"]?[A-Za-z][\w-]{0,60}['\"]?)"
    r"{1,15})"
)
# Calls with their groups, one behind the other: `all_gather(cp) -> all_to_all(ep)`
_OP = (
    r"(?:c10d\.|dist\.)?(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier)"
    r"(?:_\w{1,24})?"
)
_GROUPED = (
    rf"(?<!\w){_OP} ?[(\[] ?(?:(?:group|pg) ?[=:] ?)?['\"]?[A-Za-z][\w-]{{0,60}}['\"]? ?[)\]]"
)
_CHAIN = re.compile(rf"{_GROUPED}(?: ?(?:,|->|>|→|;|then|\|) ?{_GROUPED}){{1,15}}", re.IGNORECASE)
_OF_CHAIN = re.compile(r"([A-Za-z][\w-]{0,60})['\"]? ?[)\]]")
# What somebody says that a rank would call behind its op: `r0 would do the tp one next`.
_NEXT = re.compile(
    r"(?<![\w.])(?:[Rr]ank[ _]?|r)(\d{1,7}),? (?:(?:would|will|wants? to|is to|has to|then) ){0,2}"
    r"(?:(?:do|does|makes?|calls?|enters?|runs?|uses?|go(?:es)? to) )?(?:the |its )?"
    r"([A-Za-z][\w-]{0,40})(?: (?:one|group|pg|op|call|collective|all_?reduce))?"
    r" (?:next|afterwards?|after (?:that|it)|later|second|behind (?:that|it))\b"
)
# The members of all groups that are spoken of: `both groups are [2, 3]`
_BOTH = re.compile(
    r"\b(?P<many>both|the two|these two|all(?: the)?) (?:process )?(?:groups|pgs|communicators) "
    r"(?:are|have|hold|contain|consist of|share)(?: (?:just|only|exactly|both|the|same|of|global)"
    r"){0,3}(?: (?:ranks|members))?[ =:]{1,3}"
    rf"(?:(?:torch\.)?(?:dist\.|distributed\.)?new_group\((?:ranks ?= ?)?)?{_LIST}",
    re.IGNORECASE,
)
# The call in which a rank stands, its group, and the call behind it:
# `rank 2: all_reduce <- aux_loss (router.py:88) group=ep; tp_reduce (linear.py:3) comes after`
_FUNCTION = r"[A-Za-z_][\w.]{2,60}(?:\(\))?"
_AT = r"(?: \([^()]{1,200}\)| at [\w./-]{1,100}:\d{1,7})?"
_CALLED = re.compile(
    r"[\W_]{0,12}(?:[Rr]ank[ _]?|r)(?P<own>\d{1,7})\b[^\n]{1,300}?(?<![\w.])"
    rf"(?P<func>{_FUNCTION}){_AT}[ ,;(\[]{{1,3}}group[ =:]{{1,3}}(?P<group>[\w-]{{1,60}})[)\]]?"
    rf"\s{{0,3}}[;,.|-]{{1,2}} ?(?:and |but |while )?(?:(?P<next>{_FUNCTION}){_AT} "
    r"(?:(?:comes|is|follows|runs|stands|only|would be|would come|is called) ?){0,2}"
    r"(?:after|next|later|behind|below|follows)\b"
    rf"|(?:then|next(?: is|:)?|afterwards|later) (?P<then>{_FUNCTION}))"
)
_NAME = re.compile(r"[A-Za-z][\w-]{0,60}")
_RANK = re.compile(
    r"(?<![a-z_])(?:global_)?rank[ _]?[=:]?\s?(\d{1,7})\b|\[rank(\d{1,7})\]", re.IGNORECASE
)
_HINT = re.compile(
    rb"(?:ranks|members|_group|_pg|groups)[^\w\n]{0,6}[\[({]\s?\d|order[^\n]{0,40}[=:]"
    rb"|(?<!\w)(?:[Rr]ank[ _]?|r)\d[^\n]{0,80} (?:next|after|later|second|behind)"
    rb"|\b(?:[Bb]oth|two|[Aa]ll) [^\n]{0,40}\d ?, ?\d|[Rr](?:ank[ _]?)?\d[^\n]{0,400}group[ =:]"
    rb"|(?:educe|ather|catter|_?all|cast|arrier)(?:_\w{1,24})? ?[(\[][^)\]\n]{1,80}[)\]] ?"
    rb"(?:,|-|>|;|then|\||\xe2\x86\x92)"
)


def find_group_notes(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find what a text says of groups.

    Args:
        data: The text.
        row: The number of its first line.
    """
    if _HINT.search(data) is None:
        return
    text = data.decode("utf-8", errors="replace")
    lines = text.split("\n")
    found = 0
    for at, line in enumerate(lines):
        if found >= _MAX_NOTES:
            return
        for name, members in _list_members(line[:2000]) if "[" in line or "(" in line else ():
            found += 1
            if len(members) < _MAX_MEMBERS * 8 and _are_ranks(members):
                groups = {"name": name, "members": re.sub(r"\s", "", members)}
                yield TabledSeen("table.members", row + at, LogLine(line.strip()), groups)
        for one in _list_next(line[:2000], row + at) if "r" in line.lower() else ():
            found += 1
            yield one
        names = _read_order(line[:2000])
        own = _find_rank(lines, at) if len(names) > 1 else ""
        if own:
            found += 1
            groups = {"own": own, "names": "\t".join(names)}
            yield TabledSeen("table.order", row + at, LogLine(line.strip()), groups)


def _list_members(line: str) -> Iterator[tuple[str, str]]:
    """Yield the groups whose members a line tells."""
    for match in _MEMBERS.finditer(line):
        yield match[1] or match[3], match[2] or match[4]
    if "new_group(" in line:
        yield from ((match[1], match[2]) for match in _MADE.finditer(line))


def _read_order(line: str) -> list[str]:
    """Return the groups that a line tells one after the other, each once; none if it tells none."""
    if "order" in line and (order := _ORDER.search(line)):
        names = [one for one in _NAME.findall(order[1]) if one != "then"]
        return names if len(set(names)) == len(names) else []
    chain = _CHAIN.search(line) if "(" in line or "[" in line else None
    return [*dict.fromkeys(_OF_CHAIN.findall(chain[0]))] if chain else []


def _list_next(line: str, row: int) -> Iterator[TabledSeen]:
    """Yield what a line says that ranks would call next."""
    for match in _NEXT.finditer(line):
        if int(match[1]) <= MAX_RANK:
            groups = {"own": match[1], "name": match[2]}
            yield TabledSeen("table.next", row, LogLine(line.strip()), groups)
    if (both := _BOTH.search(line)) and _are_ranks(both[2]):
        groups = {"many": both["many"].lower(), "members": re.sub(r"\s", "", both[2])}
        yield TabledSeen("table.shared_members", row, LogLine(line.strip()), groups)
    if (called := _CALLED.match(line)) and int(called["own"]) <= MAX_RANK:
        groups = {key: called[key].removesuffix("()") for key in ("own", "func", "group")}
        groups["next"] = (called["next"] or called["then"]).removesuffix("()")
        yield TabledSeen("table.called", row, LogLine(line.strip()), groups)


def _are_ranks(members: str) -> bool:
    return all(int(one) <= MAX_RANK for one in members.split(","))


def _find_rank(lines: list[str], at: int) -> str:
    """Return the rank that a line names, or else one of the variables beside it."""
    for place in (at, *(at - back for back in range(1, _NEAR_LINES + 1)), at + 1):
        line = lines[place] if 0 <= place < len(lines) else ""
        told = {one or other for one, other in _RANK.findall(line[:400])}
        is_own = place == at or re.match(r"^\s{4,}(?:global_)?rank\s?[=:]\s?\d{1,7}\s*$", line)
        if is_own and len(told) == 1:
            return str(told.pop())
        if place != at and re.match(r"^\S", line):
            break
    return ""
