"""Answers of NCCL's RAS subsystem: the text that ``ncclras`` prints, and the JSON of NCCL 2.28.7.

The text names single ranks only where few of them differ from the others. Both may have the lines
of the protocol before them, as ``nc localhost 28028`` shows them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from whystuck.evidence.nodes.ras import (
    RasComm,
    RasCount,
    RasError,
    RasMember,
    RasProcess,
    RasStatus,
)
from whystuck.parse.errors import ParseError
from whystuck.parse.ras_json import read_ras_json

MAX_BYTES = 8 << 20
_MAX_LINES = 400_000
# Ranks in such a list have less.
_MAX_LINE = 8192
_PROTOCOL = re.compile(r"\s*(?:(?:SERVER PROTOCOL [0-9]{1,9}|OK|ERROR: [^\n]{0,200})\n)*")
_VERSION = re.compile(r"NCCL version (\S{1,40}) compiled with CUDA")
_GROUP = re.compile(
    r"\s*([0-9]{1,9})\s+[0-9]{1,9}\s+[0-9]{1,9}\s+[0-9-]{1,19}\s+([0-9]{1,9})\s+[0-9]{1,9}"
    r"\s+[A-Z]{1,20}\s+[A-Z,]{1,60}\s*"
)
_COMMS_IN_GROUP = re.compile(r"\s*[0-9]{1,9}\s+([0-9]{1,9})\s")
_COMM = re.compile(r"#([0-9]{1,9})-[0-9]{1,9} \(([0-9a-f]{1,16})\) (INCOMPLETE|ERROR|MISMATCH)\s*")
_COUNTS = re.compile(r" +Communicator ranks have different (\w{1,40}) operation counts\s*")
_STATUS = re.compile(r" +Communicator ranks have different status\s*")
_LAUNCHED = r"(?:launched up to operation ([0-9]{1,20})|not launched any operations)"
_COUNT_OF_MANY = re.compile(rf" +([0-9]{{1,9}}) (?:ranks have|rank has) {_LAUNCHED}\s*")
_COUNT_OF_ONE = re.compile(rf" +Rank ([0-9]{{1,9}}) has {_LAUNCHED} -- (.*)")
_STATE_OF_MANY = re.compile(r" +([0-9]{1,9}) (?:ranks have|rank has) status ([A-Z]{1,20})\s*")
_STATE_OF_ONE = re.compile(r" +Rank ([0-9]{1,9}) has status ([A-Z]{1,20}) -- (.*)")
_ERRORS = re.compile(r" +(Initialization|Asynchronous) errors? on [0-9]{1,9} ranks?\s*")
_ERROR_OF_MANY = re.compile(r" +([0-9]{1,9}) ranks? reported (\S.{0,99})")
_ERROR_OF_ONE = re.compile(r" +Rank ([0-9]{1,9}) reported (\S.{0,99}?) -- (.*)")
_RANK = re.compile(r" +Rank ([0-9]{1,9}) -- (.*)")
_OWNER = re.compile(r"GPU .{1,60} managed by process ([0-9]{1,10}) on node (\S{1,64})\s*")
_MISSING_RANKS = re.compile(
    r" +The missing ranks?: ([0-9]{1,9}(?:, ?[0-9]{1,9}){0,255})(?: -- (.*))?\s*"
)
_SILENT = re.compile(r" +Missing communicator data from ([0-9]{1,9}) job process(?:es)?\s*")
_DEAD = re.compile(r" +([0-9]{1,9}) job process(?:es are| is) considered dead\b.*")
_TIMEOUTS = re.compile(r" +Encountered ([0-9]{1,9}) communication timeouts? .*")
_PROCESS = re.compile(r" +Process ([0-9]{1,10}) on node (\S{1,64}) managing GPU.*")
_NO_COMM = "NOCOMM"


def parse_ras(data: bytes, *, artifact: str = "") -> RasStatus:
    """Read an answer of RAS.

    Args:
        data: The text or the JSON.
        artifact: The path to cite.

    Returns:
        What it tells.

    Raises:
        ParseError: It is neither, is cut, or is larger than any answer.
    """
    if len(data) > MAX_BYTES:
        raise ParseError(f"an answer of NCCL RAS of more than {MAX_BYTES >> 20} MiB")
    text = data.decode("utf-8", errors="replace").replace("\r\n", "\n")
    head = _PROTOCOL.match(text)
    text = text[head.end() if head else 0 :]
    status = read_ras_json(text) if text.startswith("{") else _parse_text(text)
    return replace(status, artifact=artifact)


def is_whole_answer(data: bytes) -> bool:
    """Tell whether what begins like an answer is all of one, and nothing else."""
    text = data[:MAX_BYTES].decode("utf-8", errors="replace").replace("\r\n", "\n")
    head = _PROTOCOL.match(text)
    body = text[head.end() if head else 0 :]
    if body.startswith("{"):
        return True
    end = body.find("\nWarnings\n")
    rest = body[end + len("\nWarnings\n") :].split("\n")
    return end >= 0 and all(not line or line[0] in "#=- \t" for line in rest)


@dataclass
class _Draft:
    """A communicator while it is read: counts and errors with the ranks that are named so far."""

    size: int = 0
    counts: list[tuple[str, int, int, list[RasMember]]] = field(default_factory=list)
    errors: list[tuple[str, bool, int, list[RasMember]]] = field(default_factory=list)
    missing: list[RasMember] = field(default_factory=list)
    absent: list[RasMember] = field(default_factory=list)

    def make(self, name: str) -> RasComm:
        return RasComm(
            hash=name,
            size=self.size,
            counts=tuple(RasCount(*one[:3], tuple(one[3])) for one in self.counts),
            errors=tuple(RasError(*one[:3], tuple(one[3])) for one in self.errors),
            missing=tuple(self.missing),
            absent=tuple(self.absent),
        )


def _skip(_member: RasMember) -> None:
    """Pass over a rank of a list that is of no use."""


@dataclass
class _Text:
    """Reads line by line; ``take`` is what becomes of a rank that a line names by itself."""

    comms: dict[str, _Draft] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    comms_of: dict[int, int] = field(default_factory=dict)
    seen: int = 0
    processes: list[RasProcess] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    draft: _Draft = field(default_factory=_Draft)
    op: str = ""
    first: str = ""
    is_async: bool = False
    in_dead: bool = False
    take: Callable[[RasMember], None] = _skip

    def read(self, line: str) -> None:
        for pattern, action in self._actions:
            match = pattern.fullmatch(line)
            if match:
                action(self, match)
                return

    def _read_group(self, match: re.Match[str]) -> None:
        self.sizes[int(match[1])] = int(match[2])
        comms = _COMMS_IN_GROUP.match(match[0])
        # A row that is pasted again tells of the same group.
        self.comms_of[int(match[1])] = int(comms[1]) if comms else 1
        self.seen += int(comms[1]) if comms else 0

    @property
    def alike(self) -> int:
        """How many communicators are as large as the largest one."""
        largest = max(self.sizes.values(), default=0)
        alike = (self.comms_of[group] for group, size in self.sizes.items() if size == largest)
        return sum(alike) or 1

    def _read_comm(self, match: re.Match[str]) -> None:
        self.draft = self.comms.setdefault(_name_comm(match[2]), _Draft())
        self.draft.size = self.sizes.get(int(match[1]), 0)
        is_incomplete = match[3] == "INCOMPLETE"
        self.take = self.draft.missing.append if is_incomplete else _skip

    def _read_counts(self, match: re.Match[str]) -> None:
        self.op, self.take = match[1], _skip

    def _read_status(self, _match: re.Match[str]) -> None:
        self.op, self.take = "", _skip

    def _read_count_of_many(self, match: re.Match[str]) -> None:
        self._list_count(int(match[2] or 0), int(match[1]))

    def _read_count_of_one(self, match: re.Match[str]) -> None:
        self._list_count(int(match[2] or 0), 1)
        self.take(_make_member(match[1], match[3]))

    def _list_count(self, issued: int, size: int) -> None:
        members: list[RasMember] = []
        self.draft.counts.append((self.op, issued, size, members))
        self.take = members.append

    def _read_state_of_many(self, match: re.Match[str]) -> None:
        self.take = self.draft.absent.append if match[2] == _NO_COMM else _skip

    def _read_state_of_one(self, match: re.Match[str]) -> None:
        if match[2] == _NO_COMM:
            self.draft.absent.append(_make_member(match[1], match[3]))

    def _read_errors(self, match: re.Match[str]) -> None:
        self.is_async, self.take = match[1] == "Asynchronous", _skip

    def _read_error_of_many(self, match: re.Match[str]) -> None:
        self._list_error(match[2].strip(), int(match[1]))

    def _read_error_of_one(self, match: re.Match[str]) -> None:
        self._list_error(match[2], 1)
        self.take(_make_member(match[1], match[3]))

    def _list_error(self, what: str, size: int) -> None:
        members: list[RasMember] = []
        self.draft.errors.append((what, self.is_async, size, members))
        self.take = members.append

    def _read_rank(self, match: re.Match[str]) -> None:
        self.take(_make_member(match[1], match[2]))

    def _read_missing(self, match: re.Match[str]) -> None:
        first, *rest = match[1].split(",")
        self.take(_make_member(first, match[2] or ""))
        for number in rest:
            self.take(RasMember(int(number)))

    def _read_silent(self, match: re.Match[str]) -> None:
        self.numbers["silent"], self.in_dead = int(match[1]), False

    def _read_dead(self, match: re.Match[str]) -> None:
        self.numbers["dead"], self.in_dead = int(match[1]), True

    def _read_timeouts(self, match: re.Match[str]) -> None:
        self.numbers["timeouts"] = int(match[1])

    def _read_process(self, match: re.Match[str]) -> None:
        self.processes.append(RasProcess(int(match[1]), match[2], self.in_dead))

    _actions = (
        (_COMM, _read_comm),
        (_RANK, _read_rank),
        (_MISSING_RANKS, _read_missing),
        (_COUNTS, _read_counts),
        (_COUNT_OF_MANY, _read_count_of_many),
        (_COUNT_OF_ONE, _read_count_of_one),
        (_STATUS, _read_status),
        (_STATE_OF_MANY, _read_state_of_many),
        (_STATE_OF_ONE, _read_state_of_one),
        (_ERRORS, _read_errors),
        (_ERROR_OF_MANY, _read_error_of_many),
        (_ERROR_OF_ONE, _read_error_of_one),
        (_PROCESS, _read_process),
        (_SILENT, _read_silent),
        (_DEAD, _read_dead),
        (_TIMEOUTS, _read_timeouts),
        (_GROUP, _read_group),
    )


def _parse_text(text: str) -> RasStatus:
    version = _VERSION.match(text)
    if version is None or "Communicators..." not in text:
        raise ParseError("no answer of NCCL RAS")
    if text.count("\n") > _MAX_LINES:
        raise ParseError(f"an answer of NCCL RAS of more than {_MAX_LINES} lines")
    if "\nWarnings\n" not in text:
        raise ParseError("the answer of NCCL RAS is cut")
    reader = _Text()
    for line in text.split("\n"):
        reader.read(line[:_MAX_LINE])
    return RasStatus(
        version=version[1],
        comms=tuple(draft.make(name) for name, draft in reader.comms.items()),
        comms_seen=reader.seen,
        largest=max(reader.sizes.values(), default=0),
        processes=tuple(reader.processes),
        dead=reader.numbers.get("dead", 0),
        silent=reader.numbers.get("silent", 0),
        timeouts=reader.numbers.get("timeouts", 0),
        alike=reader.alike,
    )


def parse_ras_lines(lines: Iterable[str], *, artifact: str = "") -> RasStatus:
    """Read part of an answer, as people quote it: what is cut off is not known.

    Args:
        lines: Some lines of the text, without what a log has before them.
        artifact: The path to cite.

    Returns:
        What they tell. The first communicator is taken for that of all ranks where the table of
        sizes is cut off: RAS lists the largest first.
    """
    reader = _Text()
    version = ""
    for line in lines:
        found = _VERSION.match(line)
        version = found[1] if found else version
        reader.read(line)
        if (match := _COMM.match(line)) and match[0].startswith("#0-0 "):
            reader.first = _name_comm(match[2])
    comms = [
        replace(comm, size=comm.size or (_guess_size(comm) if comm.hash == reader.first else 0))
        for comm in (draft.make(name) for name, draft in reader.comms.items())
    ]
    return RasStatus(
        version=version,
        comms=tuple(comms),
        comms_seen=reader.seen or len(comms),
        largest=max([*reader.sizes.values(), *(comm.size for comm in comms)], default=0),
        processes=tuple(reader.processes),
        dead=reader.numbers.get("dead", 0),
        silent=reader.numbers.get("silent", 0),
        timeouts=reader.numbers.get("timeouts", 0),
        artifact=artifact,
        alike=reader.alike,
    )


def _guess_size(comm: RasComm) -> int:
    """Count the members that an answer tells of, as those of one kind of op."""
    first = comm.counts[0].op if comm.counts else ""
    counted = sum(one.size for one in comm.counts if one.op == first) + len(comm.missing)
    named = [one.rank for one in (*comm.missing, *comm.absent)]
    named += [one.rank for count in comm.counts for one in count.members]
    return max(counted, max(named, default=-1) + 1)


def _make_member(rank: str, owner: str) -> RasMember:
    match = _OWNER.fullmatch(owner)
    return RasMember(int(rank), int(match[1]), match[2]) if match else RasMember(int(rank))


def _name_comm(text: str) -> str:
    """Return the hash of a communicator as JSON has it, without zeros before it."""
    return f"0x{int(text, 16):x}"
