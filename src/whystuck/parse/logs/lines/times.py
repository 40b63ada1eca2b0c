"""The times that lines of logs begin with, in all the ways programs write them.

A stamp may lack its year (glog, syslog), its zone (nearly all of them) or its place in the day
(seconds since boot). What is missing is filled in later, when all files of a job are known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Literal

from whystuck.evidence.logs.lines import LogTime

SECOND = 10**9
_DAY = 86400 * SECOND
# Stamps without a year are kept in a leap year.
_ANY_YEAR = 2000
_MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1
    )
}
MONTH = "|".join(_MONTHS)
CLOCK = r"\d\d:\d\d:\d\d"
# Of CANN: 2026-05-11-22:10:05.781.599
ISO = rf"\d{{4}}-\d\d-\d\d[T _-]{CLOCK}(?:[.,]\d{{1,9}}(?:\.\d{{3}})?)?(?:Z| ?[+-]\d\d:?\d\d)?"
_EPOCH = date(1970, 1, 1)

_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[T _-](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9})(?:\.\d{3})?)?"
    r"(Z| ?[+-]\d\d:?\d\d)?"
)
_CTIME = re.compile(rf"(?:[A-Z][a-z][a-z] )?({MONTH}) +(\d\d?) (\d\d):(\d\d):(\d\d) (\d{{4}})")
_FABRIC = re.compile(rf"({MONTH}) +(\d\d?) (\d{{4}}) (\d\d):(\d\d):(\d\d)")
_SYSLOG = re.compile(rf"({MONTH}) +(\d\d?) (\d\d):(\d\d):(\d\d)(?:\.(\d{{1,9}}))?")
_MAIL = re.compile(rf"(\d\d?) ({MONTH}) (\d{{4}}) (\d\d):(\d\d):(\d\d)(?: ([+-]\d{{4}}))?")
_SLASHED = re.compile(r"(\d\d)/(\d\d)/(\d{4})[ ,-]+(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_GLOG = re.compile(r"[VIWEF](\d\d?)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6,9})")
_UPTIME = re.compile(r"(?<!\d)(\d+)\.(\d{3,9})")

Lack = Literal["", "year", "boot"]


@dataclass(frozen=True, slots=True)
class Stamp:
    """A time as a line has it.

    Attributes:
        ns: Nanoseconds since 1970, since the start of the year 2000 where the year is not known,
            or since boot.
        step_ns: The smallest difference such stamps can show.
        lack: What must be known to place it.
        is_zoned: Whether the zone is known.
        is_capture: Whether whystuck wrote it.
    """

    ns: int
    step_ns: int
    lack: Lack = ""
    is_zoned: bool = False
    is_capture: bool = False


def read_stamp(style: str, text: str) -> Stamp | None:
    """Read a time of a known style.

    Args:
        style: ``iso``, ``ctime``, ``fabric``, ``syslog``, ``mail``, ``slashed``, ``glog`` or
            ``uptime``.
        text: Where it stands.

    Returns:
        The time, or None when there is no such day or hour.
    """
    match = _STYLES[style].search(text)
    if match is None:
        return None
    try:
        return _READERS[style](match)
    except (ValueError, OverflowError):
        return None


def _read_iso(match: re.Match[str]) -> Stamp:
    year, month, day, hour, minute, second, fraction, zone = match.groups()
    return _make((year, month, day), (hour, minute, second), fraction, zone)


def _read_ctime(match: re.Match[str]) -> Stamp:
    month, day, hour, minute, second, year = match.groups()
    return _make((year, _MONTHS[month], day), (hour, minute, second))


def _read_fabric(match: re.Match[str]) -> Stamp:
    month, day, year, hour, minute, second = match.groups()
    return _make((year, _MONTHS[month], day), (hour, minute, second))


def _read_mail(match: re.Match[str]) -> Stamp:
    day, month, year, hour, minute, second, zone = match.groups()
    return _make((year, _MONTHS[month], day), (hour, minute, second), None, zone)


def _read_slashed(match: re.Match[str]) -> Stamp:
    month, day, year, hour, minute, second, fraction = match.groups()
    return _make((year, month, day), (hour, minute, second), fraction)


def _read_syslog(match: re.Match[str]) -> Stamp:
    month, day, hour, minute, second, fraction = match.groups()
    return _make((None, _MONTHS[month], day), (hour, minute, second), fraction)


def _read_glog(match: re.Match[str]) -> Stamp:
    month, day, hour, minute, second, fraction = match.groups()
    return _make((None, month, day), (hour, minute, second), fraction)


def _read_uptime(match: re.Match[str]) -> Stamp:
    return Stamp(int(match[1]) * SECOND + _nanos(match[2]), 10 ** (9 - len(match[2])), "boot")


def _make(
    day: tuple[object, object, object],
    clock: tuple[str, str, str],
    fraction: str | None = None,
    zone: str | None = None,
) -> Stamp:
    hour, minute = int(clock[0]), int(clock[1])
    if hour > 23 or minute > 59:  # noqa: PLR2004
        raise ValueError
    seconds = _find_day(*day) + hour * 3600 + minute * 60 + min(int(clock[2]), 59)
    ns = seconds * SECOND + _nanos(fraction or "")
    ns -= _offset_s(zone or "") * SECOND
    step = 10 ** (9 - len(fraction)) if fraction else SECOND
    return Stamp(ns, step, "" if day[0] is not None else "year", bool(zone))


@lru_cache(maxsize=64)
def _find_day(year: object, month: object, day: object) -> int:
    """Return when a day began, in seconds since 1970; the lines of a log are of few days.

    Raises:
        ValueError: There is no such day.
    """
    number = int(str(year)) if year is not None else _ANY_YEAR
    return (date(number, int(str(month)), int(str(day))) - _EPOCH).days * 86400


def _nanos(fraction: str) -> int:
    return int(fraction.ljust(9, "0")[:9]) if fraction else 0


def _offset_s(zone: str) -> int:
    digits = zone.strip().replace(":", "")
    if not digits or digits == "Z":
        return 0
    seconds = int(digits[1:3]) * 3600 + int(digits[3:5]) * 60
    return -seconds if digits[0] == "-" else seconds


_STYLES: Mapping[str, re.Pattern[str]] = {
    "iso": _ISO,
    "ctime": _CTIME,
    "fabric": _FABRIC,
    "mail": _MAIL,
    "slashed": _SLASHED,
    "syslog": _SYSLOG,
    "glog": _GLOG,
    "uptime": _UPTIME,
}
_READERS = {
    "iso": _read_iso,
    "ctime": _read_ctime,
    "fabric": _read_fabric,
    "mail": _read_mail,
    "slashed": _read_slashed,
    "syslog": _read_syslog,
    "glog": _read_glog,
    "uptime": _read_uptime,
}


@dataclass(frozen=True, slots=True)
class Anchor:
    """What places the stamps of one file that lack something.

    Attributes:
        near_ns: A time near which the file was written; stamps without a year get the year that
            brings them nearest.
        boot_ns: When the machine was booted, None when nothing tells.
    """

    near_ns: int = 0
    boot_ns: int | None = None


def place_stamp(stamp: Stamp | None, anchor: Anchor, clock: str) -> LogTime | None:
    """Turn a stamp into a time.

    Args:
        stamp: What the line has.
        anchor: What its file lacks.
        clock: The node, or the file where the node is not known.

    Returns:
        The time; seconds since boot that nothing places have a clock of their own.
    """
    if stamp is None:
        return None
    ns = stamp.ns
    zoned = stamp.is_zoned
    if stamp.lack == "boot":
        if anchor.boot_ns is None:
            return LogTime(ns, stamp.step_ns, f"{clock} since boot")
        # The clock that the boot time was read from counts whole seconds.
        return LogTime(ns + anchor.boot_ns, SECOND, clock, is_zoned=True)
    if stamp.lack == "year":
        ns = _choose_year(ns, anchor.near_ns)
    return LogTime(ns, stamp.step_ns, clock, zoned, stamp.is_capture)


def _choose_year(ns: int, near_ns: int) -> int:
    if not near_ns:
        return ns
    moment = datetime.fromtimestamp(ns // SECOND, UTC)
    year = datetime.fromtimestamp(near_ns // SECOND, UTC).year
    choices = [_with_year(moment, one) for one in (year - 1, year, year + 1)]
    best = min(choices, key=lambda one: abs(one - near_ns // SECOND))
    return best * SECOND + ns % SECOND


def _with_year(moment: datetime, year: int) -> int:
    try:
        return int(moment.replace(year=year).timestamp())
    except ValueError:  # the 29th of February
        return int((moment - timedelta(days=1)).replace(year=year).timestamp())
