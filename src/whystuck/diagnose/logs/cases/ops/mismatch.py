"""H102, H105, H106 and H107 as torch itself tells them, with TORCH_DISTRIBUTED_DEBUG=DETAIL."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import find_byte_counts, is_size_complaint
from whystuck.diagnose.logs.cases.ops.agreement import find_values, is_majority
from whystuck.diagnose.logs.cases.parts import find_time, is_said, list_ranks, place_exceptions
from whystuck.diagnose.logs.cases.transfers.told_shapes import OddShapes, find_odd_shapes
from whystuck.diagnose.logs.cases.transfers.told_types import OddTypes, find_odd_types
from whystuck.diagnose.logs.story import OWN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.live import PythonException
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_RUNS = re.compile(
    r"Rank (\d+) is running (?:inconsistent )?collective: CollectiveFingerPrint\("
    r"(?:SequenceNumber=(\d+)(?:, )?)?OpType=(\w+)(?:, TensorShape=(\[[\d, ]*\]))?"
    r"(?:, TensorDtypes=(\w+))?"
)
# What torch, and what the transports of NCCL and HCCL say.
_SIGNATURES = ("c10d.mismatch", "nccl.size_mismatch", "hccl.mismatch")
_MAX_SHOWN = 4
_HCCL_CALL = re.compile(
    r"(?:OPS|HCCL) function error: .{0,120}\bHccl\w{3,40}.{0,40}, error code is \d"
)
# What HCCL calls the op in its comparison of two calls.
_HCCL_OP = {"tag", "opType", "cmdType", "op"}
_WORDS = {
    codes.EXTRA_COLLECTIVE: "number",
    codes.OP_MISMATCH: "op",
    codes.SHAPE_MISMATCH: "shape",
    codes.DTYPE_MISMATCH: "type",
}


@dataclass(frozen=True)
class _Call:
    """What one rank called, as torch prints it."""

    sequence: str
    op: str
    shape: str
    dtype: str


def make_mismatches(view: LogView) -> Iterator[Case]:
    """Make the case of ranks whose call differs from that of most others."""
    events = [event for event in view.list_signatures(*_SIGNATURES) if is_said(event)]
    raised = [item for item in view.exceptions if _RUNS.search(item.message)]
    calls: dict[int, _Call] = {}
    for text in (*(event.text for event in events), *(item.message for item in raised)):
        for match in _RUNS.finditer(text):
            calls.setdefault(int(match[1]), _Call(*(part or "" for part in match.groups()[1:])))
    if len(set(calls.values())) < 2:  # noqa: PLR2004 - two calls differ
        yield from _make_warning(view)
        yield from _make_complaint(view, events)
        return
    code = _name_code(set(calls.values()))
    texts = [*(event.text for event in events), *(item.message for item in raised)]
    ranks = _find_odd(view, texts, {rank: _pick(call, code) for rank, call in calls.items()})
    own = tuple(item for item in raised if item.rank in ranks) or tuple(raised)
    who = name_ranks(ranks) if ranks else name_ranks(calls)
    told = ", ".join(f"rank {rank}: {_show(call)}" for rank, call in sorted(calls.items())[:4])
    yield Case(
        code=code,
        summary=f"{who} called a collective with another {_WORDS[code]} than the others ({told})",
        tier=OWN,
        ranks=ranks,
        victims=tuple(sorted(view.ranks - set(ranks))) if ranks else (),
        lines=tuple(sorted(events, key=lambda event: event.rank not in ranks)),
        exceptions=own,
        where=place_exceptions(_choose(own)),
        time=find_time(events, raised),
        confidence=Confidence.LIKELY if ranks else Confidence.POSSIBLE,
        details={
            "group": "",
            "sequence": int(next(iter(calls.values())).sequence[:18] or 0),
            "ops": {str(rank): call.op.lower() for rank, call in calls.items()},
            **_describe(code, calls),
        },
        scope=frozenset(calls),
    )


def _find_odd(view: LogView, texts: Sequence[str], shown: Mapping[int, str]) -> tuple[int, ...]:
    """Return the few ranks whose call differs from that of the most; none where that is open."""
    common, most = Counter(shown.values()).most_common(1)[0]
    # One against one may be either's mistake.
    odd = [rank for rank, value in shown.items() if value != common]
    if most > 1 and len(odd) < most:
        return tuple(sorted(odd))
    values = find_values(view, texts, shown)
    if values is None:
        return ()
    common = Counter(values.values()).most_common(1)[0][0]
    odd = [rank for rank, value in values.items() if value != common]
    return tuple(sorted(odd)) if is_majority(view, values, common) else ()


def list_complaining(view: LogView, raised: Mapping[int, PythonException]) -> frozenset[int]:
    """List the ranks whose transport got another number of bytes than it expected; -1 for unknown.

    Where that ends the rank by an abort, only its log says so.
    """
    told = view.list_signatures(*_SIGNATURES)
    found = {event.rank for event in told if event.role == "cause"}
    return frozenset(found | {rank for rank, item in raised.items() if is_size_complaint(item)})


def _make_warning(view: LogView) -> Iterator[Case]:
    """Make the case of calls that NCCL says to differ; it names one of those that disagree."""
    events = [event for event in view.list_signatures("nccl.mismatch") if is_said(event)]
    if not events:
        return
    near = sorted({event.groups["r"] for event in events}, key=int)
    yield Case(
        code=codes.OP_MISMATCH,
        summary="ranks of a communicator made different calls: NCCL says so of rank "
        f"{' and '.join(near)} in it and its neighbours",
        tier=OWN,
        lines=tuple(events),
        time=find_time(events),
        details={"group": "", "sequence": 0, "ops": {}},
        remedies=("export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=COLL   # for the next run: its calls",),
        scope=view.ranks,
    )


def _make_complaint(view: LogView, events: list[LogEvent]) -> Iterator[Case]:
    """Make the case of a message of another size than its receiver expected.

    Whose call is wrong, the size or the op of it, is not known from that: nobody is blamed.
    """
    told = [event for event in events if "DISTRIBUTED_DEBUG" not in event.text]
    raised = tuple(item for item in view.exceptions if is_size_complaint(item))
    texts = [*(event.text for event in told), *(item.message for item in raised)]
    if not texts or any(_RUNS.search(text) for text in texts):
        return
    ranks = sorted({*list_ranks(told), *(item.rank for item in raised)} - {-1})
    counts = next((found for text in texts if (found := find_byte_counts(text))), None)
    counts = counts or _find_sizes(told)
    got = (
        f"{counts[0]} bytes where {counts[1]} were expected"
        if counts
        else "other bytes than were expected"
    )
    whats = {event.groups.get("what") or event.groups.get("what2") or "" for event in told}
    code = codes.OP_MISMATCH if whats & _HCCL_OP else codes.SHAPE_MISMATCH
    odd = find_odd_shapes(view, counts) if counts and code == codes.SHAPE_MISMATCH else None
    if counts and odd is None and code == codes.SHAPE_MISMATCH:
        types = find_odd_types(view, counts)
        if types is not None:
            yield _tell_types(view, types, f"{_name(ranks)} met {got}", told, raised)
            return
    shapes = {str(rank): list(shape) for rank, shape in odd.shapes.items()} if odd else {}
    met = f"{_name(ranks)} met {got}"
    yield Case(
        code=code,
        summary=f"{name_ranks(odd.ranks)} gave a tensor of another size to a collective than the "
        f"others ({_show_shapes(odd)}): {met}"
        if odd
        else f"{met}: ranks gave tensors of different size to one collective, or are in different "
        "collectives",
        tier=OWN,
        ranks=odd.ranks if odd else (),
        lines=(*told, *(odd.lines if odd else ())),
        exceptions=raised,
        victims=tuple(rank for rank in ranks if not odd or rank not in odd.ranks),
        time=find_time(told, raised),
        # HCCL compares the calls themselves; a transport may as well meet that of another op.
        confidence=Confidence.LIKELY if odd or whats - {""} else Confidence.POSSIBLE,
        details={"group": "", "sequence": 0, "ops": {}, "shapes": shapes}
        | ({"bytes": list(counts)} if counts else {}),
        scope=frozenset(ranks) | view.ranks if odd else frozenset(ranks),
        entails=_list_refused(view) if whats - {""} else (),
    )


def _list_refused(view: LogView) -> tuple[LogEvent, ...]:
    """Return the lines of what torch_npu raises as HCCL refused a call, whatever the reason."""
    found = (*view.list_events(codes.PYTHON_EXCEPTION, "cause"), *view.list_signatures("hccl.peer"))
    return tuple(event for event in found if _HCCL_CALL.search(event.text))


def _name(ranks: Sequence[int]) -> str:
    return name_ranks(ranks) if ranks else "a rank"


def _tell_types(
    view: LogView,
    odd: OddTypes,
    met: str,
    told: Sequence[LogEvent],
    raised: tuple[PythonException, ...],
) -> Case:
    """Make the case of few ranks whose tensor has another type; of two ranks, either may be odd."""
    size = max((file.world_size for file in view.files), default=0)
    ranks = odd.ranks if size != 2 * len(odd.ranks) else ()
    says = "by the source that is shown" if odd.is_source else "by what ranks print"
    return Case(
        code=codes.DTYPE_MISMATCH,
        summary=f"{name_ranks(odd.ranks)} gave a tensor of type {odd.own} to a collective, and the "
        f"others {odd.rest}, {says}: {met}",
        tier=OWN,
        ranks=ranks,
        lines=(*told, *odd.lines),
        exceptions=raised,
        victims=tuple(sorted(view.ranks - set(ranks))) if ranks else (),
        time=find_time(told, raised),
        confidence=Confidence.LIKELY if ranks else Confidence.POSSIBLE,
        details={
            "group": "",
            "sequence": 0,
            "ops": {},
            "dtypes": {str(rank): odd.own for rank in odd.ranks},
        },
        scope=frozenset(odd.ranks) | view.ranks,
    )


def _show_shapes(odd: OddShapes) -> str:
    shown = (*odd.ranks, *(rank for rank in odd.shapes if rank not in odd.ranks))[:_MAX_SHOWN]
    return ", ".join(f"rank {rank}: {list(odd.shapes[rank])}" for rank in shown)


def _find_sizes(events: list[LogEvent]) -> tuple[int, int] | None:
    """Return the bytes that NCCL met and those that it expected."""
    for event in events:
        got = event.groups.get("got") or event.groups.get("got2")
        wanted = event.groups.get("wanted") or event.groups.get("wanted2")
        if got and wanted:
            return int(got), int(wanted)
    return None


def _name_code(calls: set[_Call]) -> str:
    if len({call.op for call in calls}) > 1:
        return codes.OP_MISMATCH
    if len({call.shape for call in calls}) > 1:
        return codes.SHAPE_MISMATCH
    return (
        codes.DTYPE_MISMATCH if len({call.dtype for call in calls}) > 1 else codes.EXTRA_COLLECTIVE
    )


def _describe(code: str, calls: Mapping[int, _Call]) -> dict[str, Any]:
    if code == codes.EXTRA_COLLECTIVE:
        return {}
    if code == codes.DTYPE_MISMATCH:
        return {"dtypes": {str(rank): call.dtype for rank, call in calls.items()}}
    sizes = {rank: re.findall(r"\d{1,18}", call.shape) for rank, call in calls.items()}
    return {"shapes": {str(rank): [int(size) for size in found] for rank, found in sizes.items()}}


def _pick(call: _Call, code: str) -> str:
    return {
        codes.EXTRA_COLLECTIVE: call.sequence,
        codes.OP_MISMATCH: call.op,
        codes.SHAPE_MISMATCH: call.shape,
    }.get(code, call.dtype)


def _choose(raised: tuple[PythonException, ...]) -> list[PythonException]:
    return [item for item in raised if item.frames][:1]


def _show(call: _Call) -> str:
    return f"{call.op.lower()} {call.sequence} {call.shape}".replace("  ", " ").strip()
