"""How figures are written for people: durations, measures with their unit, details of a finding."""

from __future__ import annotations

import math
from collections.abc import Mapping

from whystuck.evidence.ranks import format_ranks
from whystuck.safe_text.escaping import show_line

# A detail is a figure or a short list; longer ones are for the JSON report.
_DETAIL_CHARS = 160
# Details that hold ranks; many of them are written as a set, e.g. ``0-1,3-63``.
_RANK_LISTS = frozenset({"ranks", "waiting", "silent", "cut"})
_FEW_RANKS = 4
_EXACT_BELOW = 10_000
_MINUTE_S = 60
_HOUR_S = 3600

# A measure carries its unit at the end of its name. Longest endings first.
_UNITS = (
    ("_mb_per_s", "MB/s"),
    ("_gb_per_s", "GB/s"),
    ("_gbps", "GB/s"),
    ("_per_s", "a second"),
    ("_percent", "%"),
    ("_bytes", "bytes"),
    ("_ratio", "×"),
    ("_pct", "%"),
    ("_mib", "MiB"),
    ("_gib", "GiB"),
    ("_mb", "MB"),
    ("_ms", "ms"),
    ("_us", "µs"),
    ("_ns", "ns"),
    ("_s", "s"),
)
_PER_STEP = "_per_step"


def format_duration(seconds: float) -> str:
    """Write a duration: ``0.4 s``, ``43 s``, ``12 m 41 s``, ``3 h 2 m``."""
    if not math.isfinite(seconds):
        return "an unknown time"
    if seconds < 10:  # noqa: PLR2004 - below that, tenths matter
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    if whole < _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} m {whole % _MINUTE_S} s"
    return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S} m"


def format_number(value: float) -> str:
    """Write a number with four significant digits, and whole numbers in full."""
    if not math.isfinite(value):
        return "unknown"
    if value == int(value):
        return str(int(value))
    return str(round(value)) if abs(value) >= _EXACT_BELOW else f"{value:.4g}"


def format_measure(name: str, value: float) -> str:
    """Write a measure, e.g. ``lost_ms`` of 41.0 as ``lost 41 ms``."""
    if name.endswith(_PER_STEP):
        return f"{format_measure(name.removesuffix(_PER_STEP), value)} a step"
    for ending, unit in _UNITS:
        if name.endswith(ending):
            label = name.removesuffix(ending).replace("_", " ")
            return show_line(f"{label} {format_number(value)} {unit}")
    return show_line(f"{name.replace('_', ' ')} {format_number(value)}")


def format_detail(name: str, value: object) -> str:
    """Write one entry of a finding's details, e.g. ``phase: backward``."""
    if name in _RANK_LISTS and isinstance(value, (list, tuple)) and len(value) > _FEW_RANKS:
        shown = format_ranks(value) if all(isinstance(item, int) for item in value) else value
        return show_line(f"{name.replace('_', ' ')}: {_format_value(shown)}", _DETAIL_CHARS)
    return show_line(f"{name.replace('_', ' ')}: {_format_value(value)}", _DETAIL_CHARS)


def _format_value(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_format_value(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_format_value(item) for item in value) + "]"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "unknown"}[value]
    return format_number(value) if isinstance(value, (int, float)) else str(value)
