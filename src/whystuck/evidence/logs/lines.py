"""What logs tell: the lines that are known, whose they are, and when they were written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

UNKNOWN_RANK = -1


@dataclass(frozen=True, slots=True)
class LogFile:
    """One log, or one attempt in it.

    Attributes:
        artifact: The path to cite.
        kind: ``rank`` (output of one rank), ``merged`` (of several), ``agent`` (a launcher's own),
            ``kernel``, ``scheduler``, ``events``, ``service``, or empty when it cannot be told.
        rank: Whose output it is, ``UNKNOWN_RANK`` for other kinds.
        node: The host that wrote it, empty when nothing tells.
        world_size: The number of ranks as the log tells it, 0 when it does not.
        size_bytes: How long it is, unpacked.
        first_ns: The first time in it, 0 when there is none.
        last_ns: The last time in it, 0 when there is none.
        ranks: The ranks of which it holds a line.
        node_by_rank: Hosts of ranks, as headers of NCCL and prefixes of launchers tell them.
        bus_by_rank: PCI bus ids of devices of ranks (``9b000``), as NCCL tells them.
        pid_by_rank: Processes of ranks, as headers of NCCL and launchers tell them.
        rank_by_device: Ranks of devices by host, as lines tell that name both, and sentences; the
            host is empty where it is that of the log.
        worker_shift: By how much the rank of a worker's pod is above its number, as a sentence
            tells; None where none does.
        loss_ranks: The ranks that print losses which are finite.
        hosts: The hosts whose names stand before its lines.
        goes_on: Whether its last steps came at one pace, right until somebody looked at it.
        steps_since: The row from which on it shows several steps, each further than the one
            before; 0 where it does not.
        steps_until: The row of the last of these.
        groups: The members of process groups, by the name that they share, as it prints them.
        steady_until: The row of the last step, where the last steps came at one pace; else 0.
        seats: Ranks of hosts and pods, as lines tell that name both; not all of them need be told.
    """

    artifact: str
    kind: str = ""
    rank: int = UNKNOWN_RANK
    node: str = ""
    world_size: int = 0
    size_bytes: int = 0
    first_ns: int = 0
    last_ns: int = 0
    ranks: frozenset[int] = frozenset()
    node_by_rank: Mapping[int, str] = field(default_factory=dict)
    bus_by_rank: Mapping[int, str] = field(default_factory=dict)
    pid_by_rank: Mapping[int, int] = field(default_factory=dict)
    rank_by_device: Mapping[tuple[str, int], int] = field(default_factory=dict)
    worker_shift: int | None = None
    loss_ranks: frozenset[int] = frozenset()
    hosts: frozenset[str] = frozenset()
    goes_on: bool = False
    steps_since: int = 0
    steps_until: int = 0
    groups: Mapping[str, frozenset[frozenset[int]]] = field(default_factory=dict)
    steady_until: int = 0
    seats: Mapping[str, frozenset[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogTime:
    """When a line was written.

    Attributes:
        ns: Nanoseconds since 1970; of a stamp without a zone, as if it were UTC.
        step_ns: The smallest difference that such stamps can show.
        clock: Whose clock it is: two times of one clock can be compared. The node, or the file
            where the node is not known.
        is_zoned: Whether the zone is known; two zones differ by whole quarters of an hour.
        is_capture: Whether whystuck stamped the line when it came, rather than who wrote it.
    """

    ns: int
    step_ns: int = 1
    clock: str = ""
    is_zoned: bool = False
    is_capture: bool = False


@dataclass(frozen=True, slots=True)
class LogEvent:
    """A line of a log that a signature knows.

    Attributes:
        signature: The id of the signature, e.g. ``xid.79``.
        role: ``cause``, ``cascade`` (it follows from one) or ``context`` (it only helps).
        code: The code of the finding that such a line belongs to, or empty.
        kind: The class of trouble of the signature, e.g. ``gpu_lost``.
        artifact: The log.
        row: The line in it, from 1.
        text: The line without stamps, prefixes and colours, cut to 2000 characters.
        groups: What the named groups of the pattern hold.
        rank: Who wrote it, ``UNKNOWN_RANK`` when nothing tells.
        node: The host that wrote it, empty when nothing tells.
        pid: The process that wrote it, 0 when nothing tells.
        attempt: The launcher's attempt it belongs to, from 0.
        time: When it was written, None when nothing tells.
        count: How many lines of this rank in this log are alike; the first is kept.
        meaning: One sentence, from the table.
        action: What to do, from the table.
        is_hardware: ``yes``, ``maybe`` or ``no``.
        severity: From the table.
        is_past: Whether who wrote it made progress for long after it: it ended nothing.
    """

    signature: str
    role: str
    code: str
    kind: str
    artifact: str
    row: int
    text: str
    groups: Mapping[str, str] = field(default_factory=dict)
    rank: int = UNKNOWN_RANK
    node: str = ""
    pid: int = 0
    attempt: int = 0
    time: LogTime | None = None
    count: int = 1
    meaning: str = ""
    action: str = ""
    is_hardware: str = "maybe"
    severity: str = "error"
    is_past: bool = False


@dataclass(frozen=True, slots=True)
class LogCluster:
    """Lines that look like errors and that no signature knows, alike but for numbers and names.

    Attributes:
        template: The line with ``<*>`` in place of what differs.
        sample: The first such line.
        artifact: Where it is.
        row: The line in it, from 1.
        count: How many there are.
        ranks: Who wrote them.
        time: When the first was written.
    """

    template: str
    sample: str
    artifact: str
    row: int
    count: int
    ranks: frozenset[int] = frozenset()
    time: LogTime | None = None


@dataclass(frozen=True, slots=True)
class Logs:
    """All that logs tell, but for exceptions and exits, which have tables of their own.

    ``ranks_by_process`` has all ranks that are told of each process, by host and number: of two,
    neither is to be named. No text names the ``inferred`` ranks: local ranks alone tell of them.
    """

    files: tuple[LogFile, ...] = ()
    events: tuple[LogEvent, ...] = ()
    clusters: tuple[LogCluster, ...] = ()
    attempts: int = 1
    ranks_by_process: Mapping[tuple[str, int], frozenset[int]] = field(default_factory=dict)
    inferred: frozenset[int] = frozenset()

    def __len__(self) -> int:
        """Return the number of known lines."""
        return len(self.events)
