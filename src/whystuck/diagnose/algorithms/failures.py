"""Which failures are causes and which only follow from the end of a peer."""

from __future__ import annotations

import re

from whystuck.evidence.live import ExitRecord, PythonException

_TIMEOUT = re.compile(
    r"Timed out waiting|wait timeout|Socket Timeout|[Ww]atchdog caught collective operation timeout"
    r"|Timeout waiting for|failed to pass monitoredBarrier|timeout caused pair closure",
)
_CASCADE = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|recvValue failed"
    r"|sendBytes failed|Connection was likely closed|[Cc]onnection refused|Connection aborted"
    r"|ncclRemoteError|remote process exited|Failed to recv|NCCL communicator was aborted"
    r"|Read error|writev|Bad file descriptor"
    r"|gloo/transport/|[Pp]air (?:is )?closed",
)
_CASCADE_TYPES = {
    "ChildFailedError",
    "RendezvousClosedError",
    "SignalException",
    "ProcessExitedException",
    "KeyboardInterrupt",
}
# Peers of different sizes or types: gloo notices on one of them, not on the guilty one.
_MISMATCH = re.compile(r"op\.preamble\.length|Enforce|mismatch.*(?:bytes|size) from", re.DOTALL)

CRASH_SIGNALS = {"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGTRAP", "SIGSYS"}
# Numbers on Linux; a table, because evidence may be read on another system.
_SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "SIGTERM",
    24: "SIGXCPU",
    31: "SIGSYS",
}
# A shell reports the signal that ended a command as a code this much higher.
_SHELL_OFFSET = 128


def is_timeout(item: PythonException) -> bool:
    """Tell whether a collective or a connection ran into its time limit."""
    return bool(_TIMEOUT.search(item.message))


def is_cascade(item: PythonException) -> bool:
    """Tell whether an exception only says that a peer is gone or late."""
    short = item.type.rpartition(".")[2]
    return short in _CASCADE_TYPES or bool(_CASCADE.search(item.message)) or is_timeout(item)


def is_size_complaint(item: PythonException) -> bool:
    """Tell whether an exception is a transport that got fewer or more bytes than it expected."""
    return bool(_MISMATCH.search(item.message))


def name_signal(ended: ExitRecord) -> str:
    """Return the name of the signal that ended a process, or an empty string."""
    if ended.signal:
        return _SIGNALS.get(ended.signal, f"signal {ended.signal}")
    if ended.code is not None and ended.code > _SHELL_OFFSET:
        return _SIGNALS.get(ended.code - _SHELL_OFFSET, "")
    return ""


def name_fatal(reason: str) -> str:
    """Return the signal that a fatal error of faulthandler stands for."""
    for words, name in _FATALS.items():
        if words in reason:
            return name
    return reason or "fatal error"


_FATALS = {
    "Segmentation fault": "SIGSEGV",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
    "Floating": "SIGFPE",
    "Aborted": "SIGABRT",
}
