"""What a trace is asked for: the options of `whystuck trace start` as one request."""

from __future__ import annotations

import math
import re
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whystuck.evidence.agent import TraceRequest
from whystuck.evidence.errors import UsageError
from whystuck.evidence.ranks import parse_ranks

if TYPE_CHECKING:
    from whystuck.agent.rpc.discovery import Node


_MS_A_SECOND = 1000
_MIN_EPOCH_S = 1_000_000_000
_DEFAULT_DURATION_S = 0.5
_MAX_RANKS = 100_000
_RANKS = re.compile(r"[0-9]{1,6}(-[0-9]{1,6})?")


@dataclass
class Order:
    """What the options ask for; ``folder`` is where files of other nodes are fetched to."""

    request: TraceRequest
    output: str
    folder: Path | None
    is_waiting: bool
    is_json: bool
    timeout_s: float

    @property
    def wait_s(self) -> float:
        """How long to wait: a time to begin at, and the trace itself, do not count."""
        now_ms = time.time() * _MS_A_SECOND
        ahead_ms = max(0, self.request.start_time_ms - now_ms)
        length_ms = 0 if self.request.iterations else self.request.duration_ms
        return self.timeout_s + (ahead_ms + length_ms) / _MS_A_SECOND


def make_order(options: dict[str, Any], nodes: list[Node]) -> Order:
    """Turn options into a request; raises UsageError for those that do not go together."""
    from whystuck.agent.ondemand.trace_contents import add_needed
    from whystuck.agent.rpc.own_calls import node_folder
    from whystuck.guarded.remote import check_folder, check_lasting, check_store, is_url, local_path

    _check_timing(options)
    output = options["output"] or datetime.now(UTC).strftime("whystuck-trace-%Y%m%dT%H%M%SZ")
    local = local_path(output)
    folder = None if local is None else local.absolute()
    check_lasting(output)
    if is_url(output) and local is None:
        check_store(output)
    name = secrets.token_hex(8)
    here = str(folder) if folder is not None else output
    is_local = all(one.is_local for one in nodes)
    if folder is not None and (is_local or options["wait"]):
        check_folder(folder)
    start_ms = parse_start(options["start_at"], time.time())
    ahead_s = max(0.0, start_ms / _MS_A_SECOND - time.time())
    request = TraceRequest(
        id=name,
        iterations=options["iterations"] or 0,
        duration_ms=math.ceil((options["duration_s"] or _DEFAULT_DURATION_S) * _MS_A_SECOND),
        start_time_ms=start_ms,
        roundup=options["roundup"],
        ranks=read_ranks(options["ranks"]),
        pids=tuple(options["pids"]),
        job=options["job"] or "",
        output=here if is_local or folder is None else node_folder(name),
        stop_s=options["timeout_s"] + ahead_s,
        **{key: options[key] for key in ("stacks", "shapes", "memory", "flops", "modules")},
    )
    return Order(
        request=add_needed(request),
        output=here,
        folder=folder,
        is_waiting=options["wait"],
        is_json=options["output_format"] == "json",
        timeout_s=options["timeout_s"],
    )


def _check_timing(options: dict[str, Any]) -> None:
    if options["iterations"] and options["duration_s"]:
        raise UsageError(
            "a trace has --iterations or a --duration", hint="leave one of the two out"
        )
    if options["iterations"] and options["start_at"]:
        raise UsageError(
            "--start-at is for traces with a --duration",
            hint="--iterations begins at the same step on all ranks by itself",
        )
    if options["roundup"] > 1 and not options["iterations"]:
        raise UsageError("--roundup is for --iterations", hint="give --iterations, too")
    if any(pid <= 0 for pid in options["pids"]):
        raise UsageError("a pid is a number above 0", hint="`whystuck trace list` shows them")


def read_ranks(text: str | None) -> tuple[int, ...]:
    """Return the ranks of a list such as ``0,3-5``; raises UsageError for what is none."""
    if not text:
        return ()
    is_list = all(_RANKS.fullmatch(part.strip()) for part in text.split(","))
    ranks = parse_ranks(text) if is_list else frozenset()
    if not 0 < len(ranks) <= _MAX_RANKS:
        raise UsageError(f"`{text}` are no ranks", hint="e.g. `--ranks 0,3-5`")
    return tuple(sorted(ranks))


def parse_start(text: str | None, now_s: float) -> int:
    """Return when to begin, in ms since 1970; 0 for at once.

    Raises:
        UsageError: The text is no time, or one that has passed.
    """
    if not text:
        return 0
    try:
        start_s = _read_time(text, now_s)
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"`{text}` is no time", hint="e.g. `+30`, `1767225600`, `2026-01-31T12:00:00Z`"
        ) from error
    if not now_s <= start_s < now_s + 7 * 86400:
        raise UsageError(
            f"`{text}` has passed, or is more than a week ahead", hint="`+30` is in half a minute"
        )
    return int(start_s * _MS_A_SECOND)


def _read_time(text: str, now_s: float) -> float:
    if text.startswith("+"):
        return now_s + float(text[1:])
    try:
        seconds = float(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        # A time without a zone is that of this machine.
        return moment.timestamp()
    if seconds < _MIN_EPOCH_S:
        raise ValueError("too small to be seconds since 1970")
    return seconds
