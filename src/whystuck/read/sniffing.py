"""Tells what a file is from its name and first bytes."""

from __future__ import annotations

import re
from enum import Enum, auto

from whystuck.evidence import records
from whystuck.read.content import PACKED_SUFFIXES

_LOG_SUFFIXES = {".log", ".out", ".err", ".txt", ".stdout", ".stderr", ""}
# `x.log.1`, `messages-20260402`, `job.o12345`
_LOG_NAME = re.compile(r"\.(?:log|out|err|txt)[.-]\d+$|\.[oe]\d+$|-\d{8}$", re.IGNORECASE)
# Names under which people keep dumps; a broken file is worth a word only under such a name.
_DUMP_NAME = re.compile(r"dump|trace|rank|fr[_.\-]|flight|^\d+$|\.(pkl|pickle)$", re.IGNORECASE)
_RECORDER_KEYS = (b'"pg_config"', b'"pg_status"', b'"entries"')
_RECORDER_WORDS = (b"pg_config", b"pg_status", b"profiling_name")
# The version of the format comes after this.
_OP_LOG_MAGIC, _MARKS_MAGIC = b"WSOPS", b"WSMARK"
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
    MARKS = auto()
    LOG = auto()
    TRACE = auto()
    RAS = auto()
    NCCL_LOG = auto()
    BOOT_CHECK = auto()


# Stacks as text, of one process in files of our own, of any number in what people paste.
STACK_KINDS = {Kind.FAULTHANDLER, Kind.SPY_TEXT}
# What a log looks like that begins with a stack.
LOG_KINDS = {Kind.LOG, Kind.FATAL, *STACK_KINDS}


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
    is_marks = head.startswith(_MARKS_MAGIC)
    if is_marks or head.startswith(_OP_LOG_MAGIC) or name.endswith(_OP_LOG_SUFFIX):
        return Kind.MARKS if is_marks else Kind.OP_LOG
    if _is_pickle(head):
        is_dump = _DUMP_NAME.search(name) or any(word in head for word in _RECORDER_WORDS)
        return Kind.FLIGHT_RECORDER if is_dump else None
    text = head.lstrip()
    if _JSON.match(text):
        return _sniff_json(name, text)
    head = _decode_wide(head)
    if head and (b"\0" not in head or not _is_dump_name(name)):
        is_text = b"\0" not in head or _is_mostly_text(head)
        return _sniff_text(name, head.decode("utf-8", errors="replace")) if is_text else None
    return Kind.FLIGHT_RECORDER if _is_dump_name(name) else None


# What `ncclras` prints, and the same as JSON; the lines of the protocol may come before it.
_RAS = re.compile(
    rb"(?:(?:SERVER PROTOCOL [0-9]{1,9}|OK|ERROR: [^\n]{0,200})\r?\n)*"
    rb"(?:NCCL version \S{1,40} compiled with CUDA [^\n]{1,80}\n[^\n]{0,80}\r?\n\s*Job summary\r?\n"
    rb'|\{\s{0,20}"nccl_version"\s{0,9}:\s{0,9}"[^"\n]{0,80}",[^\[\]]{0,500}"communicators"\s{0,9}:)'
)


# A line of NCCL's inspector plugin.
_NCCL_LOG = re.compile(
    rb'\{\s{0,9}"header"\s{0,9}:\s{0,9}\{[^{}]{0,999}\}\s{0,9},\s{0,9}"metadata"\s{0,9}:\s{0,9}'
    rb'\{\s{0,9}"inspector_output_format_version"'
)


def _is_dump_name(name: str) -> bool:
    """Tell a name under which a dump is kept, which may be broken or empty."""
    return bool(_DUMP_NAME.search(name)) and not name.endswith((".log", ".txt", *PACKED_SUFFIXES))


# Protocols 0 and 1 have no mark of their own: a class that is asked for, a dictionary, a list.
_OLD_PICKLE = re.compile(rb"c[\w.]+\n[\w.]+\n|\([dl]p?\d*\n|[}\]]q\x00")


def _is_pickle(head: bytes) -> bool:
    return _OLD_PICKLE.match(head) is not None or (
        len(head) > 1
        and head[:1] == b"\x80"
        and _MIN_PICKLE_PROTOCOL <= head[1] <= _MAX_PICKLE_PROTOCOL
    )


# What a Kineto trace begins with; the events may be far behind the head, or at the end. Flight
# recorders have groups of the same name, so this is looked for first.
_TRACE_KEY = re.compile(
    rb'"(?:traceEvents|deviceProperties|distributedInfo|baseTimeNanoseconds)"\s*:'
)
_TRACE_WORD = re.compile(
    rb'"(?:displayTimeUnit|traceName|with_stack|profile_memory|record_shapes)"\s*:'
)
_TRACE_EVENT = re.compile(rb'\[\s*\{[^{}]{0,2000}"ph"\s*:\s*"[A-Za-z]"')
_RECORDER_KEY = re.compile(rb'"(?:pg_status|entries)"\s*:')


def _is_trace(name: str, text: bytes) -> bool:
    if text[:1] == b"[":
        return _TRACE_EVENT.match(text) is not None
    if _TRACE_KEY.search(text):
        return b'"traceEvents"' in text or not _RECORDER_KEY.search(text)
    return name.endswith(".json") and _TRACE_WORD.search(text) is not None


def _sniff_json(name: str, text: bytes) -> Kind | None:
    if _RAS.match(text):
        return Kind.RAS
    if _NCCL_LOG.match(text):
        return Kind.NCCL_LOG
    return Kind.TRACE if _is_trace(name, text) else _sniff_small_json(name, text)


def _sniff_small_json(name: str, text: bytes) -> Kind | None:
    if text[:1] == b"[" and b'"frames"' in text and b'"thread_id"' in text:
        return Kind.SPY_JSON
    if text[:1] == b"{" and any(key in text for key in _RECORDER_KEYS):
        return Kind.FLIGHT_RECORDER
    if name.startswith("stacks-"):
        return Kind.SPY_JSON
    is_log = _has_log_name(name) and "." in name and _JSON_FIRST.match(text)
    if is_log or _JSON_LINE.match(text):
        return Kind.LOG
    if name == records.FR_JSON_FILE or (_DUMP_NAME.search(name) and not name.endswith(".json")):
        return Kind.FLIGHT_RECORDER
    # A paste that is cut, or metrics alone: nothing may be told from it, but it was read.
    return Kind.LOG if _has_log_name(name) else None


# An object, or a list of more than one word in brackets: `[rank0]: text`, `[1,0]<stderr>:`,
# `[1,mpirank:0,algo-1]<stdout>:`, `[2026-04-02 05:44:10]` and `[ 12.345678]` are how lines of logs
# begin.
_JSON = re.compile(
    rb"""\{\s*["}]|\[\s*(?:[\[{"\]]|-?\d[\d.eE+-]*\s*(?:,(?!\d+\]<)\s*(?:[\["{\d-]|[tfn][aru]|$)|\]\s*$))"""
)
# One object in a line, and something else in the next.
_JSON_FIRST = re.compile(rb"""\{[^\n]{0,65000}\}[ \t\r]*\n\s*\S""")
_JSON_LINE = re.compile(rb"""\{(?=[^\n]{0,65000}"(?:log|msg|message)"\s*:)[^\n]*\}\s*(?:\n|$)""")
# All that faulthandler writes.
_FAULT_LINE = re.compile(
    r"\s*$|Fatal Python error: |(?:Current thread|Thread) 0x|Stack \(most|  File |  \.\.\.|  <|"
    r"Extension modules: |Python runtime state: |Timeout \(|Current thread's C stack|"
    r"  Binary file |  /"
)


def _is_mostly_text(head: bytes) -> bool:
    """Tell a log with some zeros in it, as a full disk or a crash leaves them, from other files."""
    return head.count(b"\0") < len(head) // 2 and head.count(b"\n") > len(head) // 2000


def _decode_wide(head: bytes) -> bytes:
    """Decode what Windows tools write: two bytes for each character."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return head[: len(head) // 2 * 2].decode("utf-16", errors="replace").encode()
    return head


# How lines of logs begin: a time, or who wrote them.
_LOG_LINE = re.compile(
    r"\s{0,2}\[?(?:\d{4}[-/]\d\d[-/]\d\d[T _]\d\d:\d\d|"
    r"[A-Z][a-z][a-z] (?:[A-Z][a-z][a-z] )?[ \d]?\d \d\d:|"
    r"[IWEF]\d{3,4} \d\d:|\d\d:\d\d:\d\d|\s*\d+\.\d{6}\] |[Rr]ank:? ?\d+\]|\d+,\d+\]<std)"
)
_LOOKED_AT = 20


def _has_log_name(name: str) -> bool:
    suffix = "." + name.rpartition(".")[2] if "." in name else ""
    return suffix.lower() in _LOG_SUFFIXES or bool(_LOG_NAME.search(name))


def _is_like_log(text: str) -> bool:
    """Tell a log under any name by how its lines begin."""
    lines = [line for line in text.split("\n")[:_LOOKED_AT] if line.strip()]
    return len(lines) > 1 and sum(map(bool, map(_LOG_LINE.match, lines))) * 2 >= len(lines)


_SPY_PROCESS = re.compile(r"^Process \d+: ", re.MULTILINE)
_SPY_THREAD = re.compile(r"^Thread (?:0x)?[0-9A-Fa-f]+ \(", re.MULTILINE)


# Sentences of a boot check; whether a file is one is told by the whole of it.
_BOOT = re.compile(
    r"\bStart to run (?:Bootchecking|Troubleshooting)|\bDiskTest /\S{1,1000}: [A-Z]", re.ASCII
)


def _sniff_text(name: str, text: str) -> Kind | None:
    if (is_ras := _RAS.match(text.encode())) or _BOOT.search(text):
        return Kind.RAS if is_ras else Kind.BOOT_CHECK
    if _SPY_PROCESS.search(text) and _SPY_THREAD.search(text):
        # What people paste may have lines of the job beside the stacks, or stacks of several.
        is_of_many = len(set(_SPY_PROCESS.findall(text))) > 1 and "Parent Process" not in text
        has_more = is_of_many or any(map(_LOG_LINE.match, text.splitlines()))
        return Kind.LOG if has_more else Kind.SPY_TEXT
    # The last line may be cut.
    whole = text[: text.rfind("\n") + 1].splitlines()
    if "(most recent call first):" in text and all(_FAULT_LINE.match(line) for line in whole):
        return Kind.FATAL if "Fatal Python error: " in text else Kind.FAULTHANDLER
    if _has_log_name(name) or _is_like_log(text):
        return Kind.LOG
    if "Traceback (most recent call last):" in text:
        return Kind.LOG
    return None
