"""Whose rank the stacks that come next are: a heading, or a sentence that people write above."""

from __future__ import annotations

import re

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.stacks.forms import COMMAND
from whystuck.parse.logs.blocks.stacks.seen import StackSeen
from whystuck.parse.logs.owners.said_groups import list_groups

# The name of a rank in a line of its own, or at the end of one, as a heading of what follows.
_RANK = r"[Rr](?:ANK|ank)[ _:=#]{0,2}\(?(?P<rank>\d{1,7})"
_HEADING = re.compile(
    rf"^[\W_]{{0,12}}{_RANK}\b(?:[\W_]*$|:? ?https?://"
    r"|[\s,:]*\(?(?:pid|PID|host|node|on|at|py-spy)\b"
    r"|[\s,:]*\(?(?:data[ _-]?loader )?worker (?:process |pid ){0,2}\d"
    r"| ?\((?![^()]{0,99}[Rr]ank)[^()]{1,100}\)[\W_]*$)"
    rf"|(?:^|[\s#*=(,-]){_RANK.replace('rank>', 'last>')}[\W_]{{0,12}}$"
)
_LED = re.compile(rf"^[\W_]{{0,12}}(?:[a-z][\w.-]{{1,62}}\d ?[(\[:,]{{1,2}} ?)?{_RANK}\b")
_LISTED = re.compile(r"[\[({]\s?\d{1,7}\s?,\s?\d")
# A sentence about one rank, above its stack.
_SAID = re.compile(
    rf"^(?P<before>[^\[\]]{{0,60}}?(?<![a-z_])){_RANK.replace('rank>', 'said>')}(?![\w-])"
    r"(?P<after>[^\[\]]{0,100}):[\W_]*$"
)
# `py-spy`, `dump`, `faulthandler.dump_traceback_later(600)`
_TOOL = (
    r"(?:(?:py-?spy|pystack|gdb|stacks?|dump|backtrace|trace)\b"
    r"|faulthandler(?:\.\w{1,30}(?:\(\d{0,9}\))?)?(?!\w))"
)
# Above it, the tool that shows it and whose it is: `py-spy rank 0, three times`.
_SHOWN = re.compile(
    rf"^(?P<before>[^\[\]\w]{{0,12}}{_TOOL}[^\[\]:]{{0,30}}?"
    rf"(?<![a-z_])){_RANK.replace('rank>', 'said>')}(?![\w-])(?P<after>[^\[\]]{{0,100}})$",
    re.IGNORECASE,
)
# The one of several that is shown: `ranks 0..3 look all the same, here is rank 0`.
_HERE = re.compile(
    r"\b(?:here(?: is|'s| comes)?|this is|shown?:?|showing|below:?(?: is)?|pasting|only)"
    rf"(?: (?:the one|that) of)? {_RANK.replace('rank>', 'last>')}(?:'s)?[\W_]{{0,12}}$",
    re.IGNORECASE,
)
# What makes another one the one that the sentence is about; `that rank` does not.
_OTHERS = re.compile(
    r"\b(?:not|but|except|unlike|than|to|with|without|besides|local|talk\w*|wait\w*|which|what"
    r"|that(?! ?$)"
    r"|ranks?|(?:and|or|,|/|(?<![a-z])-) ?\d)\b",
    re.IGNORECASE,
)
_TALK = re.compile(r"\b(?:from|by|for|of)\b", re.IGNORECASE)


# What a paragraph says last, above a stack: `They all wait. I looked with py-spy. Rank 7:`; short
# forms of words end in a dot, too.
_SENTENCE = re.compile(
    r"(?<!\bvs)(?<!\bcf)(?<!\.[eg])(?<!\bresp)(?<!\bincl)[.!?;][)\"']?\s{1,4}(?=\S)"
)
_MOST_SAID = 200
_DUMPED = re.compile(
    r"\b(?:py-?spy|pystack|gdb|stacks?|dump(?:ed)?|(?:back)?trace)\b.{0,120}?\brank[ _:=#]{0,2}\d",
    re.IGNORECASE,
)
_NUMBERED = re.compile(r"\branks?[ _:=#]{0,2}[\[(]?\d", re.IGNORECASE)


# A comment behind a command that begins with whose it is: `# rank 2, the others are in backward`.
_COMMENT = re.compile(
    r"#[# ]{0,4}(?:this is |is |on |of )?rank[ =:_#]{0,2}\d{1,7}(?= {0,2}[,;(])"
    r"(?! {0,2}[,;(] ?(?:\d|(?:and |or )?ranks?[ _]?\d))",
    re.IGNORECASE,
)


# `# py-spy on rank 3 at 15:39, ranks 1 and 2 are in all_gather like 0`
_FIRST_OF = re.compile(
    rf"([^\w\[\]]{{0,12}}{_TOOL}[^,;\[\]\d]{{0,30}}"
    r"\brank[ _:=#]{0,2}\d{1,7}\b(?: (?:only|alone))?(?: (?:at|around|from) [\d:]{4,8})?)[,;] "
    r"(?:while |and )?(?:the )?(?:others?|rest|ranks? ?\d[\d, &and-]{0,40}) "
    r"(?:are|is|sit|waits?|hangs?)\b(?!.{0,24}\b(?:same|identical|alike|ditto|idem)\b)",
    re.IGNORECASE,
)


# Behind a rank, its seat on the host: `rank 6 (gpu-b, local rank 2)`, `rank 6 / local_rank=2`.
_SEAT = re.compile(
    r"((?<![a-z_])(?<!local )(?<!local-)rank[ _:=#]{0,2}\d{1,7}(?: on [\w.-]{1,64})?"
    r"(?: ?[(\[/,] ?(?:pid[ =:]{0,2}\d{1,10}|(?=\w{1,64}[.-]|[a-z]{1,64}\d)[\w.-]{1,64})?)?)"
    r"[ ,;/]{0,3}\blocal[ _-]?rank[ =:_#]{0,2}\d{1,4}(?![\w.])",
    re.IGNORECASE,
)


def cut_sentence(text: str, writer: int) -> str:
    """Return the sentence of a line that says whose stack stands below, or else the line.

    It is the last one, where that leads to what stands below, or the first one, where that tells of
    a dump and the others name no rank: `# dump of an hour ago, rank 2. The others are idle`. Behind
    a command, it is the beginning of the comment. The local rank of a rank is left out.
    """
    text = _SEAT.sub(r"\1", text) if "ocal" in text else text
    if COMMAND.search(text) and (comment := _COMMENT.search(text)):
        return text[: comment.end()]
    if writer != UNKNOWN_RANK:
        return text
    if (first := _FIRST_OF.match(text)) is not None:
        return first[1]
    if not text.rstrip().endswith(":"):
        end = _SENTENCE.search(text, 0, _MOST_SAID)
        is_led = end is not None and _DUMPED.search(text, 0, end.start()) is not None
        return text[: end.start()] if end and is_led and len(_NUMBERED.findall(text)) == 1 else text
    begin = max(0, len(text) - _MOST_SAID)
    ends = [match.end() for match in _SENTENCE.finditer(text, begin)]
    last = text[ends[-1] :] if ends else ""
    return last if "rank" in last.lower() else text


def find_heading(text: str, writer: int) -> re.Match[str] | None:
    """Find the one rank that a line says the next stack is of.

    Args:
        text: The line, or its beginning.
        writer: The rank that a prefix says wrote it: only people write sentences about stacks.

    Returns:
        A match with one of the groups ``rank``, ``last`` and ``said``; None where there is none.
    """
    if writer == UNKNOWN_RANK and (match := _HERE.search(text)):
        return match
    if seat := _find_seat(text):
        return seat
    if match := _HEADING.search(text):
        before = text[: match.start()] if match["last"] else ""
        # What ranks print of each other is no heading.
        is_talk = writer != UNKNOWN_RANK and _TALK.search(before)
        return None if is_talk or _OTHERS.search(before) else match
    match = _SAID.match(text) if writer == UNKNOWN_RANK and text.rstrip().endswith(":") else None
    if match is None and writer == UNKNOWN_RANK:
        match = _SHOWN.match(text)
    is_about = match and not _OTHERS.search(match["before"])
    return match if match and is_about and not _OTHERS.search(_drop_same(text, match)) else None


def _drop_same(text: str, said: re.Match[str]) -> str:
    """Return what stands behind the rank of a heading, without who is said to have the same.

    `rank 0, same for 1 and 2:` is still about rank 0.
    """
    begin, end = said.span("after")
    if not find_same(text, is_heading=True) - {int(said["said"])}:
        return text[begin:end]
    same = _SHORT.search(text, 0, end) or _SAME.search(text, begin, end)
    # `rank 3 and rank 4 look alike` is about both.
    if same is None or same.end() <= begin or not (same.re is _SHORT or same["last"]):
        return text[begin:end]
    return f"{text[begin : max(begin, same.start())]} {text[same.end() : end]}"


def _find_seat(text: str) -> re.Match[str] | None:
    """Find the rank that begins a line, or stands behind a host, with the groups it is in."""
    match = _LED.match(text)
    if match is None or not _LISTED.search(text, match.end()):
        return None
    groups = list(list_groups(text[match.end() :]))
    is_own = groups and all(int(match["rank"]) in members for _, members in groups)
    return match if is_own else None


_NUMBERS = re.compile(r"\d{1,7}(?:\s?(?:-|\u2013|\.{2,3})\s?\d{1,7})?")
_MOST_RANKS = 4096
# Ranks that have the stack that is shown: `ranks 1 2 3 are identical`, `same for ranks 1-7`.
_MORE = r"[\d ,&\u2013-]|\.{2,3}(?=\d)|and (?=[\dr])|ranks?[ _]?(?=\d)"
_LIST = rf"ranks?[ =:]{{0,2}}(?P<NAME>\d(?:{_MORE}){{0,400}}?)"
_ALIKE = r"(?:identical|(?:the )?same|alike|ditto|idem)\b"
_SAME = re.compile(
    rf"\b{_LIST.replace('NAME', 'first')},?(?: \([^()]{{0,40}}\))? {{0,2}}[:=(]? ?"
    rf"(?:(?:is|are|all|look|looks|have|has|show|shows|exactly|just) ){{0,3}}{_ALIKE}"
    rf"|\b{_ALIKE}(?: (?:stack|trace|dump|frames|thing|here|picture))? ?"
    r"(?:for|on|in|at|as|with|from)? (?:all )?(?:of )?(?:the )?"
    rf"{_LIST.replace('NAME', 'last').replace('}?', '}')}(?:[\W_]|$)",
    re.IGNORECASE,
)
# Behind the name of one rank: `rank 1 (2 and 3 same)`, `rank 1, same for 2-7`, `rank 1, rank 2 is
# identical`.
_SHORT = re.compile(
    r"rank[ =:_#]{0,2}\d{1,7}(?: ?[,;(] ?(?:and )?ranks?[ =:_#]{0,2}"
    rf"(?P<next>\d(?:{_MORE}){{0,200}}?) "
    rf"(?:(?:is|are|looks?|has|have|shows?|all|exactly) ){{1,3}}{_ALIKE}"
    r"(?: (?:stack|trace|dump|frames))?[\W_]*$|[ ,;(-]{1,4}"
    rf"(?:(?:the )?same (?:for|on|at|in) (?:ranks? )?(?P<last>\d(?:{_MORE}){{0,200}})(?![\w.])"
    rf"|(?:and )?(?P<first>\d(?:{_MORE}){{0,200}}?) (?:(?:is|are|look) )?(?:all )?{_ALIKE}))",
    re.IGNORECASE,
)
_DENIED = re.compile(r"\b(?:not|but|except|unlike|nearly|almost|isn't|aren't|n't)\b", re.IGNORECASE)
_LOCAL = re.compile(
    r"(?:^[\W_]{0,12}|[#=(*-] {0,4})local[ _-]?rank[ =:_#]{0,2}(\d{1,4})(?![\w.])", re.IGNORECASE
)


# `===== stderr of local_rank 1, SIGUSR1 at 06:31:00 =====`
_LOCAL_OF = re.compile(
    r"^[=#*>\s-]{1,12}(?:std(?:err|out)|logs?|dump|stacks?|traces?|output|threads) "
    r"(?:of|from|for|on) (?:the )?local[ _-]?rank[ =:_#]{0,2}(\d{1,4})(?![\w.])(?!.*\brank)",
    re.IGNORECASE,
)
# `[2] pid 61003`: processes of one launcher, counted.
_COUNTED = re.compile(r"^\[(\d{1,4})\],?:? {0,4}\(?(?:pid|PID)[ =:]{0,2}\d{2,7}\)?:?\s*$")
# A sentence about one local rank, above its stack: `the one of local rank 3 is different:`.
_LOCAL_SAID = re.compile(
    r"^(?P<before>[^\[\]]{0,60}?(?<![a-z_]))local[ _-]?rank[ =:_#]{0,2}(?P<local>\d{1,4})(?![\w-])"
    r"(?P<after>[^\[\]]{0,100}):[\W_]*$",
    re.IGNORECASE,
)


def find_local_heading(text: str, writer: int = UNKNOWN_RANK) -> int:
    """Return the local rank that a heading or a comment says the next stack is of, -1 if none."""
    if text.startswith("LOCAL_RANK="):
        return -1  # a row of an environment; the ranks of other nodes have the same
    if counted := _COUNTED.match(text):
        return int(counted[1])
    match = _LOCAL.search(text) or _LOCAL_OF.match(text)
    if match is not None:
        return int(match[1]) if len(_LOCAL.findall(text)) <= 1 else -1
    said = _LOCAL_SAID.match(text) if writer == UNKNOWN_RANK and "local" in text.lower() else None
    is_about = said and not _OTHERS.search(said["before"]) and not _OTHERS.search(said["after"])
    return int(said["local"]) if said and is_about else -1


# Behind a stack that several have: `except the one of local_rank 3:`, `all like this, but rank 3:`.
_ODD = re.compile(
    r"^[\W_]{0,6}(?:[^\[\]:]{0,80}?\b(?:like (?:this|that)|(?:the )?same as (?:this|that)|as above"
    r"|this(?: one| stack)?)[ ,;(-]{1,4})?(?:and |or )?"
    r"(?:except|but|apart from|other than|besides)(?: for)? "
    r"(?:(?:the|that|one|stack|dump|trace|process|of|on|for|from|in|with) ){0,5}"
    r"(?P<kind>(?:global |local[ _-]?)?)rank[ =:_#]{0,2}(?P<rank>\d{1,7})"
    r"[ ,]{0,2}(?:\(?pid[ =:]{0,2}\d{1,10}\)?)?(?: ?(?:,|which|that|it|is|shows|has|in|here)){0,4}"
    r" ?:[\W_]*$",
    re.IGNORECASE,
)


def find_odd_heading(text: str) -> tuple[int, int] | None:
    """Find the one rank of which a sentence says that it has not the stack shown above.

    Returns:
        Its rank and its local rank, of which one is -1.
    """
    match = _ODD.match(text)
    if match is None or int(match["rank"]) > MAX_RANK:
        return None
    is_local = match["kind"][:1] in ("l", "L")
    return (-1, int(match["rank"])) if is_local else (int(match["rank"]), -1)


# Words of a heading of stacks that say nothing else.
_FILLERS = (
    r"all|these|are|is|here|in|stacks?|dumps?|traces?|shows?|each|have|has|main|threads?|at|the"
    r"|time|of|them|a|two|three|four|five|six|seven|both|same|alike|identical|equal|exactly|look"
)
_AROUND = (
    r"(?:(?:all|the|other|remaining|these|while|and|but|on|for|of|stacks?|dumps?|traces?|py-?spy"
    r"|gdb|here|is) ){0,5}"
)
# A time may stand before it, as of a look: `14:05 | ranks 0-3`.
_WHEN = r"^[\W_]{0,12}(?:\d{1,2}:\d\d(?::\d\d)?[\W_]{1,6})?"
# `ranks 0-3,5-7:`, `=== stacks of ranks [0, 1, 3] (all alike) ===`
_SEVERAL = re.compile(
    rf"{_WHEN}{_AROUND}(?P<word>ranks?) ?[=:]? ?[\[({{]?"
    r"(?P<ranks>\d{1,7}(?: ?(?:-|\u2013|\.{2,3}) ?\d{1,7}| ?[,&/+] ?(?:and )?\d{1,7}| and \d{1,7}"
    r"| \d{1,7}){1,400})[\])}]?"
    rf"(?: ?\([^()]{{0,80}}\))?(?:(?:,| -)? (?:{_FILLERS})){{0,8}} ?:?[\W_]*$",
    re.IGNORECASE,
)
_OTHERS_ALL = re.compile(
    rf"{_WHEN}{_AROUND}(?:others?|rest|everyone else|everybody else|remaining ones)"
    rf"(?:(?: of the)? (?:ranks?|processes|workers|ones))?(?: ?\([^()]{{0,80}}\))?"
    rf"(?:,? (?:{_FILLERS}|looks?|like|this)){{0,8}} ?:[\W_]*$",
    re.IGNORECASE,
)
_RANGE = re.compile(r"\d ?(?:-|\u2013|\.\.)")


def find_group_heading(text: str, writer: int) -> tuple[list[int], bool]:
    """Find the ranks that a line says the next stack is of, two at least.

    Returns:
        The ranks, and whether they are all those of which no other stack is shown.
    """
    if writer != UNKNOWN_RANK:
        return [], False
    match = _SEVERAL.match(text)
    if match is None:
        return [], _OTHERS_ALL.match(text) is not None
    # `rank 0, 30417:` may be one rank and its process.
    is_list = len(match["word"]) > len("rank") or _RANGE.search(match["ranks"])
    ranks = sorted(read_rank_list(match["ranks"])) if is_list else []
    return (ranks if len(ranks) > 1 else []), False


def _is_ahead(text: str) -> bool:
    """Tell whether a line about ranks that are alike is about the stack below it."""
    return text.rstrip().endswith(":") and bool(find_group_heading(text, UNKNOWN_RANK)[0])


def find_same(text: str, *, is_heading: bool = False) -> frozenset[int]:
    """Return the ranks that a sentence says have the same stack; headings may have numbers only."""
    # `rank 0, same for 1 and 2` does not say that rank 0 is the same.
    match = (_SHORT.search(text) if is_heading else None) or _SAME.search(text)
    if match is None or _DENIED.search(text) or _is_ahead(text):
        return frozenset()
    return read_rank_list(match["first"] or match["last"] or match.groupdict().get("next") or "")


_RANK_OF = r"(?:the |that of )?(?:rank[ =:_]{0,2})?(?P<NAME>\d{1,7})"
_SAME_AS = re.compile(
    rf"^[\W_]{{0,12}}(?P<ranks>ranks?[ =:_]{{0,2}}\d(?:{_MORE}){{0,200}}?)"
    r"(?: ?\([^()]{0,60}\))?[ :=(-]{1,4}"
    rf"(?:(?:is|are|all|look|looks|has|have) ){{0,2}}(?:{_ALIKE}"
    r"(?: (?:stack|trace|dump|thing|frames?|place|line|entry|record))?"
    rf"(?: (?:as|like|with) {_RANK_OF.replace('NAME', 'as')})?"
    rf"|(?:as|like) {_RANK_OF.replace('NAME', 'like')})[\W_]*$",
    re.IGNORECASE,
)


# Whose stack it is, in any sentence: `rank 3, after the restart, same as rank 0`.
_WHOSE = re.compile(
    rf"\b{_ALIKE}(?: (?:stack|trace|dump|thing|frames?|place|line))? (?:as|like|with) "
    r"(?:the |that of )?rank[ =:_]{0,2}(\d{1,7})\b",
    re.IGNORECASE,
)
_SAME_WORD = re.compile(rf"^\W{{0,4}}{_ALIKE}", re.IGNORECASE)


def is_same_word(text: str) -> bool:
    """Tell whether a line begins with the word that something is the same."""
    return _SAME_WORD.match(text) is not None


def find_whose(text: str) -> int:
    """Return the rank whose stack a sentence says that others have, -1 where it names none."""
    match = _WHOSE.search(text)
    return int(match[1]) if match else -1


def find_same_as(text: str) -> tuple[frozenset[int], int] | None:
    """Return the ranks of which a line says that they have the stack of another one, and whose.

    Whose it is may be left out: `rank 6: same`; it is -1 then.
    """
    is_said = not (_DENIED.search(text) or _is_ahead(text))
    # `1, 2 and 5 look like rank 0`
    text = f"ranks {text}" if text[:1].isdecimal() and "rank" in text.lower() else text
    match = _SAME_AS.match(text) if is_said else None
    if match is None:
        return None
    return read_rank_list(match["ranks"]), int(match["as"] or match["like"] or -1)


def read_rank_list(text: str) -> frozenset[int]:
    """Read a list of ranks as people write it: ``0,1,2``, ``1 2 3``, ``4-7 & 9``."""
    return frozenset(read_ranks_in_order(text))


def read_ranks_in_order(text: str) -> list[int]:
    """Read a list of ranks in the order in which they are written, each once."""
    found: dict[int, None] = {}
    for part in _NUMBERS.findall(text):
        ends = re.findall(r"\d+", part)
        low, high = int(ends[0]), int(ends[-1])
        if high > MAX_RANK or high - low > _MOST_RANKS:
            return []
        found |= dict.fromkeys(range(low, high + 1))
    return [*found]


_NOTE_RANK = re.compile(r"(?<!local )\brank[ =:]{0,2}(\d{1,7})\b", re.IGNORECASE)


def take_note(process: StackSeen, note: str) -> None:
    """Take what somebody wrote behind the head of a thread: whose it is, and who has it too."""
    if find_whose(note) >= 0:
        return  # it is said of the stack of another one
    if (local := find_local_heading(note)) >= 0:
        process.local = local
    elif match := _NOTE_RANK.search(note):
        process.rank = int(match[1]) if int(match[1]) <= MAX_RANK else UNKNOWN_RANK
        process.others |= find_same(note) - {process.rank}
    elif ranks := sorted(find_same(note)) or find_group_heading(note, UNKNOWN_RANK)[0]:
        process.rank, process.others = ranks[0], frozenset(ranks[1:])
