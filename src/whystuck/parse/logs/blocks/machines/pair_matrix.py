"""Bandwidths between hosts in a matrix: hosts head the columns, and the same ones the rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from whystuck.parse.logs.blocks.tables import cells
from whystuck.parse.logs.blocks.tables.tabled import MAX_STRANGERS, TabledSeen
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


class MatrixReader:
    """Follows one matrix at a time."""

    def __init__(self) -> None:
        self._said_row = -_NEAR - 1
        # The hosts of the columns, in each way in which their row may be split.
        self._heads: list[tuple[Callable[[str], list[str]], list[str]]] = []
        self._begin = self._strangers = 0
        self._row = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return bool(self._heads) or self._row - self._said_row < _NEAR

    def read_row(self, line: LogLine, raw: str, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line, and the same with what stands before it; yield its pairs."""
        self._row = row
        if is_mark and _RATE.search(raw) and not _TIME.search(raw):
            self._said_row = row
        if row - self._said_row <= _NEAR and (heads := _read_heads(raw)):
            self._heads, self._begin, self._strangers = heads, row, 0
            return
        if not self._heads or cells.is_drawn(raw):
            return
        for way, hosts in self._heads:
            speeds = _read_speeds(cells.split_cells(raw, way), hosts)
            if speeds:
                self._heads, self._strangers = [(way, hosts)], 0
                for one, other, speed in speeds:
                    groups = {"table": str(self._begin), "one": one, "other": other}
                    yield TabledSeen("table.pair", row, line, groups | {"speed": str(speed)})
                return
        self._strangers += 1
        if self._strangers > MAX_STRANGERS:
            self._heads = []


def _read_heads(text: str) -> list[tuple[Callable[[str], list[str]], list[str]]]:
    found = []
    for way in cells.WAYS:
        told = cells.split_cells(text, way)
        # What stands above the names of rows says what is measured, or nothing.
        for hosts in (told, told[1:], told[2:]):
            if _are_hosts(hosts):
                found.append((way, hosts))
                break
    return found


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
