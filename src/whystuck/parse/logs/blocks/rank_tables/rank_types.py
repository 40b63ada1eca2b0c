"""Types of tensors that ranks have: by source that people show, and by what ranks print.

`dtype=torch.int64 if rank == 1 else torch.int32`, the same as blocks of `if`, and lines such as
`rank 1: t.dtype torch.int64`. Only texts of the size that people paste are looked through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine, parse_line

_MAX_NOTES = 64
_MAX_BLOCK = 12
_MAX_WIDTH = 300
_TYPES = (
    r"(?:torch|np|numpy|jnp)\.(?P<NAME>bool|u?int(?:8|16|32|64)|b?float(?:16|32|64)|half|double"
    r"|float|long|short|int)\b(?!\()"
)
_TYPE = re.compile(_TYPES.replace("NAME", "type"))
# `t.long()`, `torch.LongTensor([n])`
_METHOD = re.compile(r"\.(?P<type>half|bfloat16|float|double|long|int|short|bool)\(\)")
_CLASS = re.compile(r"\b(?P<type>Half|BFloat16|Float|Double|Long|Int|Short|Byte|Bool)Tensor\(")
# `rank == 1`, `dist.get_rank() != 0`; the rank in a host says less.
_TEST = (
    r"(?<![\w.])(?:[a-z_]\w{0,40}\.){0,3}(?:get_)?(?:global_|world_)?rank(?:\(\))? ?"
    r"(?P<how>==|!=) ?(?P<rank>\d{1,7})"
)
_IF = re.compile(rf"^(?P<indent>[\s|>]{{0,60}})if {_TEST} ?:(?P<body>.{{0,200}})$", re.IGNORECASE)
_ELSE = re.compile(r"^(?P<indent>[\s|>]{0,60})else ?:(?P<body>.{0,200})$")
_TERNARY = re.compile(
    rf"(?P<one>[\w.()\[\], =]{{3,120}}) if {_TEST} else (?P<other>[\w.()\[\], =]{{3,120}})",
    re.IGNORECASE,
)
_TARGET = re.compile(r"^\s*([A-Za-z_][\w.]{0,60}) ?= ?\S")
# What is called a type needs no module before it: `dtype=bf16`.
_SHOWN = (
    rf"(?:(?:\bdtype[ =:(]{{1,3}}|\s|[(\[,:=]){_TYPES.replace('NAME', 'type')}"
    r"|\bdtypes?['\"]?[ =:(]{1,3}['\"]?(?P<bare>bool|u?int(?:8|16|32|64)|b?float(?:16|32|64)"
    r"|bf16|fp(?:16|32|64))\b)"
)
_PRINTED = re.compile(
    rf"(?<![a-z_])rank[ :=_#]{{0,2}}(?P<rank>\d{{1,7}})\b.{{0,200}}?{_SHOWN}", re.IGNORECASE
)
# In a line of which a prefix of another form tells the rank; source in tracebacks is indented.
_OWN = re.compile(rf"^\S.{{0,200}}?{_SHOWN}", re.IGNORECASE)
# A number before the text of a listing.
_NUMBER = re.compile(r"^\s{0,8}\d{1,6}(?:[:|]|\s)(?=\s)")
_HINT = re.compile(
    rb"if [\w.]{0,80}rank(?:\(\))? ?[!=]=|\b(?:torch|np|numpy|jnp)\."
    rb"(?:bool|u?int|b?float|half|double|long|short)|\bdtypes?['\"]?[ =:(]",
    re.IGNORECASE,
)
# The same types by other names.
_NAMES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "long": "int64",
    "int": "int32",
    "short": "int16",
    "byte": "uint8",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
}


def find_rank_types(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find what a text says of the types that ranks give.

    Args:
        data: The text.
        row: The number of its first line.
    """
    if _HINT.search(data) is None:
        return
    lines = [one[:_MAX_WIDTH] for one in data.decode("utf-8", errors="replace").split("\n")]
    found = 0
    for at, line in enumerate(lines):
        if found >= _MAX_NOTES:
            return
        groups: dict[str, str] = {}
        if "ank" in line.lower():
            groups = _read_ternary(line) or _read_block(lines, at) or _read_printed(line)
        groups = groups or _read_marked(line)
        if groups and int(groups["own"]) <= MAX_RANK:
            found += 1
            yield TabledSeen("table.rank_type", row + at, LogLine(line.strip()), groups)


def _read_ternary(line: str) -> dict[str, str]:
    match = _TERNARY.search(line)
    if match is None or "#" in line[: match.start()]:
        return {}
    return _tell(match, _find_type(match["one"]), _find_type(match["other"]))


def _read_block(lines: Sequence[str], at: int) -> dict[str, str]:
    """Read the two branches of a condition on the rank, which give one name two types."""
    head = _IF.match(_NUMBER.sub("", lines[at]))
    if head is None:
        return {}
    branches: list[dict[str, str]] = [{}]
    _take_statement(branches[0], head["body"])
    for line in lines[at + 1 : at + 1 + _MAX_BLOCK]:
        text = _NUMBER.sub("", line)
        begun = _ELSE.match(text)
        if begun and begun["indent"] == head["indent"] and len(branches) == 1:
            branches.append({})
            _take_statement(branches[1], begun["body"])
        elif text.strip() and len(text) - len(text.lstrip()) <= len(head["indent"]):
            break
        else:
            _take_statement(branches[-1], text)
    if len(branches) == 1:
        return {}
    both = [name for name in branches[0] if name in branches[1]]
    odd = [name for name in both if branches[0][name] != branches[1][name]]
    return _tell(head, branches[0][odd[0]], branches[1][odd[0]]) if len(odd) == 1 else {}


def _take_statement(types: dict[str, str], text: str) -> None:
    """Note the type that a statement gives a name."""
    code = text.partition("#")[0]
    target, kind = _TARGET.match(code), _find_type(code)
    if target and kind:
        types[target[1]] = kind


def _tell(test: re.Match[str], one: str, other: str) -> dict[str, str]:
    if not one or not other or one == other:
        return {}
    own, rest = (one, other) if test["how"] == "==" else (other, one)
    return {"own": test["rank"], "type": own, "rest": rest}


def _read_printed(line: str) -> dict[str, str]:
    match = _PRINTED.search(line)
    return _tell_own(match["rank"], match) if match else {}


def _read_marked(line: str) -> dict[str, str]:
    """Read a line whose rank stands before it in any form: `[r2]`, `[1,2]<stdout>:`."""
    if "torch." not in line and "type" not in line and "np." not in line:
        return {}
    told = parse_line(line.encode())
    match = _OWN.match(told.text) if told.writer >= 0 else None
    return _tell_own(str(told.writer), match) if match else {}


def _tell_own(rank: str, match: re.Match[str]) -> dict[str, str]:
    return {"own": rank, "type": _simplify(match["type"] or match["bare"]), "rest": ""}


def _find_type(text: str) -> str:
    """Return the one type that a piece of source names, empty where it names none or several."""
    found = {
        _simplify(match["type"])
        for pattern in (_TYPE, _METHOD, _CLASS)
        for match in pattern.finditer(text)
    }
    return found.pop() if len(found) == 1 else ""


def _simplify(name: str) -> str:
    return _NAMES.get(name.lower(), name.lower())
