"""Commands that start ranks, as people paste them: how many hosts, and how many ranks of each."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

LAUNCH_MARKS = (
    b"nproc_per_node",
    b"nproc-per-node",
    b"--num_processes",
    b"--num-processes",
    b"--num_gpus",
    b"mpirun -n",
    b"mpiexec -n",
    b"mpirun --np",
    b"torchrun \\",
    b"(local_rank: ",
)
_COMMAND = re.compile(
    r"^(?:(?:(?P<prompt>[^$#%>]{0,80})[$#%>]|\+{1,4}) ?)?(?:\w{1,40}=\S{1,200} ){0,12}"
    r"(?:(?:time|exec|nohup|sudo) )?(?:/\S{1,200}/)?"
    r"(?P<launcher>torchrun|python[\d.]{0,5} -m torch\.distributed\.(?:run|launch)"
    r"|accelerate launch|deepspeed|mpirun|mpiexec)\s(?P<rest>.*)$"
)
_HOST = re.compile(r"^\[?(?:[\w.-]{1,40}@)?((?=[\w.-]*\d)[A-Za-z][\w.-]{0,62})(?=[\]: ]|$)")
_OPTION = r"(?:^|\s)(?:{})(?:=|\s)\s?(\S{{1,40}})"
# By launcher: how many hosts, ranks of each, all ranks, and the number of the host.
_NODES = re.compile(_OPTION.format("--nnodes|--num[_-]machines|--num_nodes"))
_EACH = re.compile(_OPTION.format("--nproc[_-]per[_-]node|--num_gpus"))
_ALL = re.compile(_OPTION.format("--num[_-]processes|-np?|--np"))
_PLACE = re.compile(_OPTION.format("--node[_-]rank|--machine[_-]rank"))
# A row of torchrun's table of failures, of which people paste no more.
_FAILED = re.compile(r"^\s{0,8}rank\s{1,12}: (\d{1,6}) \(local_rank: (\d{1,4})\)\s*$")
# Hosts that a file or a variable tells.
_ELSEWHERE = re.compile(r"--hostfile|--config_file|\bPET_NNODES=|\s-H\s|\s--host\s")
_MOST_LINES = 24
_MOST_CHARS = 2000
_MOST = 1 << 18


class LaunchReader:
    """Follows one command at a time, which may go on behind a backslash."""

    def __init__(self) -> None:
        self._text = ""
        self._groups: dict[str, str] = {}
        self._left = 0

    @property
    def is_open(self) -> bool:
        """Whether the next line may belong to the command."""
        return self._left > 0

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the command that it begins."""
        text = line.text[:_MOST_CHARS]
        if self._left:
            self._left -= 1
            self._take(text)
        elif is_mark and (match := _COMMAND.match(text)):
            host = _HOST.match(match["prompt"] or "")
            self._text = f"{text[: match.start('launcher')]} {match['launcher']} "
            self._groups = {"host": line.node or (host[1] if host else "")}
            self._left = _MOST_LINES
            self._take(match["rest"])
            yield TabledSeen("table.launch", row, line, self._groups)
        elif is_mark and (match := _FAILED.match(text)):
            groups = {"failed": match[1], "seat": match[2]}
            yield TabledSeen("table.failed_rank", row, line, groups)

    def _take(self, text: str) -> None:
        """Take what one more line has of the command."""
        goes_on = text.rstrip().endswith("\\")
        self._text = (self._text + text.rstrip().rstrip("\\") + " ")[:_MOST_CHARS]
        if not goes_on:
            self._left = 0
        # Without the option, torchrun and its likes start ranks on this host alone.
        is_told = _NODES.search(self._text) or _ELSEWHERE.search(self._text)
        nodes = _read(_NODES, self._text) if is_told else "1"
        self._groups |= {
            "nodes": nodes,
            "each": _read(_EACH, self._text),
            "all": _read(_ALL, self._text),
            "place": _read(_PLACE, self._text),
        }


def _read(option: re.Pattern[str], text: str) -> str:
    """Return the number that is given to an option; empty where it is none."""
    match = option.search(text)
    told = match[1] if match else ""
    return told if told.isdecimal() and len(told) < 7 and int(told) <= _MOST else ""  # noqa: PLR2004
