"""Which ranks called the same as one whose mismatch is shown, though theirs is not.

With TORCH_DISTRIBUTED_DEBUG=DETAIL, each rank compares its call with those of all ranks in their
order, and names the first that differs: all before that one agree with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ranks import MAX_RANK, parse_ranks

_PAIR = re.compile(r"Rank (\d{1,7}) is running collective: .{1,4000}?, but Rank (\d{1,7})\b")
_SHORT = re.compile(r"\bbut Rank (\d{1,7})\b")
_OTHERS = re.compile(r"\b(?:all|every|the) (?:the )?(?:others?\b|rest\b|remaining)", re.IGNORECASE)
# Of so few ranks alone, without the number of all, nobody knows whether they are most.
_LEAST_OF_UNKNOWN = 3
_MOST_RANKS = 4096


class _Sides:
    """Ranks that made one call are on one side."""

    def __init__(self) -> None:
        self._above: dict[int, int] = {}

    def find(self, rank: int) -> int:
        """Return the rank that stands for a side."""
        while (above := self._above.get(rank, rank)) != rank:
            self._above[rank] = self._above.get(above, above)
            rank = above
        return rank

    def join(self, ranks: Iterable[int]) -> None:
        """Take that ranks are on one side."""
        first = None
        for rank in ranks:
            root = self.find(rank)
            first = root if first is None else first
            self._above.setdefault(rank, rank)
            self._above[root] = first

    def list_ranks(self) -> Iterator[int]:
        """Yield all ranks that are known."""
        return iter(list(self._above))


def find_values(
    view: LogView, texts: Iterable[str], shown: Mapping[int, str]
) -> dict[int, str] | None:
    """Find what ranks called whose calls are not shown.

    Args:
        view: The logs.
        texts: The messages.
        shown: What ranks called, as the messages show it.

    Returns:
        What each rank called, those of ``shown`` among them; None where what is told contradicts
        itself.
    """
    sides = _Sides()
    for rank, peer in _list_pairs(view, texts):
        if peer < _MOST_RANKS:
            sides.join([rank, *(other for other in range(peer) if other != rank)])
    for event in view.list_signatures("table.same"):
        ranks = parse_ranks(event.groups["ranks"])
        odd = [rank for rank in shown if shown[rank] not in {shown.get(one) for one in ranks}]
        others = view.ranks - set(odd) if event.groups["others"] else frozenset[int]()
        sides.join(sorted(ranks | others))
    for peer in _list_denied(view):
        sides.join(sorted(view.ranks - {peer}))
    values: dict[int, str] = {}
    for rank, value in shown.items():
        root = sides.find(rank)
        if values.setdefault(root, value) != value:
            return None
    known = {*shown, *sides.list_ranks()}
    found = {rank: values.get(sides.find(rank)) for rank in known if rank <= MAX_RANK}
    return {rank: value for rank, value in found.items() if value is not None}


def is_majority(view: LogView, values: Mapping[int, str], common: str) -> bool:
    """Tell whether a side has most ranks, whatever those called of whom nothing is known."""
    told = max((file.world_size for file in view.files), default=0)
    world = set(range(told)) or view.ranks
    same = sum(value == common for value in values.values())
    others = len(world | values.keys()) - same
    return same > others and (told > 0 or same >= _LEAST_OF_UNKNOWN)


def _list_denied(view: LogView) -> Iterator[int]:
    """Yield ranks from which all others are said to differ."""
    for event in view.list_signatures("c10d.mismatch_short"):
        match = _SHORT.search(event.text)
        if match is not None and event.rank == UNKNOWN_RANK and _OTHERS.search(event.text):
            yield int(match[1])


def _list_pairs(view: LogView, texts: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield ranks, and the first rank whose call differs from theirs."""
    for text in texts:
        for match in _PAIR.finditer(text):
            yield int(match[1]), int(match[2])
    for event in view.list_signatures("c10d.mismatch_short"):
        short = _SHORT.search(event.text)
        if short is not None and event.rank != UNKNOWN_RANK:
            yield event.rank, int(short[1])
