"""Lists of processes as `ps` and `top` print them, with a heading, or without one behind `grep`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.parse.logs.blocks.stacks.commands import find_local_rank, find_rank
from whystuck.parse.logs.blocks.tables.tabled import MAX_STRANGERS, TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

# States of processes with threads, as all of torch's are: at the begin of a line or in it.
_STATES = [state + more for state in "DRSTt" for more in ("l  ", "l+ ", "sl ", "sl+")]
PROCESS_MARKS = (
    b"STAT ",
    b" S  %CPU",
    b" S %CPU",
    b"S WCHAN",
    *(state.encode() for state in _STATES),
    *(f" {state}l ".encode() for state in "DRSTt"),
    # One that sleeps in the kernel, without threads; columns are padded.
    b" D    ",
    b"--no-headers",
    b"--no-heading",
)

# A process, or the state of one, at the end of a heading that has nothing but such names.
_COMMANDS = {"CMD", "COMMAND", "ARGS"}
_STATS = ("STAT", "S", "STATE")
_NAME = re.compile(r"^[A-Z%+*-]{1,12}$")
_STATE = re.compile(r"^[RSDTtZIXW][<NLsl+]{0,6}$")
_WAIT = re.compile(r"^[a-z_][\w.]{2,79}$")
_MOST_COLUMNS = 30
# A list without a heading, whose columns stand in the command: `ps -o pid,stat,wchan:24 -p 71`.
_ASKED = re.compile(
    r"\bps\b(?=.{0,200} --no-head)(?:.{0,80}?) -?o ?(?P<columns>[a-z_:,\d=]{3,120})"
)
# The processes of a loop that such a command is in.
_FOUND = re.compile(
    r"\bpgrep (?:-[\w,]{1,4} ){0,4}-\w{0,4}f ['\"]?"
    r"(?P<name>[\w./-]{0,60}(?:train|tune|\.py)[\w./-]{0,40})"
)
_ALIASES = {
    "CMD": "CMD",
    "ARGS": "CMD",
    "COMMAND": "CMD",
    "COMM": "CMD",
    "S": "STAT",
    "STATE": "STAT",
}
# They hold spaces.
_WIDE = {"LSTART", "START_TIME"}
# What a rank is started by: a row without a heading is none of another program.
_PROGRAM = r"(?P<command>(?:\S{0,200}/)?(?:python[\d.]{0,5}|pt_\w{1,20}|ray::\w{0,40}|torchrun|deepspeed)\b.{0,400})"  # noqa: E501
_BARE = re.compile(
    # `ps aux`
    r"^\s{0,8}[a-z_][\w.+-]{0,31}\s+(?P<pid>\d{2,7})\s+\d{1,4}(?:\.\d)?\s+\d{1,3}\.\d\s+\d{2,}\s+"
    rf"\d+\s+\S{{1,8}}\s+(?P<state>[RSDTt][<NLsl+]{{0,6}})\s+\S+\s+\S+\s+{_PROGRAM}$"
    # `ps -o pid,stat,wchan,cmd`, and without the number
    r"|^(?:(?P<host>[a-z][\w.-]{0,62}): )?\s{0,8}(?:[a-z_][\w.+-]{0,31}\s+)?"
    r"(?:(?P<pid2>\d{2,7})\s+)?(?:\d{1,7}\s+)?"
    r"(?P<state2>[RSDTt][<NLsl+]{0,6})\s+(?:(?P<wait2>-|[a-z_]\w{2,60})\s+)?"
    rf"(?:[\d:.-]{{1,20}}\s+){{0,3}}{_PROGRAM.replace('command', 'command2')}$"
)
# What somebody has written behind a row: `(rank 6)`, `# rank 6`, `<- rank 6`
_NOTED = re.compile(
    r"(?:[(#]|<-+|<=+) {0,3}(?:global )?rank[ =:]{1,2}(\d{1,6})\)?\s*$", re.IGNORECASE
)


class ProcessReader:
    """Follows one list at a time."""

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._strangers = 0
        # What the processes are called whose rows do not tell it.
        self._program = ""

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return bool(self._columns)

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the process that it is of."""
        if is_mark and (columns := _find_head(line.text)):
            self._columns, self._strangers, self._program = columns, 0, ""
        elif is_mark and (columns := _find_asked(line.text)):
            found = _FOUND.search(line.text)
            self._columns, self._strangers = columns, 0
            self._program = f"python {found['name']}" if found else ""
        elif self._columns:
            yield from self._read_row(line, row)
        elif is_mark:
            yield from _read_bare(line, row)

    def _read_row(self, line: LogLine, row: int) -> Iterator[TabledSeen]:
        cells = line.text.split(None, len(self._columns) - 1)
        told = dict(zip(self._columns, cells, strict=False))
        state = next((told[name] for name in _STATS if name in told), "")
        pid = told.get("PID", "0")
        if len(cells) < len(self._columns) or not (pid.isdecimal() and _STATE.match(state)):
            self._strangers += 1
            if self._strangers > MAX_STRANGERS:
                self._columns = []
            return
        command = cells[-1] if self._columns[-1] in _COMMANDS else self._program
        one = _make(line, row, pid, state, told.get("WCHAN", ""), command)
        if (parent := told.get("PPID", "")).isdecimal():
            one.groups["parent"] = parent[:9]
        yield one


def _find_head(text: str) -> list[str]:
    """Return the columns of a list that begins, empty where none does."""
    names = text.split(None, _MOST_COLUMNS)
    is_head = bool(names) and names[-1] in _COMMANDS and all(map(_NAME.match, names))
    return names if is_head and any(name in names for name in _STATS) else []


def _find_asked(text: str) -> list[str]:
    """Return the columns that a command asks for, which prints no heading; empty without states."""
    match = _ASKED.search(text[:400])
    names = (
        [name.partition(":")[0].rstrip("=") for name in match["columns"].split(",")]
        if match
        else []
    )
    columns = [_ALIASES.get(name.upper(), name.upper()) for name in names]
    is_plain = "STAT" in columns and "CMD" not in columns[:-1] and _WIDE.isdisjoint(columns)
    return columns if is_plain else []


def _read_bare(line: LogLine, row: int) -> Iterator[TabledSeen]:
    match = _BARE.match(line.text[:800])
    if match is None:
        return
    told = match.groupdict()
    if told["host"] and not line.node:
        line = replace(line, node=told["host"])
    yield _make(
        line,
        row,
        told["pid"] or told["pid2"] or "0",
        told["state"] or told["state2"],
        told["wait2"] or "",
        told["command"] or told["command2"],
    )


def _make(line: LogLine, row: int, pid: str, state: str, wait: str, command: str) -> TabledSeen:
    groups = {"pid": pid[:9], "state": state, "command": command[:200]}
    groups["wait"] = wait if _WAIT.match(wait) else ""
    noted = _NOTED.search(command)
    rank = int(noted[1]) if noted else find_rank(" " + command)
    if rank != UNKNOWN_RANK:
        groups["own"] = str(rank)
    elif (local := find_local_rank(" " + command)) >= 0:
        groups["local"] = str(local)
    return TabledSeen("table.process", row, line, groups)
