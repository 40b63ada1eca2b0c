"""What was found in one log, or in a part of it; and parts put together again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.parse.boot_check import MAX_SEEN, BootSeen
from whystuck.parse.logs.blocks.calls.ras import MAX_ANSWERS, RasSeen
from whystuck.parse.logs.blocks.stacks.fatals import FatalSeen
from whystuck.parse.logs.blocks.stacks.seen import StackSeen
from whystuck.parse.logs.blocks.stacks.shown_source import MAX_SHOWN, SourceSeen
from whystuck.parse.logs.blocks.stacks.tracebacks import Trace
from whystuck.parse.logs.blocks.tables.tabled import MAX_ROWS, TabledSeen
from whystuck.parse.logs.clusters import MAX_RANKS, MAX_TEMPLATES, ClusterSeen
from whystuck.parse.logs.exits import ExitSeen
from whystuck.parse.logs.facts import LogFacts
from whystuck.parse.logs.lines.lines import LogLine

# Writers with an event of one signature, and different lines of each of them.
MAX_EVENTS = 20_000
MAX_TEXTS = 16
MAX_TRACES = 4000
MAX_EXITS = 40_000
MAX_FATALS = 4000
MAX_STACKS = 20_000


@dataclass(slots=True)
class EventSeen:
    """A known line as it stands there; ``signature`` is its place in the table."""

    signature: int
    row: int
    line: LogLine
    groups: dict[str, str]
    attempt: int = 0
    count: int = 1


@dataclass(slots=True)
class LogPart:
    """What was found in one log, or in a part of it.

    ``rows`` is the number of its line ends, ``left_out`` that of things found and not kept.
    """

    events: list[EventSeen] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    exits: list[ExitSeen] = field(default_factory=list)
    fatals: list[FatalSeen] = field(default_factory=list)
    stacks: list[StackSeen] = field(default_factory=list)
    clusters: list[ClusterSeen] = field(default_factory=list)
    ras: list[RasSeen] = field(default_factory=list)
    boot: list[BootSeen] = field(default_factory=list)
    tabled: list[TabledSeen] = field(default_factory=list)
    sources: list[SourceSeen] = field(default_factory=list)
    facts: LogFacts = field(default_factory=LogFacts)
    rows: int = 0
    size: int = 0
    left_out: int = 0

    def keep_trace(self, trace: Trace) -> None:
        """Keep a traceback: of too many, the first ones and the last ones tell most."""
        self.traces.append(trace)
        if len(self.traces) > MAX_TRACES:
            del self.traces[MAX_TRACES // 2]
            self.left_out += 1

    def keep_exit(self, seen: ExitSeen) -> None:
        """Keep the end of a process."""
        if len(self.exits) < MAX_EXITS:
            self.exits.append(seen)
        else:
            self.left_out += 1

    def keep_fatal(self, fatal: FatalSeen) -> None:
        """Keep the stacks of a process that a signal ended."""
        if len(self.fatals) < MAX_FATALS:
            self.fatals.append(fatal)
        else:
            self.left_out += 1

    def keep_ras(self, seen: RasSeen) -> None:
        """Keep an answer of RAS."""
        if len(self.ras) < MAX_ANSWERS:
            self.ras.append(seen)
        else:
            self.left_out += 1

    def keep_tabled(self, tabled: TabledSeen) -> None:
        """Keep a row of a table: of too many, the last ones tell how it ended."""
        self.tabled.append(tabled)
        if len(self.tabled) > 2 * MAX_ROWS:
            del self.tabled[:MAX_ROWS]

    def keep_stack(self, stack: StackSeen) -> None:
        """Keep the stacks of a process that ran."""
        if len(self.stacks) < MAX_STACKS:
            self.stacks.append(stack)
        else:
            self.left_out += 1


class EventKeeper:
    """Counts known lines that are alike, and keeps the first of each; of too many, the last too."""

    def __init__(self) -> None:
        self._events: dict[tuple[object, ...], dict[str, EventSeen]] = {}
        self.left_out = 0

    def keep(self, event: EventSeen) -> None:
        """Take an event; those of one log come in its order."""
        line = event.line
        who = line.task if line.rank == UNKNOWN_RANK else line.rank
        # Of times, those of each phase.
        phase = event.groups.get("phase", "")
        key = (event.signature, who, line.member, line.local, line.node, event.attempt, phase)
        texts = self._events.get(key)
        if texts is None:
            if len(self._events) >= MAX_EVENTS:
                self.left_out += 1
                return
            texts = self._events[key] = {}
        known = texts.get(line.text)
        if known is not None:
            known.count += event.count
            return
        if len(texts) >= MAX_TEXTS:
            # How far a bar of progress came is told by its last line.
            _, last = texts.popitem()
            event.count += last.count
        texts[line.text] = event

    def list_events(self) -> list[EventSeen]:
        """Return what was kept, in the order of the log."""
        found = [event for texts in self._events.values() for event in texts.values()]
        return sorted(found, key=lambda event: event.row)


def merge_parts(parts: Sequence[LogPart]) -> LogPart:
    """Put the parts of one log together.

    Args:
        parts: All of them, in the order of the log. They are used up.
    """
    if len(parts) == 1:
        return parts[0]
    whole = LogPart()
    events = EventKeeper()
    clusters: dict[str, ClusterSeen] = {}
    for part in parts:
        _shift(part, whole.rows)
        for event in part.events:
            event.attempt += len(whole.facts.restarts)
            events.keep(event)
        for trace in part.traces:
            if not _is_inside(trace, whole.traces):
                whole.keep_trace(trace)
        rows = {seen.row for seen in whole.exits}
        for seen in part.exits:
            if seen.row not in rows:
                whole.keep_exit(seen)
        _add_blocks(whole, part)
        whole.left_out += part.left_out + _add_clusters(clusters, part.clusters)
        whole.facts.add(part.facts)
        whole.rows += part.rows
        whole.size += part.size
    whole.events, whole.clusters = events.list_events(), list(clusters.values())
    whole.left_out += events.left_out
    return whole


def _add_blocks(whole: LogPart, part: LogPart) -> None:
    """Add what is read from several lines as one thing."""
    for fatal in part.fatals:
        whole.keep_fatal(fatal)
    for answer in part.ras:
        whole.keep_ras(answer)
    whole.boot = [*whole.boot, *part.boot][-MAX_SEEN:]
    for stack in part.stacks:
        whole.keep_stack(stack)
    for tabled in part.tabled:
        whole.keep_tabled(tabled)
    whole.sources = [*whole.sources, *part.sources][:MAX_SHOWN]


def _shift(part: LogPart, rows: int) -> None:
    """Count the lines of a part from the start of the log."""
    for event in part.events:
        event.row += rows
    for trace in part.traces:
        for one in (trace, *trace.origins):
            one.row += rows
            one.last_row += rows
    for seen in part.exits:
        seen.row += rows
    for answer in part.ras:
        answer.row += rows
    part.boot = [replace(one, row=one.row + rows) for one in part.boot]
    for cluster in part.clusters:
        cluster.row += rows
    _shift_blocks(part, rows)
    part.facts.shift(rows)


def _shift_blocks(part: LogPart, rows: int) -> None:
    for fatal in part.fatals:
        fatal.row += rows
        fatal.last_row += rows
    for stack in part.stacks:
        stack.row += rows
    for tabled in part.tabled:
        tabled.row += rows
    for source in part.sources:
        source.row += rows


def _is_inside(trace: Trace, others: Iterable[Trace]) -> bool:
    """Whether a traceback is the end of a chain that began in the part before."""
    return any(
        other.row < trace.row <= other.last_row and other.line.owner == trace.line.owner
        for other in others
    )


def _add_clusters(clusters: dict[str, ClusterSeen], more: Iterable[ClusterSeen]) -> int:
    left_out = 0
    for cluster in more:
        known = clusters.get(cluster.template)
        if known is not None:
            known.count += cluster.count
            for kept, fresh in ((known.ranks, cluster.ranks), (known.tasks, cluster.tasks)):
                kept |= set(sorted(fresh)[: MAX_RANKS - len(kept)])
        elif len(clusters) < MAX_TEMPLATES:
            clusters[cluster.template] = cluster
        else:
            left_out += cluster.count
    return left_out
