"""The text that tells Kineto to trace: lines ``KEY=VALUE``, as its configuration files have.

Kineto drops all lines behind one that it cannot read, and the path of its file is where it writes,
so values are checked here, whoever gave them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from whystuck.evidence.agent import TraceRequest
from whystuck.evidence.errors import UsageError

MAX_CONFIG_BYTES = 64 << 10
MAX_PATH_BYTES = 1024
MAX_ITERATIONS = 10_000
MAX_DURATION_MS = 600_000
MAX_WARMUP_MS = 60_000
DEFAULT_DURATION_MS = 500
DEFAULT_WARMUP_MS = 5_000
# What Kineto adds when no start time is given, beside the warm-up.
START_DELAY_MS = 2_000
_MAX_ITERATION = 2**31 - 1
_MS_A_SECOND = 1000
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KEY = re.compile(r"[A-Z][A-Z0-9_]{0,63}")
# Line ends of every kind, and what ends a value or begins a comment in Kineto's reader.
_HOSTILE = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029=#]")
# Its thread spins at a whole core until the process ends.
_SPINNING = frozenset({"PROFILE_MEMORY", "PROFILE_MEMORY_DURATION_MSECS"})
# They would let a request change what the process does besides tracing, or tell another's name.
_NOT_OURS = frozenset({"ACTIVITIES_ENABLED", "ENABLE_IPC_FABRIC", "REQUEST_TRACE_ID"})
_SUFFIX = ".json"
_FLAGS = (
    ("shapes", "PROFILE_REPORT_INPUT_SHAPES"),
    ("memory", "PROFILE_PROFILE_MEMORY"),
    ("stacks", "PROFILE_WITH_STACK"),
    ("flops", "PROFILE_WITH_FLOPS"),
    ("modules", "PROFILE_WITH_MODULES"),
)


@dataclass(frozen=True)
class Timing:
    """When a trace begins, as it is decided while it is sent.

    ``start_time_ms`` is wall-clock time since the epoch and must be ahead, 0 leaves it to Kineto.
    ``start_iteration`` counts as Kineto does, the first is 0, -1 is the next. When it has passed,
    the next multiple of ``roundup`` is taken. A device that is traced needs a warm-up. ``rest_ms``
    is how much longer than wanted Kineto is to collect.
    """

    start_time_ms: int = 0
    start_iteration: int = -1
    roundup: int = 1
    warmup_ms: int = 0
    warmup_iterations: int = 0
    rest_ms: int = 0


def check_request(request: TraceRequest) -> None:
    """Refuse a request whose numbers or texts cannot be asked of Kineto.

    Args:
        request: What somebody wants.

    Raises:
        UsageError: It names what is wrong.
    """
    if request.id and not _ID.fullmatch(request.id):
        raise UsageError(
            "the id of a trace has other characters than letters, digits, `-` and `_`",
            hint="leave it out, and one is made",
        )
    for name, value, least, most in (
        ("iterations", request.iterations, 0, MAX_ITERATIONS),
        ("duration in ms", request.duration_ms, 0 if request.iterations else 1, MAX_DURATION_MS),
        ("warm-up in ms", request.warmup_ms, 0, MAX_WARMUP_MS),
        ("start iteration", request.start_iteration, -1, _MAX_ITERATION),
        ("roundup", request.roundup, 1, _MAX_ITERATION),
        ("start time in ms", request.start_time_ms, 0, 2**53),
    ):
        if not least <= value <= most:
            raise UsageError(
                f"{name} is {value}, which is not from {least} to {most}",
                hint="a short trace of a few iterations shows as much as a long one",
            )
    if request.log_file:
        check_path(request.log_file)


def check_path(path: str) -> None:
    """Refuse a path that Kineto would misread, or that is not absolute.

    Args:
        path: Where Kineto is to write.

    Raises:
        UsageError: It names what is wrong.
    """
    if _HOSTILE.search(path) or path != path.strip():
        raise UsageError(
            "the path of a trace has a character that Kineto's configuration cannot hold",
            hint="leave out line ends, `=`, `#`, and spaces at its ends",
        )
    try:
        size_bytes = len(path.encode())
    except UnicodeEncodeError:
        size_bytes = MAX_PATH_BYTES + 1
    if not path.startswith("/") or size_bytes > MAX_PATH_BYTES:
        raise UsageError(
            f"the path of a trace is not absolute, or longer than {MAX_PATH_BYTES} bytes",
            hint="name a file in a folder of the node where the process runs",
        )


def make_config(request: TraceRequest, *, log_file: str, trace_id: str, timing: Timing) -> str:
    """Return the text that asks Kineto for a trace.

    Args:
        request: What somebody wants.
        log_file: The path that Kineto writes to; it puts ``_PID`` before a suffix ``.json``.
        trace_id: What the trace is to be recognised by.
        timing: When it begins.

    Returns:
        The text.

    Raises:
        UsageError: A value cannot be put into it.
    """
    check_request(request)
    check_path(log_file)
    if not _ID.fullmatch(trace_id):
        raise UsageError("the id of a trace is not one", hint="leave it out, and one is made")
    lines = {"ACTIVITIES_LOG_FILE": log_file, "REQUEST_TRACE_ID": trace_id}
    lines |= (
        _iteration_lines(request, timing) if request.iterations else _time_lines(request, timing)
    )
    lines |= {key: "true" for name, key in _FLAGS if getattr(request, name)}
    return join_lines(lines)


def _iteration_lines(request: TraceRequest, timing: Timing) -> dict[str, str]:
    return {
        "ACTIVITIES_ITERATIONS": str(request.iterations),
        # Without it, one that has not stepped would silently be traced for half a second instead.
        "ACTIVITIES_DURATION_MSECS": "0",
        "ACTIVITIES_WARMUP_ITERATIONS": str(timing.warmup_iterations),
        "PROFILE_START_ITERATION": str(max(timing.start_iteration, 0)),
        "PROFILE_START_ITERATION_ROUNDUP": str(max(timing.roundup, 1)),
    }


def _time_lines(request: TraceRequest, timing: Timing) -> dict[str, str]:
    lines = {
        "ACTIVITIES_DURATION_MSECS": str(request.duration_ms + timing.rest_ms),
        # It is told in whole seconds.
        "ACTIVITIES_WARMUP_PERIOD_SECS": str(-(-timing.warmup_ms // _MS_A_SECOND)),
    }
    if timing.start_time_ms:
        lines["PROFILE_START_TIME"] = str(timing.start_time_ms)
    return lines


def join_lines(lines: Mapping[str, str]) -> str:
    """Return the text of a configuration."""
    return "".join(f"{key}={value}\n" for key, value in lines.items())


@dataclass(frozen=True)
class RawConfig:
    """A configuration that a client wrote: its lines, and those that were taken out."""

    lines: Mapping[str, str]
    dropped: tuple[str, ...] = ()

    @property
    def log_file(self) -> str:
        """Where Kineto is to write; empty when the text does not say."""
        return self.lines.get("ACTIVITIES_LOG_FILE", "")

    @property
    def iterations(self) -> int:
        """How many iterations; 0 for a trace by time."""
        is_asked = self._number("PROFILE_START_ITERATION", -1) >= 0
        return self._number("ACTIVITIES_ITERATIONS", 0) if is_asked else 0

    @property
    def duration_ms(self) -> int:
        """How long it collects."""
        seconds = self._number("ACTIVITIES_DURATION_SECS", 0)
        default = seconds * _MS_A_SECOND if seconds else DEFAULT_DURATION_MS
        return self._number("ACTIVITIES_DURATION_MSECS", default)

    @property
    def warmup_ms(self) -> int:
        """How long it warms up."""
        seconds = self._number("ACTIVITIES_WARMUP_PERIOD_SECS", -1)
        return DEFAULT_WARMUP_MS if seconds < 0 else seconds * _MS_A_SECOND

    @property
    def start_time_ms(self) -> int:
        """When it begins, wall-clock; 0 for Kineto's own choice."""
        return self._number("PROFILE_START_TIME", 0)

    @property
    def has_stacks(self) -> bool:
        """Whether it takes Python stacks, for which it needs the GIL."""
        names = ("PROFILE_WITH_STACK", "PYTHON_STACK_TRACE")
        yes = ("y", "t", "true", "yes", "1")
        return any(self.lines.get(name, "").lower() in yes for name in names)

    def text(self, trace_id: str, added: Mapping[str, str] = MappingProxyType({})) -> str:
        """Return what is sent: nothing of the client's text but the lines that were read.

        Args:
            trace_id: What the trace is to be recognised by.
            added: Lines that are ours; they win over those of the client.
        """
        return join_lines({**self.lines, **added, "REQUEST_TRACE_ID": trace_id})

    def _number(self, key: str, default: int) -> int:
        value = self.lines.get(key, "")
        return int(value) if re.fullmatch(r"\d{1,16}", value) else default


def read_raw_config(text: str) -> RawConfig:
    """Read a configuration that a client wrote, such as that of ``dyno gputrace``.

    Args:
        text: Lines of ``KEY=VALUE``; blank ones and comments are left out.

    Returns:
        Its lines, without those that harm the process.

    Raises:
        UsageError: A line cannot be read, a value could be misread, or it is too long.
    """
    if len(text) > MAX_CONFIG_BYTES:
        raise UsageError(
            f"a configuration has more than {MAX_CONFIG_BYTES} characters",
            hint="it takes one line for each option",
        )
    lines: dict[str, str] = {}
    dropped = []
    for line in text.split("\n"):
        plain = line.strip(" \t\r")
        if not plain or plain.startswith("#"):
            continue
        key, _, value = (part.strip(" \t") for part in plain.partition("="))
        if not _KEY.fullmatch(key) or _HOSTILE.search(value):
            raise UsageError(
                "a line of the configuration is not `KEY=VALUE`",
                hint="a value holds no `=`, no `#` and no control character",
            )
        if key in _SPINNING or key in _NOT_OURS:
            dropped.append(key)
        else:
            lines[key] = value
    found = RawConfig(lines, tuple(dropped))
    if found.log_file:
        check_path(found.log_file)
    return found


def written_path(log_file: str, pid: int) -> str:
    """Return where Kineto puts the trace that a configuration asks for at ``log_file``.

    Args:
        log_file: The path in the configuration.
        pid: The process, as it sees itself.

    Returns:
        The path with the process before its suffix, if that is ``.json``.
    """
    stem = log_file.removesuffix(_SUFFIX)
    return log_file if stem == log_file else f"{stem}_{pid}{_SUFFIX}"
