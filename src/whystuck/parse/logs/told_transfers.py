"""Sends and receives that ranks print as they make them: `stage3 mb=7 recv act from 2 ... ok`."""

from __future__ import annotations

import re

from whystuck.evidence.ranks import MAX_RANK

_TOLD = re.compile(
    r"(?<![\w.])(?P<kind>i?recv|recvd|receiv(?:e|es|ed|ing)|i?send|sends|sent|sending)(?![a-z])"
    r"(?P<what>[^<>\[\]{}\"'\\]{0,60}?)"
    r"(?:\b(?P<way>from|to|src|dst|dest|peer)\b|(?P<arrow><-|->|=>|<=))[ =:]{0,2}"
    r"(?:(?:pp[ _]?|global[ _]?)?(?:rank|stage|peer))?[ =:_#]{0,2}(?P<peer>\d{1,7})(?![\w.])"
    r"(?P<after>[^\n]{0,80})$",
    re.IGNORECASE,
)
# Who makes it, at the start of the line: a stage of a pipeline, or a rank.
_SEAT = re.compile(
    r"^[\W_]{0,4}(?P<kind>stage|pp[ _]?rank|pp|rank|r)[ =:_#]{0,2}(?P<seat>\d{1,6})\b"
)
# What is sent, in the words of programs.
_ITEM = re.compile(
    r"\b(?:mb|micro[ _-]?batch|ubatch|chunk|batch|item|step|iter|it|tag|seq|m|b|i)"
    r"[ =:#_]{0,2}(?P<number>\d{1,9})\b|(?<![\w.=])(?P<bare>\d{1,9})(?![\w.])",
    re.IGNORECASE,
)
_WORD = re.compile(
    r"\b(?!(?:mb|micro|batch|chunk|item|step|iter|it|tag|seq|of|the|for)\b)[a-z][a-z_]{1,20}"
)
_DONE = re.compile(
    r"(?:\b(?:ok|done|completed?|finished|success|received|sent|arrived|returned)\b|\u2713)",
    re.IGNORECASE,
)
_NOT = re.compile(r"\b(?:not|never|no|fail\w*|error|will|would|should|skip\w*)\b", re.IGNORECASE)
_PAYLOADS = (
    ("act", ("act", "forward", "fwd", "hidden", "fw")),
    ("grad", ("grad", "backward", "bwd", "bw", "dgrad")),
)
# Of which nobody says that he does it with whom it is done.
_WRONG = {"send": ("from", "src"), "recv": ("to", "dst", "dest")}
_PAST = ("recvd", "received", "sent")


def read_transfer(text: str) -> dict[str, str] | None:
    """Read a line that tells of one send or receive with a peer.

    Returns:
        The ``kind`` (``send`` or ``recv``), the ``peer``, the ``item`` and what it is (``what``),
        whether it is over (``done``), by which number the program calls itself (``seat``), and
        whether that is its rank (``own``); None where the line tells of none.
    """
    match = _TOLD.search(text)
    if match is None or _NOT.search(text) or int(match["peer"]) > MAX_RANK:
        return None
    word = match["kind"].lower()
    kind = "recv" if "rec" in word else "send"
    way = (match["way"] or "").lower()
    if way in _WRONG[kind]:
        return None
    seat = _SEAT.match(text)
    before = text[seat.end() if seat else 0 : match.start()]
    told = f"{before} {match['what']} {match['after']}".replace("_", " ")
    numbers = [one["number"] or one["bare"] for one in _ITEM.finditer(told)]
    what = _WORD.search(match["what"].replace("_", " ").lower())
    is_done = word in _PAST or _DONE.search(match["after"]) is not None
    return {
        "kind": kind,
        "peer": match["peer"],
        "item": ",".join(numbers),
        "what": _name_payload(what[0]) if what else "",
        "done": "1" if is_done else "",
        "seat": seat["seat"] if seat else "",
        "own": seat["seat"] if seat and seat["kind"].lower() in ("rank", "r") else "",
    }


def _name_payload(word: str) -> str:
    """Return what is sent: one word for what programs call differently at both ends."""
    return next((name for name, words in _PAYLOADS if word.startswith(words)), word)


def may_transfer(small: str) -> bool:
    """Tell whether a line, in small letters, may tell of a send or a receive."""
    return "recv" in small or "receiv" in small or "send" in small or "sent " in small
