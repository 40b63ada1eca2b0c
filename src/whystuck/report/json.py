"""The report as JSON: the public, versioned form that other programs read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from whystuck.evidence.finding import SCHEMA_VERSION, Report, Timeline
from whystuck.report.stacks import limit_depth
from whystuck.safe_text.escaping import drop_surrogates, escape_json
from whystuck.safe_text.values import SecretHider

# Structures that leave out keys at their default; all others always write every key.
_MAY_OMIT = frozenset({"Citation"})
_NO_VALUE = object()


def render_json(report: Report) -> bytes:
    """Return the report as indented JSON in UTF-8.

    The bytes are safe to print: control and bidirectional characters are escaped.
    """
    shallow = msgspec.structs.replace(report, stacks=limit_depth(report.stacks))
    return _render(shallow)


def render_timelines_json(items: Sequence[Timeline]) -> bytes:
    """Return timelines as JSON, under the key that they have in a report."""
    return _render({"schema_version": SCHEMA_VERSION, "timeline": list(items)})


def _render(value: object) -> bytes:
    plain = msgspec.to_builtins(value, enc_hook=_encode_foreign, str_keys=True)
    _tidy(plain)
    data = msgspec.json.format(msgspec.json.encode(plain), indent=2)
    return escape_json(data.decode()).encode() + b"\n"


def report_schema() -> dict[str, Any]:
    """Return the JSON schema of the report.

    ``docs/report.schema.json`` is this value, written by ``whystuck schema``; a test fails when
    the two differ.
    """
    schema = msgspec.json.schema(Report)
    for name, part in schema["$defs"].items():
        part["description"] = " ".join(part["description"].split()).replace("``", "`")
        if name not in _MAY_OMIT and "properties" in part:
            part["required"] = list(part["properties"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "whystuck report",
        **schema,
    }


def _encode_foreign(value: object) -> object:
    """Encode numpy scalars and arrays, which rules may leave in ``details``."""
    to_list = getattr(value, "tolist", None)
    return to_list() if callable(to_list) else str(value)


def _tidy(plain: dict[str, Any]) -> None:
    """Replace, in place, secrets, lone surrogates and figures without a value.

    The walk is a loop because details and stacks may be nested deeply.
    """
    hider = SecretHider()
    todo: list[Any] = [plain]
    while todo:
        container = todo.pop()
        if isinstance(container, dict):
            tidied = {
                _tidy_leaf(key, hider): _tidy_leaf(item, hider) for key, item in container.items()
            }
            container.clear()
            container.update({key: item for key, item in tidied.items() if item is not _NO_VALUE})
            todo.extend(container.values())
        elif isinstance(container, list):
            tidied_items = [_tidy_leaf(item, hider) for item in container]
            container[:] = [None if item is _NO_VALUE else item for item in tidied_items]
            todo.extend(container)


def _tidy_leaf(item: object, hider: SecretHider) -> object:
    if isinstance(item, str):
        return hider.text(drop_surrogates(item))
    return _NO_VALUE if isinstance(item, float) and not math.isfinite(item) else item
