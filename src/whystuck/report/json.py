"""The report as JSON: the public, versioned form that other programs read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from whystuck.evidence.finding import SCHEMA_VERSION, Report
from whystuck.evidence.sections import Timeline
from whystuck.report.stacks import limit_depth
from whystuck.safe_text.values import encode_json

# Structures that leave out keys at their default; all others always write every key.
_MAY_OMIT = frozenset({"Citation"})


def render_json(report: Report) -> bytes:
    """Return the report as indented JSON in UTF-8.

    The bytes are safe to print: control and bidirectional characters are escaped.
    """
    shallow = msgspec.structs.replace(report, stacks=limit_depth(report.stacks))
    return encode_json(shallow)


def render_timelines_json(items: Sequence[Timeline]) -> bytes:
    """Return timelines as JSON, under the key that they have in a report."""
    return encode_json({"schema_version": SCHEMA_VERSION, "timeline": list(items)})


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
