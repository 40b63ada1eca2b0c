"""The lines of ``inspect.jsonl``, each by its kind."""

from __future__ import annotations

from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta

from whystuck.evidence.decoding import json_decoder

VERSION = 1
MAX_TENSORS = 1_000_000
MAX_PEERS = 1_000_000
_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Rank = Annotated[int, Meta(ge=-1, le=2**63 - 1)]
_Name = Annotated[str, Meta(max_length=4096)]
_Shape = Annotated[list[_Count], Meta(max_length=64)]


class _Line(msgspec.Struct, tag_field="kind"):
    """A line; fields that are not named here are passed over."""


class StartLine(_Line, tag="start"):
    """When inspection began, and by which SPEC."""

    spec: str = ""
    generation: _Count = 0
    version: int = VERSION


class _Tensor(msgspec.Struct):
    place: _Count
    shape: _Shape
    dtype: _Name
    nan: _Count = 0
    inf: _Count = 0


class _OpLine(_Line):
    op: _Count
    name: _Name
    group: _Name
    seq: _Count
    step: _Count
    time_ns: _Count = 0
    peer: _Count | None = None
    passed: _Count = 0
    received: Annotated[dict[_Rank, _Count], Meta(max_length=MAX_PEERS)] = {}
    tensors: list[_Tensor] = []


class InLine(_OpLine, tag="in"):
    """What a rank gave to an op."""


class OutLine(_OpLine, tag="out"):
    """What a rank got from an op."""


class ResultLine(_OpLine, tag="result", kw_only=True):
    """A checksum of what all members of a group got."""

    sum: Annotated[str, Meta(pattern="^[0-9a-f]{16}$")]
    shape: _Shape = []
    dtype: _Name = ""


class SharesLine(_Line, tag="shares"):
    """Sums over the tensors of a kind of op."""

    side: _Name
    name: _Name
    group: _Name
    dtype: _Name
    count: _Count
    counted: _Count = 0
    nan: _Count = 0
    inf: _Count = 0
    subnormal: _Count = 0
    saturated: _Count = 0
    zero: _Count = 0


class TensorsLine(_Line, tag="tensors"):
    """Tensors of an optimizer, by number."""

    opt: _Count
    set: _Count
    names: Annotated[list[_Name], Meta(max_length=MAX_TENSORS)]
    shapes: Annotated[list[_Shape], Meta(max_length=MAX_TENSORS)]
    dtypes: Annotated[list[_Name], Meta(max_length=MAX_TENSORS)]


class WeightsLine(_Line, tag="weights"):
    """Checksums of weights."""

    opt: _Count
    set: _Count
    step: _Count
    when: str
    sums: str = ""
    same: bool = False


class AmpLine(_Line, tag="amp"):
    """An update that a scaler made or skipped."""

    step: _Count
    skipped: bool
    scale: float | None = None
    init: float | None = None
    source: _Name = "scaler"
    series: _Count = 0
    updates: _Count = 0
    skips: _Count = 0
    first_op: _Count = 0
    last_op: _Count = 0


class SaidLine(_Line, tag="said"):
    """What a check of the user said."""

    call: _Name
    text: _Name
    name: _Name
    group: _Name
    seq: _Count
    step: _Count


class GapLine(_Line, tag="gap"):
    """What could not be seen, and why."""

    name: _Name
    reason: _Name


class CallErrorLine(_Line, tag="call-error"):
    """A check of the user that failed."""

    call: _Name
    text: _Name


class FullLine(_Line, tag="full"):
    """The file has no more room."""

    limit_bytes: _Count = 0


_AnyLine = (
    StartLine
    | InLine
    | OutLine
    | ResultLine
    | SharesLine
    | TensorsLine
    | WeightsLine
    | AmpLine
    | SaidLine
    | GapLine
    | CallErrorLine
    | FullLine
)
DECODER: msgspec.json.Decoder[Any] = json_decoder(cast("Any", _AnyLine))
