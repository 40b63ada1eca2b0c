"""What ranks note of sends and receives: that they made one, wait in it, or left it out.

A line has one note or several between bars: `stage3 mb=7 recv act from 2 ... ok`. Programs name
the micro-batch, the peer by an arrow or a word, and often what is sent; some print a note before
the transfer and `ok` behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

NOTE_MARKS = (
    *(f"{begin}mb {digit}".encode() for begin in " (" for digit in range(10)),
    b" mb=", b" mb #", b"microbatch ", b"microbatch=", b"microbatch:", b"micro-batch ",
    b"micro-batch=", b"micro_batch ", b"micro_batch=", b"ubatch ", b"ubatch=",
    b"send ", b"sent ", b"sending ", b"recv ", b"eceive ", b"eceived ", b"eceiving ",
    b"isend", b"irecv", b"send_forward", b"send_backward", b"recv_forward", b"recv_backward",
)  # fmt: skip
_ITEM = re.compile(
    r"\b(?:mb|micro[-_ ]?batch|ubatch|chunk)(?: id| idx| index)?[ =:#_]{0,2}(\d{1,6})\b",
    re.IGNORECASE,
)
# Several at once: `sent act mb=0..5`
_ITEMS = re.compile(
    r"\b(?P<word>mb|micro[-_ ]?batch(?:es)?|ubatch(?:es)?|mbs)(?P<sign>[ =:#_]{0,2})"
    r"(?P<first>\d{1,4}) ?(?P<way>\.{2,3}|-|\u2013|to) ?(?P<last>\d{1,4})\b(?!\.\d)",
    re.IGNORECASE,
)
# All numbers that tell which transfer it is, in the words of programs.
_NUMBER = re.compile(
    r"\b(?:mb|micro[ _-]?batch|ubatch|chunk|batch|item|step|iter|it|tag|seq|m|b|i)"
    r"[ =:#_]{0,2}(?P<number>\d{1,9})\b|(?<![\w.=])(?P<bare>\d{1,9})(?![\w.])",
    re.IGNORECASE,
)
_VERB = re.compile(
    r"\b(?P<send>i?send(?:s|ing)?|(?P<sent>sent))(?![a-z0-9])"
    r"|\b(?P<recv>i?recvs?|receiv(?:es?|ing)|(?P<came>i?recvd|received|got))(?![a-z0-9])"
    r"|\b(?P<wait>waits?|waiting|blocked)\b",
    re.IGNORECASE,
)
_PEER = re.compile(
    r"(?P<way><-|<=|←|->|=>|→|\b(?:from|src|source|to|dst|dest|peer)\b)[ =:]{0,2}"
    r"(?:(?:(?:pp|global)[ _]?)?(?:rank|stage|peer)|r|s)?[ _=#:]{0,2}(?P<peer>\d{1,7})(?![\w.])",
    re.IGNORECASE,
)
_FROM = frozenset({"<-", "←", "<=", "from", "src", "source"})
_BACKWARD = re.compile(r"(?<![a-z])(?:d?grads?|gradients?|bwd?|backward)(?![a-z])", re.IGNORECASE)
_OVER = re.compile(
    r"\b(?:ok|done|completed?|finished|success|received|sent|arrived|returned)\b|✓", re.IGNORECASE
)
_OPEN = re.compile(r"(?:\.\.|…)\s{0,8}$")
# A micro-batch that is told to go no further.
_LEFT_OUT = re.compile(
    r"\b(?:(?:not|never|nothing) (?:forward(?:ed)?|sent|sending|to send|passed|computed|needed)"
    r"|(?:isn't|wasn't|won't be|not being) (?:forwarded|sent)|skip(?:s|ped|ping)?"
    r"|drop(?:s|ped|ping)?|discard(?:s|ed|ing)?|ignor(?:es?|ed|ing)"
    r"|(?:no|without|w/o)(?: an?| the)? (?:send|forward|backward|bwd)(?! (?:yet|sync|hook)))\b"
    r"|\b(?:return|exit|continu|bail|leav)(?:s|es|e|ed|ing)?(?: out)?(?: early)? "
    r"(?:before|without) (?:the |any |its |a )?i?send(?:ing)?(?![a-z])",
    re.IGNORECASE,
)
_NOT = re.compile(r"\b(?:not|never|no|fail\w*|error|will|would|should)\b", re.IGNORECASE)
# Who makes it, at the start of the line: a stage of a pipeline, or a rank.
_OWN = re.compile(
    r"^[\W_]{0,4}(?P<kind>stage|pp[ _]?rank|pp|rank|r)[ _=#:]{0,2}(?P<own>\d{1,6})\b",
    re.IGNORECASE,
)
# Notes in one line, and what a rank does now, behind them: `mb 5 sent  mb 6 sent  -> waiting`.
_BETWEEN = re.compile(
    r"\s\|\s?|;\s|(?:\s{2,8}|,\s)(?=(?:mb|micro[-_ ]?batch|ubatch)[ =:#_]{0,2}\d)"
    r"|,\s(?=(?:got|received|sent|waiting (?:for|on)) (?:mb|micro[-_ ]?batch|ubatch)[ =:#_]{0,2}\d)"
    r"|\s{1,8}(?:-+>|=+>|→)\s(?=(?:wait|block|stuck|hang))"
)
_DONE = re.compile(
    r"\b(?:step|iter|iteration|batch|schedule)[ =:#]{0,2}\d{0,9} (?:is )?"
    r"(?:done|finished|complete|over)",
    re.IGNORECASE,
)
_MAX_NOTES = 64


class TransferReader:
    """Reads single lines."""

    is_open = False

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield its notes."""
        if is_mark and not line.is_glog:
            for groups in read_notes(line.text):
                yield TabledSeen("table.transfer", row, line, groups)


def read_notes(text: str) -> Iterator[dict[str, str]]:
    """Yield what a line notes of transfers.

    Each has the ``item``, which is the micro-batch, all ``numbers`` that tell which one it is,
    ``what`` is sent (`act` or `grad`), the ``way`` (`send` or `recv`), the ``peer`` and the
    ``state``: `over`, `made` where it may be over, `waiting`, `left out`, `named` where it is none,
    and `done` for a whole step. The program calls itself by ``own``, which is a rank, or ``stage``.
    """
    own = _OWN.match(text)
    told = {"own": "", "stage": ""}
    if own is not None and int(own["own"]) <= MAX_RANK:
        told["own" if own["kind"].lower() in {"rank", "r"} else "stage"] = own["own"]
    parts = [one for part in _BETWEEN.split(text)[:_MAX_NOTES] for one in _list_each(part)]
    has_item = any(_ITEM.search(part) for part in parts)
    for part in parts[:_MAX_NOTES]:
        groups = _read_note(part)
        if groups and (has_item or groups["peer"]):
            yield told | groups


def _list_each(text: str) -> list[str]:
    """Return a note once for each micro-batch of a range that it is about."""
    several = _ITEMS.search(text)
    first, last = (int(several["first"]), int(several["last"])) if several else (0, 0)
    # `mb=2-5` may be a chunk of one.
    is_one = several is None or (several["way"] in "-\u2013" and several["word"][-1] not in "sS")
    if several is None or is_one or not first < last <= first + _MAX_NOTES:
        return [text]
    before, after = text[: several.start()], text[several.end() :]
    word = f"mb{several['sign']}"
    return [f"{before}{word}{item}{after}" for item in range(first, last + 1)]


def _read_note(text: str) -> dict[str, str]:
    """Read one note: what it says of a transfer, and with whom."""
    item = _ITEM.search(text)
    verbs = {name for one in _VERB.finditer(text) for name, word in one.groupdict().items() if word}
    ways = verbs & {"send", "recv"}
    way = max(ways, default="")
    peer = _find_peer(text, way) if verbs else None
    groups = dict.fromkeys(("item", "numbers", "what", "peer", "way", "text"), "")
    if item is None and peer is None:
        return groups | {"state": "done"} if _DONE.search(text) else {}
    groups |= {"item": item[1] if item else "", "text": text.strip()[:120]}
    groups["what"] = "grad" if _BACKWARD.search(text) else "act"
    is_waiting = "wait" in verbs or _OPEN.search(text) is not None
    if _LEFT_OUT.search(text):
        groups["state"] = "left out"
    elif _NOT.search(text) and not is_waiting:
        groups["state"] = "named"
    elif is_waiting:
        groups["state"] = "waiting"
    else:
        is_over = verbs & {"sent", "came"} or _OVER.search(text, peer.end() if peer else 0)
        groups["state"] = "over" if is_over else "made"
    if peer is not None:
        others = f"{_OWN.sub('', text[: peer.start()])} {text[peer.end() :]}".replace("_", " ")
        numbers = [one["number"] or one["bare"] for one in _NUMBER.finditer(others)]
        way = way or ("recv" if peer["way"].lower() in _FROM else "send")
        groups |= {"peer": peer["peer"], "way": way, "numbers": ",".join(numbers)}
    elif len(ways) == 1 and "wait" not in verbs and groups["state"] != "left out":
        # With whom, programs of a pipeline may not say: stages know their neighbours.
        groups["way"] = way
    elif groups["state"] != "left out":
        groups["state"] = "named"
    return groups


def _find_peer(text: str, way: str) -> re.Match[str] | None:
    """Find with whom a transfer is: nobody sends from another rank, or receives to one."""
    wrong = {"send": {"from", "src", "source"}, "recv": {"to", "dst", "dest"}}.get(way, set())
    fitting = (one for one in _PEER.finditer(text) if one["way"].lower() not in wrong)
    return next((one for one in fitting if int(one["peer"]) <= MAX_RANK), None)
