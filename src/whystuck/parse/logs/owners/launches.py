"""How many ranks a job has and where they are, by the commands that started it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from whystuck.parse.logs.parts import LogPart


class Launches:
    """The commands of all logs; what two of them tell in different ways is not known."""

    def __init__(self, parts: Iterable[LogPart]) -> None:
        """Take what the logs hold."""
        self._rows = [row for part in parts for row in _list_launches(part)]

    def find_size(self, ranks: Iterable[int]) -> int:
        """Return the number of all ranks, 0 where it is not told or ranks are known beyond it."""
        sizes = {_count(groups) for groups in self._rows}
        size = sizes.pop() if len(sizes) == 1 else 0
        return size if all(rank < size for rank in ranks) else 0

    @property
    def are_of_one(self) -> bool:
        """Whether the job has one host: one of several numbers the ranks of each from 0 on, too."""
        return all(groups["nodes"] == "1" for groups in self._rows)

    @staticmethod
    def find_placed(part: LogPart) -> int | None:
        """Return the first rank of the only host of a log, as the command in it tells."""
        return _find_first(_list_launches(part)) if len(part.facts.nodes) <= 1 else None


def _list_launches(part: LogPart) -> list[dict[str, str]]:
    return [row.groups for row in part.tabled if row.name == "table.launch"]


def _find_first(rows: list[dict[str, str]]) -> int | None:
    """Return the first rank of a host by its number and how many ranks each has."""
    told = {(groups["place"], groups["each"]) for groups in rows}
    place, each = told.pop() if len(told) == 1 else ("", "")
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
