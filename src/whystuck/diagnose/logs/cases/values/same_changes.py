"""V501 by sums that differ among ranks and change alike: other weights, and the same gradients."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.story import OWN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6
_LEAST_RANKS = 3
# In units of the last digit: what rounding adds to a change, and what a change and a difference
# must be more than.
_ROUNDED, _CLEAR = 2.5, 10.0
# Names of weights; clocks and counters of ranks differ and change alike where all is well.
_WEIGHTS = re.compile(
    r"lora|weight|bias|param|embed|proj|adapter|head|layer|conv|linear|fc\d|wte|wpe|kernel"
    r"|(?:^|[._])[wW](?:$|[._\d])"
)
_OTHERS = re.compile(
    r"time|elapsed|second|dur|(?:^|_)ms$|wait|tok|sampl|count|num_|step|loss|mem|bytes|grad",
    re.IGNORECASE,
)
# rank -> value and line, of a step
_Told = dict[int, tuple[str, LogEvent]]
_Steps = dict[str, _Told]


def make_same_changes(view: LogView) -> Iterator[Case]:
    """Make the case of ranks that change other weights by the same amount.

    Ranks that get the same gradients hold copies of one model: shards change each in its own way.
    Copies that differ and change alike began with other values, and keep their difference.
    """
    for (_, name), steps in _list_sums(view).items():
        pair = next(
            (pair for pair in pairwise(steps) if _change_alike(steps[pair[0]], steps[pair[1]])),
            None,
        )
        if pair is None:
            continue
        first, last = steps[pair[0]], steps[pair[1]]
        events = [event for told in (first, last) for _, (_, event) in sorted(told.items())[:3]]
        yield Case(
            code=codes.WEIGHTS_DIVERGED,
            summary=f"{name} differs among ranks since step {pair[0]} and changes alike on all of "
            "them: they began with other values and apply the same gradients",
            tier=OWN - 1,
            lines=tuple(events[:_MAX_LINES]),
            time=find_time(events),
            confidence=Confidence.LIKELY,
            details={"step": int(float(pair[0])), "tensors": [name]},
            remedies=(
                (
                    "broadcast what is made after the model was wrapped, or seed all ranks alike "
                    "before it: `torch.distributed.broadcast(p.data, 0)` for each parameter"
                ),
            ),
            scope=view.ranks,
        )
        return


def _list_sums(view: LogView) -> dict[tuple[str, str], _Steps]:
    found: dict[tuple[str, str], _Steps] = {}
    for event in view.list_signatures("table.own_sum"):
        own = int(event.groups["own"])
        own = event.rank if own < 0 else own
        names, values = event.groups["names"].split(), event.groups["values"].split()
        for name, value in zip(names, values, strict=True):
            if not _WEIGHTS.search(name) or _OTHERS.search(name):
                continue
            steps = found.setdefault((event.artifact, name), {})
            if own >= 0:
                steps.setdefault(event.groups["step"], {})[own] = value, event
    return found


def _change_alike(first: _Told, last: _Told) -> bool:
    """Return whether all ranks differ, and change by one amount that is no rounding."""
    if len(first) < _LEAST_RANKS or set(first) != set(last):
        return False
    unit = 10.0 ** -min(len(value.rpartition(".")[2]) for value, _ in first.values())
    begun = {rank: float(value) for rank, (value, _) in first.items()}
    changes = [float(value) - begun[rank] for rank, (value, _) in last.items()]
    is_apart = all(later - one > _CLEAR * unit for one, later in pairwise(sorted(begun.values())))
    is_alike = max(changes) - min(changes) <= _ROUNDED * unit
    return is_apart and is_alike and min(map(abs, changes)) > _CLEAR * unit
