"""How many ranks a job has and where they are, by the commands that started it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from whystuck.parse.logs.parts import LogPart


class Launches:
    """The commands of all logs; what two of them tell in different ways is not known."""

    def __init__(self, parts: Iterable[LogPart]) -> None:
        """Take what the logs hold."""
        rows = [row.groups for part in parts for row in part.tabled if row.name == "table.launch"]
        self._sizes = {_count(groups) for groups in rows}
        self._nodes = {groups["nodes"] for groups in rows}
        self._places = {groups["place"] for groups in rows}
        self._each = {groups["each"] for groups in rows}

    def find_size(self, ranks: Iterable[int]) -> int:
        """Return the number of all ranks, 0 where it is not told or ranks are known beyond it."""
        size = next(iter(self._sizes)) if len(self._sizes) == 1 else 0
        return size if all(rank < size for rank in ranks) else 0

    def find_first(self) -> int | None:
        """Return the first rank of the host that is shown; None where nothing tells it.

        A job of several hosts numbers the ranks of each from 0 on, too.
        """
        if self._nodes <= {"1"}:
            return 0
        if len(self._places) != 1 or len(self._each) != 1:
            return None
        place, each = next(iter(self._places)), next(iter(self._each))
        return int(place) * int(each) if place and each else None


def list_failed(part: LogPart) -> Iterator[tuple[int, int]]:
    """Yield ranks of which a table of failures tells the local rank, and not how they ended."""
    ended = {seen.rank for seen in part.exits}
    for row in part.tabled:
        if row.name == "table.failed_rank" and int(row.groups["failed"]) not in ended:
            yield int(row.groups["failed"]), int(row.groups["seat"])


def _count(groups: dict[str, str]) -> int:
    if groups["all"]:
        return int(groups["all"])
    return int(groups["nodes"]) * int(groups["each"]) if groups["nodes"] and groups["each"] else 0
