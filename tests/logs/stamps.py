"""The times that lines of logs carry: find them, read them, and move them.

A stamp may lack its year (kernel logs, glog), its zone (nearly all of them) or its place in the
day (seconds since boot). What is missing comes from the caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTH = "|".join(_MONTHS)
_CLOCK = r"(?P<h>\d\d):(?P<mi>\d\d):(?P<s>\d\d)"


@dataclass(frozen=True)
class Stamp:
    """One time in a line: where it stands, how it is written, and what it says.

    `time` has a zone only where the text has one.
    """

    start: int
    end: int
    style: str
    time: datetime


# The first style that matches at a place wins, so the longer ones come first.
_STYLES: dict[str, re.Pattern[str]] = {
    # 2026-03-04T10:00:00.123Z, 2026-03-04 10:00:00,123, 2026-03-04_10:00:00
    "iso": re.compile(
        r"(?<!\d)(?P<y>\d{4})-(?P<mo>\d\d)-(?P<d>\d\d)[T _]"
        + _CLOCK
        + r"(?:[.,](?P<f>\d{1,9}))?(?P<z>Z|[+-]\d\d:?\d\d)?"
    ),
    # [Wed Mar  4 10:00:00 2026], what `dmesg -T` prints
    "ctime": re.compile(
        rf"(?P<w>[A-Z][a-z][a-z]) (?P<mon>{_MONTH}) (?P<d>[ \d]\d) {_CLOCK} (?P<y>\d{{4}})"
    ),
    # Wed, 04 Mar 2026 10:00:00 +0000, what `kubectl describe` prints
    "mail": re.compile(
        rf"(?P<w>[A-Z][a-z][a-z]), (?P<d>\d\d) (?P<mon>{_MONTH}) (?P<y>\d{{4}}) {_CLOCK}"
        r" (?P<z>[+-]\d{4})"
    ),
    # [Mar 04 2026 10:00:00], the fabric manager
    "fabric": re.compile(rf"(?P<mon>{_MONTH}) (?P<d>\d\d) (?P<y>\d{{4}}) {_CLOCK}"),
    # Mar  4 10:00:00, syslog
    "syslog": re.compile(rf"^(?P<mon>{_MONTH}) (?P<d>[ \d]\d) {_CLOCK}"),
    # 03/04/2026 10:00:00, a habit of training scripts
    "slashed": re.compile(rf"(?<!\d)(?P<mo>\d\d)/(?P<d>\d\d)/(?P<y>\d{{4}}) {_CLOCK}"),
    # E0304 10:00:00.123000 of Python, E304 10:00:00.123456789 of C++: no year, no zone
    "glog": re.compile(
        rf"(?<![0-9A-Za-z])[IWEF](?P<mo>\d\d?)(?P<d>\d\d) {_CLOCK}\.(?P<f>\d{{6,9}})"
    ),
    # [ 1234.567890], the kernel's seconds since boot
    "uptime": re.compile(r"^\[ *(?P<up>\d+)\.(?P<f>\d{6})\]"),
}

STYLES = tuple(_STYLES)


def _read(match: re.Match[str], style: str, year: int, boot: datetime | None) -> datetime:
    got = match.groupdict()
    micros = int((got.get("f") or "0").ljust(6, "0")[:6])
    if style == "uptime":
        boot = boot or datetime.min  # noqa: DTZ901 - logs have no zone
        return boot + timedelta(seconds=int(got["up"]), microseconds=micros)
    month = _MONTHS.index(got["mon"]) + 1 if got.get("mon") else int(got["mo"])
    zone = None
    if text := got.get("z"):
        zone = UTC if text == "Z" else datetime.strptime(text.replace(":", ""), "%z").tzinfo
    return datetime(
        int(got.get("y") or year),
        month,
        int(got["d"]),
        int(got["h"]),
        int(got["mi"]),
        int(got["s"]),
        micros,
        tzinfo=zone,
    )


def find_stamps(line: str, year: int, boot: datetime | None = None) -> Iterator[Stamp]:
    """Yield the times in a line, from left to right.

    `year` is used where the text has none, `boot` is the time seconds since boot count from.

    Raises:
        ValueError: A text looks like a time and is none, such as the 31st of February.
    """
    taken: list[tuple[int, int]] = []
    found = []
    for style, pattern in _STYLES.items():
        for match in pattern.finditer(line):
            start, end = match.span()
            if any(start < other_end and other_start < end for other_start, other_end in taken):
                continue
            taken.append((start, end))
            found.append(Stamp(start, end, style, _read(match, style, year, boot)))
    yield from sorted(found, key=lambda stamp: stamp.start)


def _write(text: str, style: str, moved: datetime) -> str:
    """Write a time the way `text` has it: the same style, separators and digits."""
    match = _STYLES[style].search(text)
    assert match is not None
    digits = len(match.groupdict().get("f") or "")
    values = {
        "y": f"{moved.year:04}",
        "mo": f"{moved.month:0{len(match.groupdict().get('mo') or '') or 2}}",
        "mon": _MONTHS[moved.month - 1],
        "w": moved.strftime("%a"),
        "d": f"{moved.day:02}",
        "h": f"{moved.hour:02}",
        "mi": f"{moved.minute:02}",
        "s": f"{moved.second:02}",
        # What is finer than a microsecond stays as it is.
        "f": f"{moved.microsecond:06}{(match.groupdict().get('f') or '')[6:]}"[:digits],
    }
    if style in {"ctime", "syslog"}:
        values["d"] = f"{moved.day:2}"
    out, at = [], 0
    for group, value in sorted(values.items(), key=lambda item: _start(match, item[0])):
        start = _start(match, group)
        if start < 0:
            continue
        out += [text[at:start], value]
        at = match.end(group)
    return "".join(out) + text[at:]


def _start(match: re.Match[str], group: str) -> int:
    return match.start(group) if match.groupdict().get(group) is not None else -1


def shift_stamps(line: str, seconds: float, year: int) -> str:
    """Move all times of a line, as a wrong clock of its node would. Seconds since boot stay."""
    return _rewrite(line, year, lambda stamp, text: _shifted(text, stamp, seconds))


def blank_stamps(line: str, year: int) -> str:
    """Put a dot in the place of each time, to compare lines whose clocks differ."""
    return _rewrite(line, year, lambda _stamp, _text: ".")


def _shifted(text: str, stamp: Stamp, seconds: float) -> str:
    if stamp.style == "uptime":
        return text
    return _write(text, stamp.style, stamp.time + timedelta(seconds=seconds))


def _rewrite(line: str, year: int, change: Callable[[Stamp, str], str]) -> str:
    out, at = [], 0
    for stamp in find_stamps(line, year):
        out += [line[at : stamp.start], change(stamp, line[stamp.start : stamp.end])]
        at = stamp.end
    return "".join(out) + line[at:]
