"""Events that no strict decoder takes: made into ones that it does, as far as they can be read."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from whystuck.evidence.decoding import json_decoder
from whystuck.evidence.traces.events import SPARSE_NAMES, Detail
from whystuck.parse.traces.cut import Layout
from whystuck.parse.traces.schema import TEXT, Form, make_event_type

# Strings first, so that what looks like a constant inside of one stays. One without an end goes on
# to the end of the text: else, each quote in it would be looked at as the start of one.
_CONSTANT = re.compile(
    rb'("(?:[^"\\]|\\.)*+(?:"|\\?\Z))|([-+]?\b(?:nan|inf(?:inity)?)\b)', re.IGNORECASE | re.DOTALL
)
_STRICT = json_decoder(
    make_event_type(Detail.ALL | Detail.NAMES | Detail.OLD, Form(with_any_category=True))
)
_TEXT_KEYS = {"name", "labels"}
_RAW_KEYS = {key for name, key in SPARSE_NAMES.items() if name.endswith(TEXT)}
_MOST_DIGITS = 400


def mend_events(text: bytes, layout: Layout) -> tuple[bytes, int]:
    """Mend the events of a text.

    Args:
        text: What holds them.
        layout: Where they lie.

    Returns:
        A list of JSON that can be decoded, and how many events are left out of it.
    """
    mended = []
    for start, end in zip(layout.start.tolist(), layout.end.tolist(), strict=True):
        event = text[start:end]
        try:
            _STRICT.decode(event)
            mended.append(event)
        except (ValueError, RecursionError):
            if (made := _mend(event)) is not None:
                mended.append(made)
    return b"[" + b",".join(mended) + b"]", len(layout.end) - len(mended)


def read_object(text: bytes) -> dict[str, Any] | None:
    """Read an object of JSON, even a damaged one; None when it cannot be read."""
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        value = _read_loosely(text)
    return value if isinstance(value, dict) else None


def _read_loosely(text: bytes, **keys: Any) -> Any:  # noqa: ANN401 - JSON
    """Read JSON with constants that are none, raw control characters and broken UTF-8."""
    whole = _CONSTANT.sub(lambda hit: hit[1] or b"null", text)
    try:
        return json.loads(whole.decode("utf-8", "replace"), strict=False, **keys)
    except (ValueError, RecursionError):
        return None


def _mend(event: bytes) -> bytes | None:
    # Numbers stay as they are written: as floats, times would be rounded.
    keys = {"parse_float": _keep_number, "parse_int": _keep_number}
    value = _read_loosely(event, **keys)
    if not isinstance(value, dict):
        return None
    made: dict[str, Any] = {}
    for key in ("ph", "cat", "name"):
        if value.get(key) is not None:
            made[key] = _to_text(value[key])
    for key in ("pid", "tid"):
        if value.get(key) is not None:
            made[key] = _to_id(value[key])
    for key in ("ts", "dur"):
        if (number := _to_number(value.get(key))) is not None:
            made[key] = number
    if isinstance(arguments := value.get("args"), dict):
        made["args"] = {key: _mend_argument(key, one) for key, one in arguments.items()}
    try:
        text = msgspec.json.encode(made)
        _STRICT.decode(text)
    except (ValueError, RecursionError):
        return None
    return text


def _mend_argument(key: str, value: Any) -> Any:  # noqa: ANN401 - JSON
    if key in _TEXT_KEYS:
        return _to_text(value)
    if key in _RAW_KEYS:
        return _clean(value) if isinstance(value, str) else value
    return _to_number(value) or (_clean(value) if isinstance(value, str) else None)


def _keep_number(text: str) -> Any:  # noqa: ANN401 - a number as it is written
    return msgspec.Raw(text.encode()) if len(text) < _MOST_DIGITS else None


def _to_number(value: Any) -> Any:  # noqa: ANN401 - a number as it is written, or None
    if isinstance(value, bool):
        return msgspec.Raw(b"%d" % value)
    if isinstance(value, str):
        text = value.strip()
        if len(text) < _MOST_DIGITS and re.fullmatch(r"-?(?:0|[1-9]\d*)(?:\.\d+)?", text):
            return msgspec.Raw(text.encode())
        return None
    return value if isinstance(value, msgspec.Raw) else None


def _to_id(value: Any) -> Any:  # noqa: ANN401 - a number as it is written, or a text
    number = _to_number(value)
    is_whole = number is not None and b"." not in bytes(number)
    return number if is_whole and not isinstance(value, str) else _to_text(value)


def _to_text(value: Any) -> str:  # noqa: ANN401 - JSON
    if isinstance(value, str):
        return _clean(value)
    return msgspec.json.encode(value).decode("utf-8", "replace")


def _clean(text: str) -> str:
    """Take out halves of surrogate pairs, which no UTF-8 can hold."""
    return text.encode("utf-8", "replace").decode()
