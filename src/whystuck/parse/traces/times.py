"""The times of events: microseconds with decimals to whole nanoseconds, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, DecimalException

import numpy as np
from numpy.typing import NDArray

_NS_A_US = 1000
# Below it, neighbouring floats are less than 1 ns apart, so that three decimals survive.
_EXACT_US = float(1 << 43)
# The most that int64 ns can hold.
_MOST_US = 9.2e15
_POINT, _MINUS, _ZERO = (ord(one) for one in ".-0")
OUT_OF_RANGE = np.iinfo(np.int64).min


def to_ns(values: Sequence[float]) -> NDArray[np.int64] | None:
    """Turn decoded times into ns.

    Args:
        values: Microseconds, as they were decoded from JSON.

    Returns:
        Whole ns, `OUT_OF_RANGE` where there is none; None when floats cannot hold them exactly,
        so that they are to be read from their text.
    """
    times = np.fromiter(values, np.float64, len(values))
    if not len(times):
        return times.astype(np.int64)
    # One that is missing is no number there, and says nothing of the others.
    most = np.fmax.reduce(np.abs(times))
    if most >= _EXACT_US:
        if float in set(map(type, values)):
            return None
        if most < _MOST_US:
            return np.fromiter(values, np.int64, len(values)) * _NS_A_US
    return _round(times)


def _round(times: NDArray[np.float64]) -> NDArray[np.int64]:
    """Round to ns; the whole part is parted first, as the product of all would lose digits."""
    is_sound = np.abs(times) < _MOST_US
    times = np.where(is_sound, times, 0.0)
    whole = np.floor(times)
    ns = whole.astype(np.int64) * _NS_A_US
    ns += np.rint((times - whole) * _NS_A_US).astype(np.int64)
    ns[~is_sound] = OUT_OF_RANGE
    return ns


def durations_to_ns(values: Sequence[float]) -> NDArray[np.int64]:
    """Turn decoded durations into ns; floats hold those of up to 100 days exactly."""
    return _round(np.fromiter(values, np.float64, len(values)))


def texts_to_ns(texts: Sequence[bytes]) -> NDArray[np.int64]:
    """Turn the texts of times into ns, whatever their size.

    Args:
        texts: Numbers of JSON in microseconds; digits below 1 ns are rounded.

    Returns:
        Whole ns, `OUT_OF_RANGE` where a text is no number.
    """
    joined = b" ".join(texts)
    # Exponents and the like are rare.
    if joined.translate(None, b"0123456789. ") or joined.count(b" ") != len(texts) - 1:
        return np.array([_text_to_ns(bytes(text)) for text in texts], dtype=np.int64)
    tokens = joined.split()
    if len(tokens) != len(texts):
        return np.array([_text_to_ns(bytes(text)) for text in texts], dtype=np.int64)
    # A float is off by a quarter of a microsecond at most, so that less the text of its fraction
    # it rounds to its whole part.
    times = np.array([float(token) for token in tokens])
    if len(times) and times.max() >= _MOST_US:
        return np.array([_text_to_ns(token) for token in tokens], dtype=np.int64)
    fraction = _read_fractions(joined)
    return np.rint(times - fraction / _NS_A_US).astype(np.int64) * _NS_A_US + fraction


def _read_fractions(joined: bytes) -> NDArray[np.int64]:
    """Return the decimals of numbers between spaces, in thousandths."""
    padded = np.frombuffer(joined + b" 0000", dtype=np.uint8)
    ends = np.flatnonzero(padded == ord(" "))
    points = np.flatnonzero(padded == _POINT)
    fraction = np.zeros(len(ends), dtype=np.int64)
    owner = np.searchsorted(ends, points)
    end = ends[owner]
    for digit, worth in enumerate((100, 10, 1), start=1):
        at = points + digit
        is_there = at < end
        value = padded[np.minimum(at, end)].astype(np.int64) - _ZERO
        fraction[owner] += np.where(is_there, value, 0) * worth
    at = points + 4
    fraction[owner] += (at < end) & (padded[np.minimum(at, end)] >= _ZERO + 5)
    return fraction


def _text_to_ns(text: bytes) -> int:
    try:
        ns = (Decimal(text.decode("ascii", "replace").strip('" ')) * _NS_A_US).to_integral_value()
        return int(ns) if abs(ns) < _MOST_US * _NS_A_US else OUT_OF_RANGE
    except (DecimalException, ValueError):
        return OUT_OF_RANGE
