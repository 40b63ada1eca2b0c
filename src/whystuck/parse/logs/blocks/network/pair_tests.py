"""What nccl-tests prints of one pair of hosts after the other, and who they are.

Two hosts stand in a heading (`== cn01,cn02`), in the command, or in the list of devices that the
test prints itself; the bandwidth stands below.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.label_forms import NO_COUNT
from whystuck.parse.logs.lines.lines import LogLine

PAIR_TEST_MARKS = (b"_perf ", b"# nThread ", b"# Using devices", b"# Avg bus bandwidth")
_HOST = rf"{NO_COUNT}(?=[\w.]*[\d-])[A-Za-z][\w.-]{{1,62}}"
_BETWEEN = r"(?: ?(?:,|<-{1,2}>|-{1,2}>|\+|/|&| and | to | vs\.? ) ?|\s{1,4})"
_HEAD = re.compile(
    rf"^\s{{0,4}}[=#*>-]{{2,12}} ?(?:pair |hosts? |nodes? )?(?P<one>{_HOST}){_BETWEEN}"
    rf"(?P<other>{_HOST})\s?:?\s?[=#*<-]{{0,12}}\s{{0,4}}$"
)
# `srun -w cn[01,02]`, `mpirun -H cn01:8,cn02:8`
_ASKED = re.compile(
    r"\s(?:-w|-H|--nodelist|--hosts?)[ =](?:"
    rf"(?P<one>{_HOST})(?::\d{{1,3}})?,(?P<other>{_HOST})(?::\d{{1,3}})?"
    r"|(?P<name>[A-Za-z][\w.-]{0,60})\[(?P<first>\d{1,6})(?P<to>[,-])(?P<last>\d{1,6})\])(?=\s|$)"
)
# `#  Rank  3 Group  0 Pid  4211 on   cn01 device  3 [0x9b] NVIDIA H100`
_DEVICE = re.compile(r"^#\s{1,4}Rank\s{1,4}\d{1,6}\s.{0,40}?\bon\s{1,8}(?P<host>\S{1,80}) device\s")
_SPEED = re.compile(r"^# Avg bus bandwidth\s{0,8}: (?P<speed>\d{1,6}(?:\.\d{1,6})?)\s{0,4}$")
# So many lines of a test, and devices that it lists.
_MOST_LINES = 160
_PAIR = 2


class PairTestReader:
    """Follows one test at a time."""

    def __init__(self) -> None:
        self._begin = self._left = 0
        self._pair: tuple[str, str] | None = None
        self._hosts: set[str] = set()

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be of a test."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the pair whose bandwidth it tells."""
        text = line.text
        if is_mark:
            self._begin = self._begin if self._left else row
            self._left = _MOST_LINES
        self._left -= 1
        if match := _SPEED.match(text):
            pair = self._pair or (tuple(sorted(self._hosts)) if len(self._hosts) == _PAIR else ())
            self._pair, self._hosts = None, set()
            if pair:
                told = {"table": f"test {self._begin}", "one": pair[0], "other": pair[1]}
                told |= {"speed": match["speed"]}
                yield TabledSeen("table.pair", row, line, told)
        elif match := _HEAD.match(text):
            self._pair, self._hosts, self._left = (match["one"], match["other"]), set(), _MOST_LINES
        elif match := _DEVICE.match(text):
            self._hosts = (
                self._hosts | {match["host"]} if len(self._hosts) <= _PAIR else self._hosts
            )
        elif is_mark and "_perf " in text:
            self._pair, self._hosts = _read_asked(text), set()


def _read_asked(text: str) -> tuple[str, str] | None:
    """Return the two hosts that a command names; None where it names no two."""
    match = _ASKED.search(text)
    if match is None:
        return None
    if match["one"]:
        return match["one"], match["other"]
    first, last = match["first"], match["last"]
    is_two = match["to"] == "," or int(last) == int(first) + 1
    return (match["name"] + first, match["name"] + last) if is_two else None
