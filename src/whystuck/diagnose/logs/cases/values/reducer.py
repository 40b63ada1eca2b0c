"""C213 reducer-error: parameters that DistributedDataParallel did not reduce, or reduced twice."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import name_known
from whystuck.diagnose.algorithms.failures.rendezvous import is_number
from whystuck.diagnose.algorithms.stacks.frames import describe_place
from whystuck.diagnose.logs.cases.parts import find_time, is_said, list_victims, place_exceptions
from whystuck.diagnose.logs.story import OWN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.live import PythonException
from whystuck.evidence.logs.lines import LogEvent
from whystuck.evidence.ranks import name_ranks

_UNUSED, _TWICE, _SHAPES = "unused", "ready-twice", "different-models"
_KINDS = (
    (
        _UNUSED,
        re.compile(
            r"Expected to have finished reduction|did not receive grad"
            r"|not used in producing|has not been issued for this bucket"
        ),
    ),
    (_TWICE, re.compile(r"mark a variable ready only once|marked as ready twice")),
    (_SHAPES, re.compile(r"DDP expects same model|appears not to match")),
)
_NAMES = re.compile(r"Parameters which did not receive grad for rank (\d{1,7}): (\S.*)")
_INDICES = re.compile(
    r"Parameter indices which did not receive grad for rank (\d{1,7}): (\d[\d ]*)"
)
_TWICE_NAME = re.compile(r"Parameter at index (\d{1,7})(?: with name (\S+))? has been marked")
_COUNTS = re.compile(
    r"Rank (\d{1,7}) has (\d+) params, while rank (\d{1,7}) has inconsistent (\d+)"
)
_SIZES = re.compile(
    r"\[(\d{1,7})\]: params\[(\d{1,7})\] in this process with (?:sizes|strides) (\[[^\]]*\])"
)
_SHOWN = 4
_MAX_LINES = 6


@dataclass
class _Told:
    """All that ranks say of one kind of trouble."""

    events: list[LogEvent] = field(default_factory=list)
    # Lines that only stand below an error, which a wrapper may have put into other words.
    parts: list[LogEvent] = field(default_factory=list)
    exceptions: list[PythonException] = field(default_factory=list)
    ranks: set[int] = field(default_factory=set)
    params: dict[int, tuple[str, ...]] = field(default_factory=dict)
    indices: dict[int, tuple[int, ...]] = field(default_factory=dict)
    # What a rank has in place of what the others have: a number of parameters, or a size.
    has: dict[int, str] = field(default_factory=dict)
    # A complaint of numbers of parameters, and the last rank of which one tells that it is the
    # first to have another number than so.
    counts: re.Match[str] | None = None
    first: tuple[int, str] = (0, "")

    def take(self, text: str, rank: int) -> None:
        """Read what one line, or one message of several lines, says."""
        self.ranks |= {rank} - {-1}
        if match := _NAMES.search(text):
            self.ranks.add(int(match[1]))
            self.params[int(match[1])] = tuple(name.strip() for name in match[2].split(","))
        if match := _INDICES.search(text):
            self.ranks.add(int(match[1]))
            self.indices[int(match[1])] = tuple(
                int(part) for part in match[2].split() if is_number(part)
            )
        if match := _TWICE_NAME.search(text):
            self.indices[rank] = (int(match[1]),)
            if match[2]:
                self.params[rank] = (match[2],)
        if match := _SIZES.search(text):
            self.ranks.add(int(match[1]))
            self.indices[int(match[1])] = (int(match[2]),)
            self.has[int(match[1])] = match[3]
        if match := _COUNTS.search(text):
            self.has |= {int(match[1]): match[2], int(match[3]): match[4]}
            self.counts = self.counts or match
            self.first = max(self.first, (int(match[3]), match[2]))

    @property
    def compared(self) -> tuple[int, ...]:
        """Ranks that have another size or stride of a parameter than rank 0 has."""
        return () if self.counts else tuple(sorted(self.has))

    @property
    def is_same(self) -> bool:
        """Whether all ranks that say so name the same parameters."""
        return (
            len(set(self.has.values())) <= 1
            and len(set(self.indices.values())) <= 1
            and len(set(self.params.values())) <= 1
        )


def make_reducer_errors(view: LogView) -> Iterator[Case]:
    """Make a case of what the reducer of DistributedDataParallel complains about."""
    told: dict[str, _Told] = {}
    for event in view.list_events(codes.REDUCER_ERROR):
        kind = _find_kind(event.text)
        if kind and is_said(event):
            one = told.setdefault(kind, _Told())
            one.take(event.text, event.rank)
            (one.events if event.role == "cause" else one.parts).append(event)
    for item in view.exceptions:
        kind = _find_kind(item.message) if name_known(item) == codes.REDUCER_ERROR else ""
        if kind and not item.is_caught:
            one = told.setdefault(kind, _Told())
            one.take(item.message, item.rank)
            one.exceptions.append(item)
    for kind, one in told.items():
        yield _make_case(view, kind, one)


def _find_kind(text: str) -> str:
    return next((kind for kind, pattern in _KINDS if pattern.search(text)), "")


def _make_case(view: LogView, kind: str, told: _Told) -> Case:
    ranks = _find_culprits(view, kind, told)
    # Of several that say so, the line of a rank that is named goes first.
    first = sorted(told.exceptions, key=lambda item: item.rank not in ranks)[:1]
    where = place_exceptions(first)
    place = f" in {describe_place(where[0])}" if where else ""
    # One line is of two ranks, and either may be the odd one.
    is_open = len(told.compared) == 1 and not ranks
    is_whole = bool(told.events or told.exceptions) and not is_open
    return Case(
        code=codes.REDUCER_ERROR,
        summary=_summarise(kind, told, ranks) + place,
        tier=OWN,
        ranks=ranks,
        victims=list_victims(view, set(ranks) or told.ranks),
        lines=tuple((told.events or told.parts)[:_MAX_LINES]),
        exceptions=tuple(told.exceptions),
        where=where,
        time=find_time(told.events or told.parts, told.exceptions),
        confidence=Confidence.CERTAIN if is_whole else Confidence.LIKELY,
        details={
            "kind": kind,
            "ranks": sorted(told.ranks),
            "same_everywhere": not ranks and told.is_same and not told.compared,
            "parameters": {str(rank): list(names) for rank, names in sorted(told.params.items())},
            "indices": {str(rank): list(found) for rank, found in sorted(told.indices.items())},
        },
        remedies=_advise(kind, told),
        scope=frozenset(told.ranks),
    )


def _find_culprits(view: LogView, kind: str, told: _Told) -> tuple[int, ...]:
    """Return the ranks that differ from the others; none where all are alike."""
    if kind == _SHAPES and (odd := _find_odd_models(view, told)):
        return odd
    if kind == _SHAPES and told.counts:
        return ()  # all ranks complain of it, whoever of them is odd
    ranks = told.ranks
    if not ranks or view.is_everywhere(ranks) or len(view.ranks) < 2:  # noqa: PLR2004
        return ()
    heard = view.told_ranks.union(*(file.ranks for file in view.files)) - {-1}
    if kind == _SHAPES and 2 * len(ranks) >= len(heard):
        return ()  # of two sides of one size, either may be wrong
    return tuple(sorted(ranks))


def _find_odd_models(view: LogView, told: _Told) -> tuple[int, ...]:
    """Return the ranks whose model is not that of most, by what each has.

    Each rank but rank 0 compares its sizes with those of rank 0, which has nothing to say. A rank
    compares its number of parameters with that of each rank in turn, and tells of the first that
    has another one: those before it have the same.
    """
    has = dict(told.has)
    rank, number = told.first
    if rank < view.world_size:
        has = dict.fromkeys(range(rank), number) | has
    if told.indices and set(has) == view.ranks - {0}:
        has[0] = ""  # another one than theirs
    value, count = Counter(has.values()).most_common(1)[0] if has else ("", 0)
    if 2 * count <= max(len(has), len(view.ranks), view.world_size):
        return ()
    return tuple(sorted(rank for rank, other in has.items() if other != value))


def _summarise(kind: str, told: _Told, ranks: tuple[int, ...]) -> str:
    who = f"on {name_ranks(ranks)} only" if ranks else "on all ranks"
    names = _name_parameters(told, ranks)
    if kind == _UNUSED:
        same = "" if ranks or told.is_same else ", not the same ones on each rank"
        return f"{names or 'parameters'} got no gradient {who}{same}"
    if kind == _TWICE:
        return f"{names or 'a parameter'} was ready twice in one backward pass, {who}"
    counts = told.counts
    if counts and ranks:
        number = told.has[ranks[0]]
        verb = "has" if len(ranks) == 1 else "have"
        most = next(other for rank, other in sorted(told.has.items()) if rank not in ranks)
        return f"{name_ranks(ranks)} {verb} a model of {number} parameters, the others of {most}"
    if counts:
        return (
            f"the model is not the same on all ranks: rank {counts[1]} has {counts[2]} parameters, "
            f"rank {counts[3]} has {counts[4]}"
        )
    if told.compared and not ranks:
        return f"the model is not the same on all ranks: {_tell_sizes(told, names)}"
    return f"the model is not the same on all ranks: {names or 'a parameter'} differs {who}"


def _tell_sizes(told: _Told, names: str) -> str:
    """Tell which ranks differ from rank 0; what that one has, the message does not say."""
    rank = told.compared[0]
    shown = f" (there it is {told.has[rank]})" if len(set(told.has.values())) == 1 else ""
    return f"{names or 'a parameter'} of {name_ranks(told.compared)}{shown} differs from rank 0's"


def _name_parameters(told: _Told, ranks: tuple[int, ...]) -> str:
    """Name the parameters of the first rank that tells, by name where torch gives it."""
    chosen = [rank for rank in sorted(told.params or told.indices) if not ranks or rank in ranks]
    if not chosen:
        return ""
    if told.params:
        found = list(told.params[chosen[0]])
    else:
        found = [str(index) for index in told.indices[chosen[0]]]
    shown = ", ".join(found[:_SHOWN]) + (f" and {len(found) - _SHOWN} more" * (len(found) > _SHOWN))
    return f"parameter{'s' * (len(found) > 1)} {shown}"


def _advise(kind: str, told: _Told) -> tuple[str, ...]:
    if kind == _UNUSED:
        advice = (
            (
                "DistributedDataParallel(model, find_unused_parameters=True), or let all outputs "
                "of forward take part in the loss"
            ),
        )
        if told.params:
            return advice
        return (
            *advice,
            "export TORCH_DISTRIBUTED_DEBUG=INFO   # the next run names the parameters",
        )
    if kind == _TWICE:
        return (
            "torch.utils.checkpoint.checkpoint(..., use_reentrant=False)",
            "call the DDP module, not parts of it, and backward once for each forward",
            "DistributedDataParallel(model, static_graph=True) where the graph never changes",
        )
    return ("build the model from the same arguments and seed on all ranks",)
