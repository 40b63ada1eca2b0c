"""What ranks of a pipeline note of each micro-batch: that they sent it, received it or wait for it.

A line has one note or several between bars. Programs name the micro-batch, the peer by an arrow or
a word, and often what is sent; some print a note before the transfer and `ok` behind it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tabled import TabledSeen
from whystuck.parse.logs.lines import LogLine

_WHATS = ("act", "grad", "hidden", "fwd", "bwd", "mb", "micro", "chunk")
NOTE_MARKS = (
    *(f" mb {digit}".encode() for digit in range(10)),
    b" mb=", b" mb #", b"microbatch ", b"microbatch=", b"microbatch:", b"micro-batch ",
    b"micro-batch=", b"micro_batch ", b"micro_batch=", b"ubatch ", b"ubatch=",
    *(f"{verb} {what}".encode() for verb in ("send", "sent", "recv", "eived") for what in _WHATS),
)  # fmt: skip
_ITEM = re.compile(
    r"\b(?:mb|micro[-_ ]?batch|ubatch|chunk)(?: id| idx| index)?[ =:#_]{0,2}(\d{1,6})\b",
    re.IGNORECASE,
)
_VERB = re.compile(
    r"\b(?P<send>i?send(?:s|ing)?|sent)\b|\b(?P<recv>i?recv(?:s|d)?|receiv(?:es?|ed|ing)|got)\b"
    r"|\b(?P<wait>waits?|waiting|blocked)\b",
    re.IGNORECASE,
)
_PEER = re.compile(
    r"(?P<way>->|<-|→|←|=>|<=|\bto\b|\bfrom\b|\b(?:dst|dest|src|source|peer)\s?=)\s?"
    r"(?:rank|stage|r|s)?[ _=#:]{0,2}(?P<peer>\d{1,6})\b",
    re.IGNORECASE,
)
_FROM = frozenset({"<-", "←", "<=", "from", "src", "source"})
_BACKWARD = re.compile(r"\b(?:d?grads?|gradients?|bwd|backward)\b", re.IGNORECASE)
_OVER = re.compile(r"[.…:=-]\s{0,4}(?:ok|done|complete[d]?|finished|✓)\W{0,4}$", re.IGNORECASE)
_OPEN = re.compile(r"(?:\.\.|…)\s{0,8}$")
# A micro-batch that is told to go no further.
_LEFT_OUT = re.compile(
    r"\b(?:(?:not|never|nothing) (?:forward(?:ed)?|sent|to send|passed|computed|needed)"
    r"|(?:isn't|wasn't|won't be|not being) (?:forwarded|sent)|skip(?:s|ped|ping)?"
    r"|drop(?:s|ped|ping)?|discard(?:s|ed|ing)?|ignor(?:es?|ed|ing)|no (?:send|forward))\b",
    re.IGNORECASE,
)
_OWN = re.compile(
    r"^[\W_]{0,4}(?P<kind>rank|stage|r|pp)[ _=#:]{0,2}(?P<own>\d{1,6})\b", re.IGNORECASE
)
# Notes in one line, and what a rank does now, behind them: `mb 5 sent  mb 6 sent  -> waiting`.
_BETWEEN = re.compile(
    r"\s\|\s?|;\s|(?:\s{2,8}|,\s)(?=(?:mb|micro[-_ ]?batch|ubatch)[ =:#_]{0,2}\d)"
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
        if not is_mark or _ITEM.search(line.text) is None:
            return
        own = _OWN.match(line.text)
        told = {"own": "", "stage": ""}
        if own is not None and int(own["own"]) <= MAX_RANK:
            told["own" if own["kind"].lower() in {"rank", "r"} else "stage"] = own["own"]
        for text in _BETWEEN.split(line.text)[:_MAX_NOTES]:
            if groups := _read_note(text):
                yield TabledSeen("table.transfer", row, line, {**told, **groups})


def _read_note(text: str) -> dict[str, str]:
    """Read one note: what it says of a micro-batch, and with whom."""
    item = _ITEM.search(text)
    if item is None and _DONE.search(text):
        return {"item": "", "what": "", "peer": "", "way": "", "state": "done", "text": ""}
    if item is None:
        return {}
    what = "grad" if _BACKWARD.search(text) else "act"
    peer, verbs = _PEER.search(text), {one.lastgroup for one in _VERB.finditer(text)}
    groups = {"item": item[1], "what": what, "peer": "", "way": "", "text": text.strip()[:120]}
    is_left_out = _LEFT_OUT.search(text) is not None
    if peer is None and len(verbs) == 1 and "wait" not in verbs and not is_left_out:
        # With whom, programs of a pipeline may not say: stages know their neighbours.
        is_made = _OPEN.search(text) is None or _OVER.search(text) is not None
        return groups | {"way": min(map(str, verbs)), "state": "made" if is_made else "waiting"}
    if peer is None or not verbs or int(peer["peer"]) > MAX_RANK:
        return groups | {"state": "left out" if is_left_out else "named"}
    is_from = peer["way"].rstrip(" =").lower() in _FROM
    way = next((one for one in ("send", "recv") if one in verbs), "recv" if is_from else "send")
    is_waiting = "wait" in verbs or (_OPEN.search(text) is not None and not _OVER.search(text))
    state = "left out" if is_left_out else "waiting" if is_waiting else "made"
    return groups | {"peer": peer["peer"], "way": way, "state": state}
