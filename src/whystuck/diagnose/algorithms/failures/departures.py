"""The call by which a rank ended itself, as far as it fits how the rank ended."""

from __future__ import annotations

from whystuck.diagnose.algorithms.stacks.frames import describe_place, find_user_frame
from whystuck.evidence.live import Departure, ExitRecord

_SIGNAL_CALLS = frozenset({"os.kill", "signal.raise_signal"})
# A message in place of a code ends a process with this one.
_MESSAGE_CODE = 1
_CODES = 256


def explains(departure: Departure, ended: ExitRecord) -> bool:
    """Return whether a call leads to the code or signal that a process ended with."""
    if departure.call in _SIGNAL_CALLS:
        return bool(ended.signal) and departure.status == str(ended.signal)
    return ended.code is not None and _find_code(departure.status) == ended.code


def _find_code(status: str) -> int:
    if status in {"", "None", "False"}:
        return 0
    if status == "True":
        return 1
    try:
        return int(status) % _CODES
    except ValueError:
        return _MESSAGE_CODE


def describe_departure(departure: Departure | None) -> str:
    """Write the call for a sentence, with the user's line; empty when there is none."""
    if departure is None:
        return ""
    user = find_user_frame(departure.frames)
    thread = "" if departure.is_main_thread else " in another thread"
    place = f" in {describe_place(user)}" if user else ""
    return f" by {departure.call}{place}{thread}"
