"""Prometheus' text format, as far as it is needed to read a few gauges of an exporter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MAX_LINE_BYTES: Final = 16 << 10
MAX_SAMPLES: Final = 50_000

_NAME: Final = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_SAMPLE: Final = re.compile(
    rf"(?P<name>{_NAME})[ \t]*(?:\{{(?P<labels>.*)\}}[ \t]*|[ \t])"
    r"(?P<value>[^\s}]+)(?:[ \t]+-?[0-9]+)?[ \t]*"
)
_LABEL: Final = re.compile(
    r'[ \t]*(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"(?P<value>(?:[^"\\]|\\.)*)"[ \t]*(?:,|$)'
)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True)
class ExposedSample:
    """One line of an exporter."""

    name: str
    labels: dict[str, str]
    value: float


def parse_exposition(data: bytes, wanted: frozenset[str]) -> Iterator[ExposedSample]:
    """Give the samples of the ``wanted`` names; a line that cannot be read costs only itself."""
    taken = 0
    for line in data.split(b"\n"):
        if len(line) > MAX_LINE_BYTES or taken >= MAX_SAMPLES:
            continue
        # Most lines are of other names, and not worth a regular expression.
        name = line.lstrip()[:256].split(b"{", 1)[0].split(None, 1)
        if not name or name[0].decode(errors="replace") not in wanted:
            continue
        sample = _parse_line(line.decode(errors="replace"))
        if sample is not None and sample.name in wanted:
            taken += 1
            yield sample


def _parse_line(line: str) -> ExposedSample | None:
    found = _SAMPLE.fullmatch(line.strip())
    labels = _parse_labels(found["labels"] or "") if found else None
    if found is None or labels is None:
        return None
    try:
        return ExposedSample(found["name"], labels, float(found["value"].replace("_", "x")))
    except ValueError:
        return None


def _parse_labels(text: str) -> dict[str, str] | None:
    labels: dict[str, str] = {}
    place = 0
    text = text.rstrip(" \t")
    while place < len(text):
        found = _LABEL.match(text, place)
        if found is None:
            return None
        labels[found["name"]] = _ESCAPE.sub(_unescape, found["value"])
        place = found.end()
    return labels


def _unescape(found: re.Match[str]) -> str:
    return {"n": "\n", "\\": "\\", '"': '"'}.get(found[1], found[0])
