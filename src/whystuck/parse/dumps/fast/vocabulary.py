"""The few different groups, ops and call sites that the many entries of dumps speak of.

Every entry repeats them, so that entries keep a number and this keeps the values.
"""

from __future__ import annotations

import marshal
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from whystuck.evidence.ops.collectives import NO_PEER, CallSite, Frame, GroupName, OpForm
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.dumps.fast.entry_templates import KnownTemplates

T = TypeVar("T", GroupName, OpForm, CallSite)

_PEERS = re.compile(r"(send|recv) (\d+)(->|<-)(\d+)")
# From this version on, marshal writes equal values as different bytes.
_MARSHAL_VERSION = 2


class RawForm(NamedTuple):
    """What an entry tells of its op, as it stands there."""

    profiling_name: Any
    input_sizes: Any
    output_sizes: Any
    input_dtypes: Any
    output_dtypes: Any


# Each rank of the largest job, with a comma and a blank.
_MAX_MEMBERS_TEXT = 8 * (MAX_RANK + 1)


class Vocabulary:
    """Gives equal values the same small number. One serves the dumps of many ranks."""

    def __init__(self) -> None:
        """Start with nothing known."""
        self.groups: list[GroupName] = []
        self.forms: list[OpForm] = []
        self.sites: list[CallSite] = []
        self.templates = KnownTemplates()
        self._number_by_raw_group: dict[tuple[str, str, str], int] = {}
        self._number_by_raw_form: dict[bytes, int] = {}
        self._number_by_value: dict[GroupName | OpForm | CallSite, int] = {}
        self._members_by_text: dict[str, tuple[int, ...]] = {}
        self._frames: dict[Frame, Frame] = {}

    def add_group(self, name: str, desc: str, ranks: object) -> int:
        """Number a group.

        Args:
            name: Its name.
            desc: Its description.
            ranks: Its members, as text such as ``[0, 1]`` or as numbers.

        Returns:
            Its number in `groups`.
        """
        # The text is the key: with thousands of ranks it is read once, not once for each rank.
        if not isinstance(ranks, str):
            ranks = str(sorted({int(rank) for rank in _as_list(ranks)}))
        key = (name, desc, ranks)
        number = self._number_by_raw_group.get(key)
        if number is None:
            number = self._add(GroupName(name, desc, self._read_members(ranks)), self.groups)
            self._number_by_raw_group[key] = number
        return number

    def add_form(self, raw: tuple[Any, ...]) -> int:
        """Number an op.

        Args:
            raw: The values of a `RawForm`.

        Returns:
            Its number in `forms`.
        """
        key = marshal.dumps(raw, _MARSHAL_VERSION)
        number = self._number_by_raw_form.get(key)
        if number is None:
            number = self._number_by_raw_form[key] = self._add(
                _read_form(RawForm(*raw)), self.forms
            )
        return number

    def add_site(self, frames: Sequence[Any]) -> int:
        """Number a call site.

        Args:
            frames: The frames of an entry, innermost first.

        Returns:
            Its number in `sites`.
        """
        return self._add(CallSite(tuple(map(self._read_frame, frames))), self.sites)

    def _read_frame(self, raw: Mapping[str, Any]) -> Frame:
        frame = Frame(_as_text(raw["name"]), _as_text(raw["filename"]), int(raw["line"]))
        return self._frames.setdefault(frame, frame)

    def _add(self, value: T, values: list[T]) -> int:
        number = self._number_by_value.get(value)
        if number is None:
            number = self._number_by_value[value] = len(values)
            values.append(value)
        return number

    def _read_members(self, text: str) -> tuple[int, ...]:
        members = self._members_by_text.get(text)
        if members is None:
            if len(text) > _MAX_MEMBERS_TEXT:
                raise ValueError("more members than any job has ranks")
            parts = text.strip("[] ").split(",")
            members = tuple(sorted({int(part) for part in parts if part.strip()}))
            if members and not 0 <= members[0] <= members[-1] <= MAX_RANK:
                raise ValueError("a rank is out of range")
            self._members_by_text[text] = members
        return members


def _as_text(value: object) -> str:
    """Return a text, or that of a number; the text of a container can be of any length."""
    if isinstance(value, str | int | float | None):
        return str(value)
    raise TypeError("a container in place of a text")


def _as_list(ranks: object) -> Sequence[Any]:
    return ranks if isinstance(ranks, list | tuple) else ()


def _read_form(raw: RawForm) -> OpForm:
    name = raw.profiling_name
    if not isinstance(name, str):
        raise TypeError("profiling_name is not a text")
    backend, colon, op = name.partition(":")
    if not colon:
        backend, op = "", name
    op, source, target = _read_peers(op)
    return OpForm(
        op=op,
        input_sizes=_read_sizes(raw.input_sizes or ()),
        output_sizes=_read_sizes(raw.output_sizes or ()),
        input_dtypes=tuple(str(dtype) for dtype in raw.input_dtypes or ()),
        output_dtypes=tuple(str(dtype) for dtype in raw.output_dtypes or ()),
        source=source,
        target=target,
        backend=backend,
    )


def _read_peers(op: str) -> tuple[str, int, int]:
    """Split ``send 0->3`` and ``recv 3<-0`` into the op and its two ends."""
    match = _PEERS.fullmatch(op)
    if match is None:
        return op, NO_PEER, NO_PEER
    first, second = int(match[2]), int(match[4])
    source, target = (first, second) if match[3] == "->" else (second, first)
    return match[1], source, target


def _read_sizes(sizes: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(extent) for extent in size) for size in sizes)
