"""``inspect.jsonl``: what was seen inside the tensors of one rank, one JSON line each."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field

import msgspec
import numpy as np

from whystuck.evidence.finding import Gap
from whystuck.evidence.ops.inspection import (
    Checksums,
    Inspection,
    NotFinite,
    OpResult,
    Said,
    ScalerUpdate,
    Shares,
    TensorSet,
)
from whystuck.parse.errors import ParseError
from whystuck.parse.ops.inspection_lines import (
    DECODER,
    VERSION,
    AmpLine,
    CallErrorLine,
    FullLine,
    GapLine,
    InLine,
    OutLine,
    ResultLine,
    SaidLine,
    SharesLine,
    StartLine,
    TensorsLine,
    WeightsLine,
)

MAX_LINES = 1_000_000
_SUM_BYTES = 8
_SUMMED = ("count", "counted", "nan", "inf", "subnormal", "saturated", "zero")


@dataclass
class _Reader:
    rank: int
    artifact: str
    spec: str = ""
    generation: int = 0
    ops: int = 0
    is_full: bool = False
    not_finite: list[NotFinite] = field(default_factory=list)
    checksums: list[Checksums] = field(default_factory=list)
    scaler: list[ScalerUpdate] = field(default_factory=list)
    results: list[OpResult] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    _shares: dict[tuple[int, str, str, str, str], SharesLine] = field(default_factory=dict)
    _sets: dict[tuple[int, int], TensorSet] = field(default_factory=dict)
    _last: dict[int, Checksums] = field(default_factory=dict)

    def take(self, line: object, row: int) -> None:
        """Take one line; raises ParseError when it contradicts an earlier one."""
        if isinstance(line, InLine | OutLine):
            self._take_op(line, row)
        elif isinstance(line, SharesLine):
            # Sums since inspection was switched on: the last ones tell all.
            kind = line.side, line.name, line.group, line.dtype
            self._shares[(self.generation, *kind)] = line
        elif isinstance(line, ResultLine):
            self._take_result(line, row)
        elif isinstance(line, WeightsLine):
            self._take_weights(line, row)
        elif isinstance(line, TensorsLine):
            self._take_tensors(line)
        elif isinstance(line, StartLine):
            if line.version != VERSION:
                raise ParseError(f"it is of version {line.version}; this whystuck reads {VERSION}")
            self.spec, self.generation = line.spec, line.generation
            self._last.clear()
        else:
            self._take_other(line, row)

    def _take_other(self, line: object, row: int) -> None:
        if isinstance(line, AmpLine):
            self.scaler.append(
                ScalerUpdate(
                    rank=self.rank,
                    step=line.step,
                    scale=line.scale,
                    is_skipped=line.skipped,
                    first_op=line.first_op,
                    last_op=line.last_op,
                    updates=line.updates,
                    skips=line.skips,
                    source=line.source,
                    series=line.series,
                    init=line.init,
                    generation=self.generation,
                    artifact=self.artifact,
                    row=row,
                )
            )
        elif isinstance(line, SaidLine):
            self.said.append(
                Said(
                    self.rank, line.call, line.text, line.name, line.group, line.seq, line.step,
                    self.artifact, row,
                )
            )  # fmt: skip
        elif isinstance(line, GapLine):
            self.gaps.append(Gap(self.rank, f"complete figures of {line.name}", line.reason))
        elif isinstance(line, CallErrorLine):
            self.gaps.append(Gap(self.rank, f"the check {line.call}", line.text))
        elif isinstance(line, FullLine):
            self.is_full = True
            reason = f"the file has reached {line.limit_bytes >> 20} MiB"
            self.gaps.append(Gap(self.rank, "inspection of later steps", reason))

    def _take_op(self, line: InLine | OutLine, row: int) -> None:
        side = "in" if isinstance(line, InLine) else "out"
        self.ops += 1
        bad = next((tensor for tensor in line.tensors if tensor.nan or tensor.inf), None)
        if bad is None:
            return
        self.not_finite.append(
            NotFinite(
                rank=self.rank,
                side=side,
                number=line.op,
                name=line.name,
                group=line.group,
                seq=line.seq,
                step=line.step,
                place=bad.place,
                shape=tuple(bad.shape),
                dtype=bad.dtype,
                nan=bad.nan,
                inf=bad.inf,
                peer=-1 if line.peer is None else line.peer,
                passed=line.passed,
                received=line.received,
                time_ns=line.time_ns,
                artifact=self.artifact,
                row=row,
            )
        )

    def list_shares(self) -> tuple[Shares, ...]:
        """Return the sums over all times that inspection was on."""
        found: dict[tuple[str, str, str, str], list[int]] = {}
        for (_, *kind), line in self._shares.items():
            side, name, group, dtype = kind
            sums = found.setdefault((side, name, group, dtype), [0] * len(_SUMMED))
            for place, field_name in enumerate(_SUMMED):
                sums[place] += getattr(line, field_name)
        return tuple(Shares(self.rank, *kind, *sums) for kind, sums in sorted(found.items()))

    def _take_result(self, line: ResultLine, row: int) -> None:
        self.results.append(
            OpResult(
                rank=self.rank,
                number=line.op,
                name=line.name,
                group=line.group,
                seq=line.seq,
                step=line.step,
                shape=tuple(line.shape),
                dtype=line.dtype,
                checksum=int(line.sum, 16),
                artifact=self.artifact,
                row=row,
            )
        )

    def _take_tensors(self, line: TensorsLine) -> None:
        if not len(line.names) == len(line.shapes) == len(line.dtypes):
            raise ParseError("names, shapes and types are not as many")
        self._sets[line.opt, line.set] = TensorSet(
            tuple(line.names), tuple(tuple(shape) for shape in line.shapes), tuple(line.dtypes)
        )

    def _take_weights(self, line: WeightsLine, row: int) -> None:
        tensors = self._sets.get((line.opt, line.set))
        if tensors is None:
            raise ParseError("checksums of unknown tensors")
        if line.same:
            last = self._last.get(line.opt)
            if last is None or last.tensors is not tensors:
                raise ParseError("checksums that are as unknown ones")
            sums = last.sums
        else:
            sums = _unpack(line.sums, len(tensors.names))
        made = Checksums(
            rank=self.rank,
            generation=self.generation,
            optimizer=line.opt,
            step=line.step,
            when=line.when,
            tensors=tensors,
            sums=sums,
            artifact=self.artifact,
            row=row,
        )
        self.checksums.append(made)
        if line.when == "after":
            self._last[line.opt] = made


def _unpack(text: str, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ParseError("checksums that are no base64") from error
    if len(data) != _SUM_BYTES * count:
        raise ParseError("checksums are not as many as tensors")
    return np.frombuffer(data, dtype="<u8").astype(np.uint64)


def parse_inspection(
    data: bytes, *, rank: int, artifact: str
) -> tuple[Inspection, tuple[Gap, ...]]:
    """Read ``inspect.jsonl`` of a rank.

    Args:
        data: The file; its last line may be cut off, as the rank may have been writing it.
        rank: Whose it is.
        artifact: What to cite.

    Returns:
        What was seen, and gaps for what could not be seen or read.

    Raises:
        ParseError: It is no such file.
    """
    lines = data.split(b"\n", MAX_LINES)
    if len(lines) > MAX_LINES:
        raise ParseError(f"it has more than {MAX_LINES} lines")
    reader = _Reader(rank, artifact)
    bad = 0
    reason = ""
    for row, text in enumerate(lines[:-1]):
        try:
            reader.take(DECODER.decode(text), row)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ParseError) as error:
            bad += 1
            reason = reason or f"line {row + 1}: {str(error)[:120]}"
    if bad and bad == len(lines) - 1:
        raise ParseError(f"no line can be read ({reason})")
    if bad:
        reader.gaps.append(Gap(rank, f"{bad} lines of {artifact}", reason))
    made = Inspection(
        rank=rank,
        spec=reader.spec,
        ops=reader.ops,
        not_finite=tuple(reader.not_finite),
        checksums=tuple(reader.checksums),
        scaler=tuple(reader.scaler),
        results=tuple(reader.results),
        shares=reader.list_shares(),
        said=tuple(reader.said),
        is_full=reader.is_full,
    )
    return made, tuple(reader.gaps)
