"""Bandwidths between hosts in a matrix: hosts head the columns, and the same ones the rows."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables import cells
from whystuck.parse.logs.blocks.tables.headed import HeadedReader
from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

MATRIX_MARKS = (
    *(b"busbw", b"bus bw", b"algbw", b"andwidth", b"hroughput", b"iperf", b"pairwise"),
    *(b"GB/s  ", b"GB/s)", b"GB/s |", b"GB/s]", b"in GB/s", b"Gb/s  ", b"Gb/s)", b"Gb/s |"),
    *(b"in Gb/s", b"Gbit/s", b"Gbps  ", b"Gbps)", b"Gbps |", b"in Gbps", b"GiB/s"),
    *(b", GB/s", b", Gb/s", b", Gbit/s", b"host to host", b"node to node", b"between nodes"),
)
_RATE = re.compile(
    r"\b(?:bus ?bw|algbw|bandwidth|throughput|iperf3?|bw)\b|\bG(?:i?B|b(?:it)?)/s\b|\bGbps\b",
    re.IGNORECASE,
)
# Of times, the smaller ones are the good ones.
_TIME = re.compile(r"\b(?:latency|rtt|ping|[un]?sec|[mu]s)\b", re.IGNORECASE)
_HOST = re.compile(r"[A-Za-z][\w.-]{0,62}")
_LEAST_HOSTS = 3
# So many lines behind the words that say what is measured.
_NEAR = 4
_MOST_HOSTS = 128


class MatrixReader(HeadedReader[list[str]]):
    """Follows one matrix at a time; its head are the hosts of the columns."""

    name = "table.pair"

    def __init__(self) -> None:
        super().__init__()
        self._said_row = -_NEAR - 1
        self._row = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return super().is_open or self._row - self._said_row < _NEAR

    def read_row(self, line: LogLine, raw: str, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line, and the same with what stands before it; yield its pairs."""
        self._row = row
        if is_mark and _RATE.search(raw) and not _TIME.search(raw):
            self._said_row = row
        yield from super().read_row(line, raw, row, is_mark=row - self._said_row <= _NEAR)

    def _read_head(self, told: list[str]) -> list[str] | None:
        # What stands above the names of rows says what is measured, or nothing.
        return next((hosts for hosts in (told, told[1:], told[2:]) if _are_hosts(hosts)), None)

    def _read_cells(self, head: list[str], told: list[str]) -> list[dict[str, str]]:
        return [
            {"table": str(self._begin), "one": one, "other": other, "speed": str(speed)}
            for one, other, speed in _read_speeds(told, head)
        ]


def _are_hosts(names: list[str]) -> bool:
    is_list = _LEAST_HOSTS <= len(names) <= _MOST_HOSTS and len(set(names)) == len(names)
    return is_list and all(_HOST.fullmatch(one) and not cells.read_owner(one) for one in names)


def _read_speeds(told: list[str], hosts: list[str]) -> list[tuple[str, str, float]]:
    """Return the pairs of a row; none where it is no row, which begins with one of the hosts."""
    name = told[0].strip(":") if told else ""
    if name not in hosts:
        return []
    others = hosts
    if len(told) == len(hosts):
        # Nothing stands where a host would be paired with itself.
        others = [host for host in hosts if host != name]
    if len(told) != len(others) + 1:
        return []
    values = [(host, cells.read_value(cell)) for host, cell in zip(others, told[1:], strict=True)]
    return [
        (name, host, value[0])
        for host, value in values
        if value is not None and not value[1] and host != name and value[0] > 0
    ]
