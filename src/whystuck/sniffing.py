"""Tells what a file is from its name and first bytes."""

from __future__ import annotations

import re
from enum import Enum, auto

from whystuck.content import PACKED_SUFFIXES
from whystuck.evidence import records

_LOG_SUFFIXES = {".log", ".out", ".err", ".txt", ""}
# Names under which people keep dumps; a broken file is worth a word only under such a name.
_DUMP_NAME = re.compile(r"dump|trace|rank|fr[_.\-]|flight|^\d+$|\.(pkl|pickle)$", re.IGNORECASE)
_RECORDER_KEYS = (b'"pg_config"', b'"pg_status"', b'"entries"')
_RECORDER_WORDS = (b"pg_config", b"pg_status", b"profiling_name")
# The version of the format comes after this.
_OP_LOG_MAGIC = b"WSOPS"
_OP_LOG_SUFFIX = ".ring"
_MIN_PICKLE_PROTOCOL = 2
_MAX_PICKLE_PROTOCOL = 5


class Kind(Enum):
    """The formats that are told from content."""

    FLIGHT_RECORDER = auto()
    SPY_JSON = auto()
    SPY_TEXT = auto()
    FAULTHANDLER = auto()
    FATAL = auto()
    OP_LOG = auto()
    LOG = auto()


def sniff(name: str, head: bytes) -> Kind | None:
    """Tell what a file is.

    Args:
        name: Its name without folders.
        head: Its first bytes.

    Returns:
        The format, or None when it is no evidence.
    """
    if name == records.FATAL_FILE:
        return Kind.FATAL if head.strip() else None
    if head.startswith(_OP_LOG_MAGIC) or name.endswith(_OP_LOG_SUFFIX):
        return Kind.OP_LOG
    if _is_pickle(head):
        is_dump = _DUMP_NAME.search(name) or any(word in head for word in _RECORDER_WORDS)
        return Kind.FLIGHT_RECORDER if is_dump else None
    text = head.lstrip()
    if text[:1] in (b"{", b"["):
        return _sniff_json(name, text)
    if not head or b"\0" in head:
        is_dump = bool(_DUMP_NAME.search(name)) and not name.endswith(
            (".log", ".txt", *PACKED_SUFFIXES)
        )
        return Kind.FLIGHT_RECORDER if is_dump else None
    return _sniff_text(name, head.decode("utf-8", errors="replace"))


# Protocols 0 and 1 have no mark of their own: a class that is asked for, a dictionary, a list.
_OLD_PICKLE = re.compile(rb"c[\w.]+\n[\w.]+\n|\([dl]p?\d*\n|[}\]]q\x00")


def _is_pickle(head: bytes) -> bool:
    return _OLD_PICKLE.match(head) is not None or (
        len(head) > 1
        and head[:1] == b"\x80"
        and _MIN_PICKLE_PROTOCOL <= head[1] <= _MAX_PICKLE_PROTOCOL
    )


def _sniff_json(name: str, text: bytes) -> Kind | None:
    if text[:1] == b"[" and b'"frames"' in text and b'"thread_id"' in text:
        return Kind.SPY_JSON
    if text[:1] == b"{" and any(key in text for key in _RECORDER_KEYS):
        return Kind.FLIGHT_RECORDER
    if name.startswith("stacks-"):
        return Kind.SPY_JSON
    if _PREFIXED_LINE.match(text):
        return _sniff_text(name, text.decode("utf-8", errors="replace"))
    if name == records.FR_JSON_FILE or (_DUMP_NAME.search(name) and not name.endswith(".json")):
        return Kind.FLIGHT_RECORDER
    return None


# `[rank0]: text`, as torch and torchrun begin the lines of a log.
_PREFIXED_LINE = re.compile(rb"\[[A-Za-z_]*\d+\]:")


def _sniff_text(name: str, text: str) -> Kind | None:
    suffix = "." + name.rpartition(".")[2] if "." in name else ""
    if re.search(r"^Process \d+: ", text, re.MULTILINE) and re.search(
        r"^Thread (?:0x)?[0-9A-Fa-f]+ \(", text, re.MULTILINE
    ):
        return Kind.SPY_TEXT
    if "Fatal Python error: " in text:
        return Kind.FATAL
    if "(most recent call first):" in text:
        return Kind.FAULTHANDLER
    if suffix in _LOG_SUFFIXES:
        return Kind.LOG
    if "Traceback (most recent call last):" in text:
        return Kind.LOG
    return None
