"""The tables of known log lines: ours, and a user's own that goes over it."""

from __future__ import annotations

import csv
import io
import re
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from whystuck.evidence.decoding import convert
from whystuck.parse.errors import ParseError
from whystuck.parse.logs.search.patterns import check_pattern, find_literals
from whystuck.parse.signatures import SIGNATURES, XIDS, read_table

MAX_TABLE = 1 << 20
MAX_ROWS = 2000

_Id = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][\w.\-]{0,63}$")]
_Text = Annotated[str, Meta(max_length=2000)]


class Signature(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    rename={"kind": "class", "action": "suggested_action", "origin": "source"},
):
    """One known kind of log line.

    The role is the main lesson of the field: without it, "connection closed by peer" on a hundred
    ranks wins over the one line that says why.

    Attributes:
        id: The name, e.g. ``xid.79``; a user's row of the same name goes over ours.
        log_source: Where such lines are found: kernel, worker, agent, scheduler, fabricmanager.
        kind: The class of trouble, e.g. ``gpu_lost``.
        severity: How bad it is for the job; ``by-...`` when the line tells.
        is_hardware: Whether the machine is at fault.
        role: A ``cause``; a ``cascade``, which follows from one; ``context``, which only helps.
        finding: The code of the finding that such a line belongs to, or empty.
        meaning: One sentence.
        action: What to do.
        regex: What is searched for in one line.
        example: A line that matches.
        lookalike: A line that looks much like it and does not match.
        origin: Where the signature is from.
    """

    id: _Id
    regex: str
    log_source: _Text = "worker"
    kind: _Text = "site"
    severity: Literal["fatal", "error", "warning", "info", "by-code", "by-severity-word"] = "error"
    is_hardware: Literal["yes", "no", "maybe"] = "maybe"
    role: Literal["cause", "cascade", "context"] = "cause"
    finding: Annotated[str, Meta(pattern=r"^([A-Z]\d{3})?$")] = ""
    meaning: _Text = ""
    action: _Text = ""
    example: _Text = ""
    lookalike: _Text = ""
    origin: _Text = ""


class Xid(
    msgspec.Struct,
    frozen=True,
    rename={
        "action": "nvidia_immediate",
        "investigation": "nvidia_investigatory",
        "origin": "source",
    },
):
    """One error number of NVIDIA's driver, as NVIDIA's catalogue has it."""

    xid: int
    mnemonic: str
    description: str
    action: str
    investigation: str
    origin: str


@cache
def load_signatures() -> tuple[Signature, ...]:
    """Return our signatures, the more telling ones first."""
    # The tests check each row: that takes as long as all else of a short report.
    table = _read_csv(read_table(SIGNATURES))
    rows = [{name: value for name, value in row.items() if value} for row in table]
    return tuple(convert(rows, list[Signature]))


@cache
def load_xids() -> Mapping[int, Xid]:
    """Return NVIDIA's catalogue of Xids by number."""
    rows = [convert(row, Xid, strict=False) for row in _read_csv(read_table(XIDS))]
    return {row.xid: row for row in rows}


def parse_signatures(
    data: bytes, *, base: Iterable[Signature] = (), toml: bool = False
) -> tuple[Signature, ...]:
    """Read a table of signatures, and lay it over another one.

    A row with the id of a row in ``base`` replaces those of its columns that the new row fills; it
    keeps its place. Other rows need an id and a regex, and come before those of ``base``: where
    several signatures match one line, the first of them names it.

    Args:
        data: CSV with a heading, or TOML with ``[[signature]]`` tables; the same columns.
        base: The signatures below.
        toml: Whether ``data`` is TOML.

    Raises:
        ParseError: The table cannot be read; or a pattern is not safe, or holds no fixed text,
            or does not match its own example, or matches its lookalike. The row is named.
    """
    if len(data) > MAX_TABLE:
        raise ParseError(f"a table of signatures has at most {MAX_TABLE >> 20} MiB")
    below = {signature.id: signature for signature in base}
    fresh: dict[str, Signature] = {}
    changed: dict[str, Signature] = {}
    for number, row in enumerate(_read_toml(data) if toml else _read_csv(data), 1):
        if number > MAX_ROWS:
            raise ParseError(f"a table of signatures has at most {MAX_ROWS} rows")
        signature = _make(number, row, below)
        if signature.id in fresh or signature.id in changed:
            raise ParseError(f"signature {signature.id}: the id is there twice")
        (changed if signature.id in below else fresh)[signature.id] = signature
    return (*fresh.values(), *(below | changed).values())


def _make(number: int, row: Mapping[str, Any], below: Mapping[str, Signature]) -> Signature:
    given = {name: value for name, value in row.items() if value not in ("", None)}
    name = str(given.get("id") or f"in row {number}")
    old = below.get(name)
    try:
        signature = convert({**(msgspec.to_builtins(old) if old else {}), **given}, Signature)
        # The example of the old pattern says nothing about a new one.
        if old and signature.regex != old.regex:
            own = {key: given.get(key, "") for key in ("example", "lookalike")}
            signature = msgspec.structs.replace(signature, **own)
        _check(signature)
    except (msgspec.ValidationError, ParseError) as problem:
        raise ParseError(f"signature {name}: {problem}") from None
    return signature


def _check(signature: Signature) -> None:
    check_pattern(signature.regex)
    find_literals(signature.regex)
    pattern = re.compile(signature.regex.encode())
    if signature.example and not pattern.search(signature.example.encode()):
        raise ParseError("the regex does not match the example")
    if signature.lookalike and pattern.search(signature.lookalike.encode()):
        raise ParseError("the regex matches the lookalike")


def _read_csv(data: bytes) -> list[dict[str, str]]:
    try:
        reader = csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as problem:
        raise ParseError(f"not a CSV table: {problem}") from None
    for row in rows:
        # A row that is longer than the heading.
        if None in row:
            raise ParseError(f"signature {row.get('id')}: more columns than the heading")
    return rows


def _read_toml(data: bytes) -> list[dict[str, Any]]:
    try:
        table = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as problem:
        raise ParseError(f"not a TOML file: {problem}") from None
    rows = table.pop("signature", [])
    if table or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ParseError(
            "a table of signatures in TOML holds [[signature]] tables and nothing else"
        )
    return rows
