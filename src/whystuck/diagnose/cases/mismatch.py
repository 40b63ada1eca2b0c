"""H105, H106 and H107: calls of a collective that differ, as torch's own check prints them.

With ``TORCH_DISTRIBUTED_DEBUG=DETAIL``, each rank compares its call with those of its peers before
it makes it, and prints both where they differ.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whystuck.diagnose.cases.parts import find_exceptions, find_time, is_said, place_exceptions
from whystuck.diagnose.log_view import LogView
from whystuck.diagnose.story import OWN, Case
from whystuck.evidence.live import PythonException
from whystuck.evidence.logs import LogEvent
from whystuck.evidence.ranks import MAX_RANK, name_ranks

_CALL = re.compile(
    r"Rank (?P<rank>\d{1,7}) is running (?:inconsistent )?collective: CollectiveFingerPrint\("
    r"(?:SequenceNumber=(?P<seq>\d{1,18}),? ?)?OpType=(?P<op>\w{1,40})"
    r"(?:, TensorShape=\[(?P<shape>[\d, ]{0,200})\])?(?:, TensorDtypes=(?P<dtype>\w{1,40}))?"
)


@dataclass(frozen=True)
class _Call:
    """One call of a collective, as its rank would have made it."""

    sequence: str
    op: str
    shape: str
    dtype: str


# What differs, in the order in which it is named: a call of another op has another shape as well.
_PARTS = (("H105", "op"), ("H106", "shape"), ("H107", "dtype"))


def make_mismatches(view: LogView) -> Iterator[Case]:
    """Make the case of ranks whose call differs from that of most others."""
    events = [event for event in view.list_signatures("c10d.mismatch") if is_said(event)]
    exceptions = find_exceptions(view, events, "H105")
    texts = [event.text for event in events] + [item.message for item in exceptions]
    calls = _read_calls(texts)
    for code, part in _PARTS:
        values = {rank: getattr(call, part) for rank, call in calls.items()}
        if len(set(values.values())) > 1:
            yield _make_case(code, part, values, calls, events, exceptions)
            return


def _read_calls(texts: Sequence[str]) -> dict[int, _Call]:
    calls: dict[int, _Call] = {}
    for text in texts:
        for match in _CALL.finditer(text):
            if int(match["rank"]) <= MAX_RANK:
                call = _Call(
                    match["seq"] or "", match["op"], match["shape"] or "", match["dtype"] or ""
                )
                calls.setdefault(int(match["rank"]), call)
    return calls


def _make_case(
    code: str,
    part: str,
    values: Mapping[int, str],
    calls: Mapping[int, _Call],
    events: Sequence[LogEvent],
    exceptions: Sequence[PythonException],
) -> Case:
    odd = _find_odd(values)
    usual = next(iter({value for rank, value in values.items() if rank not in odd}), "")
    words = {"op": "called {}", "shape": "gave a tensor of shape [{}]", "dtype": "gave {} values"}[
        part
    ]
    if odd:
        own = " and ".join(sorted({words.format(_write(values[rank])) for rank in odd}))
        summary = f"{name_ranks(odd)} {own} where the others {words.format(_write(usual))}"
    else:
        each = ", ".join(f"rank {rank}: {_write(value)}" for rank, value in sorted(values.items()))
        summary = f"ranks disagree about the {part} of a collective ({each})"
    own_errors = [item for item in exceptions if item.rank in odd] or list(exceptions)[:1]
    lines = sorted(events, key=lambda event: event.rank not in odd)
    return Case(
        code=code,
        summary=summary,
        tier=OWN,
        ranks=odd,
        victims=tuple(sorted(set(values) - set(odd))) if odd else (),
        lines=tuple(lines),
        exceptions=tuple(exceptions),
        where=place_exceptions(own_errors),
        time=find_time(events, exceptions),
        details=_describe(part, values, calls),
        scope=frozenset(values),
    )


def _find_odd(values: Mapping[int, str]) -> tuple[int, ...]:
    """Return the ranks that differ from most; none where no value is that of most."""
    counts = Counter(values.values()).most_common(2)
    usual, count = counts[0]
    if 2 * count <= len(values):
        return ()
    return tuple(sorted(rank for rank, value in values.items() if value != usual))


def _write(value: str) -> str:
    return value.strip("_").lower() if value.isupper() or "_" in value else value


def _describe(part: str, values: Mapping[int, str], calls: Mapping[int, _Call]) -> dict[str, Any]:
    numbers = {call.sequence for call in calls.values()} - {""}
    details: dict[str, Any] = {
        "ops": {str(rank): _write(call.op) for rank, call in sorted(calls.items())},
        "sequence": int(next(iter(numbers))) if len(numbers) == 1 else 0,
    }
    if part == "shape":
        details["shapes"] = {
            str(rank): [int(size) for size in value.split(",") if size.strip()]
            for rank, value in sorted(values.items())
        }
    elif part == "dtype":
        details["dtypes"] = {str(rank): value for rank, value in sorted(values.items())}
    return details
