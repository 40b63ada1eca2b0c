"""Reads one log of any size, block by block: known lines, tracebacks, ends, facts.

What a healthy log is full of is never looked at line by line: the scanner finds the lines that
may matter, and only from those on are lines taken one by one, until nothing is open any more.
"""

from __future__ import annotations

from collections import deque
from functools import partial

from whystuck.parse.logs.blocks.calls.ras import RasReader
from whystuck.parse.logs.blocks.machines.boot_lines import BootReader
from whystuck.parse.logs.blocks.notes import find_notes
from whystuck.parse.logs.blocks.rank_tables.rank_tables import MOST_ABOVE
from whystuck.parse.logs.blocks.sections import SectionFinder
from whystuck.parse.logs.blocks.stacks.cut_traces import read_headless
from whystuck.parse.logs.blocks.stacks.fatals import FatalReader
from whystuck.parse.logs.blocks.stacks.shown_source import MAX_SHOWN, MOST_PASTED, find_shown
from whystuck.parse.logs.blocks.stacks.stacks import StackReader
from whystuck.parse.logs.blocks.stacks.tracebacks import TraceReader
from whystuck.parse.logs.blocks.tables.tables import TableReader
from whystuck.parse.logs.clusters import ClusterReader
from whystuck.parse.logs.compiled import LogTables, load_tables
from whystuck.parse.logs.exits import ExitReader
from whystuck.parse.logs.lines.above import BEFORE_BYTES, count_above, lines_above, read_raw
from whystuck.parse.logs.lines.labels import learn_labels
from whystuck.parse.logs.lines.line_forms import cut_bar
from whystuck.parse.logs.lines.lines import MAX_TEXT, LogLine, parse_line
from whystuck.parse.logs.lines.progress_lines import HeldLine, HeldLines
from whystuck.parse.logs.lines.wrapped import find_width, join_wrapped, split_record
from whystuck.parse.logs.parts import EventKeeper, EventSeen, LogPart
from whystuck.parse.logs.sampling import HEAD_BYTES, LogSampler
from whystuck.parse.logs.search.raw_lines import COLOUR, LINE, LineTable, skip_end, split_lines
from whystuck.parse.logs.search.scan import MAX_LINE, TellingPiece

# Of each end, no more lines than this; of a job with very many logs, few of each. One takes 20 us.
MAX_SAMPLED = 100_000
LEAST_SAMPLED = 6
# A log without line ends is cut into pieces.
MAX_REST = 1 << 20
# So many lines of a log that are not healthy are looked at, and one more for so many bytes of it;
# from then on, only those at the end of each block: each takes 40 us, half a second for each MB.
MAX_LOOKS = 100_000
LEAST_LOOKS = 2_000
_BYTES_PER_LOOK = 2_000
_LAST_BYTES = 1 << 15
# To find a text takes a tenth of the time that a look at its line takes.
_FOUND_PER_LOOK = 10


class LogReader:
    """Reads one log that is given block by block; memory stays constant."""

    def __init__(
        self,
        tables: LogTables,
        head: bytes = b"",
        looks: int = MAX_LOOKS,
        sampled: int = MAX_SAMPLED,
    ) -> None:
        """Begin a log.

        Args:
            tables: What to look for.
            head: The first bytes of the log, to learn what stands before its lines; those of the
                first block when left out.
            looks: How many lines may be looked at, beside those that its size allows.
            sampled: How many lines of each end are looked at for what they tell of the job.
        """
        self._patterns = tables.patterns
        self._labels, self._own = learn_labels([], {})
        self._width = 0
        self._parsed: dict[bytes, LogLine] = {}  # what labels were learned from, looked at again
        if head:
            self._find_labels(head)
        self._is_new = not head
        self._looks = looks
        self._rest = b""
        self._row, self._last_row = 1, 0
        self._last: LogLine | None = None
        self._behind = b""
        self._traces, self._exits = TraceReader(), ExitReader()
        self._fatals, self._ras, self._boot = FatalReader(), RasReader(), BootReader()
        self._stacks, self._tables = StackReader(), TableReader()
        self._clusters, self._sections = ClusterReader(), SectionFinder()
        self._events = EventKeeper()
        self._part = LogPart()
        self._sampler = LogSampler(self._part.facts, self._parse, sampled)
        self._held = HeldLines()
        self._end_row = 0  # first line of another part, 0 where there is none

    def feed(self, block: bytes) -> None:
        """Take the next block."""
        self._part.size += len(block)
        self._looks += len(block) // _BYTES_PER_LOOK
        data = self._rest + block if self._rest else block
        if self._is_new:
            if len(data) < HEAD_BYTES:
                self._rest = data
                return
            self._learn(data)
        cut = data.rfind(b"\n") + 1
        if self._width and len(data) < HEAD_BYTES:
            cut = 0  # a record that is wrapped may go on in the next block
        elif not cut and len(data) > MAX_REST:
            cut = len(data)
        self._rest = data[cut:]
        if cut:
            self._take(data[:cut] if self._rest else data)

    def drain(self, data: bytes) -> None:
        """Take what comes behind the end of this part, only to end what began in it.

        Args:
            data: The lines behind; those of another part, which tells the rest of them.
        """
        rest, self._rest = self._rest, b""
        if rest:
            self._take(rest)
        self._look_at_held()
        self._sampler.finish()
        self._end_row = self._row
        self._walk(COLOUR.sub(b"", data), 0, self._row, deque())

    def finish(self) -> LogPart:
        """Take a last line without an end, and return what was found."""
        rest, self._rest = self._rest, b""
        if self._is_new:
            self._learn(rest)
        if rest:
            self._take(rest)
        self._look_at_held()
        self._sampler.finish()
        part = self._part
        self._close()
        part.events = self._events.list_events()
        part.clusters = self._clusters.clusters
        part.left_out += self._clusters.left_out + self._events.left_out
        part.rows = self._row - 1
        if self._end_row:
            # A table that goes on there is told by this part; both tell what has a head there.
            part.traces = [trace for trace in part.traces if trace.row < self._end_row]
            part.fatals = [fatal for fatal in part.fatals if fatal.row < self._end_row]
            part.stacks = [stack for stack in part.stacks if stack.row < self._end_row]
        part.traces.sort(key=lambda trace: trace.row)
        return part

    def _learn(self, head: bytes) -> None:
        """Learn what stands before the lines of this log."""
        self._find_labels(head[:HEAD_BYTES])
        self._is_new = False

    def _find_labels(self, head: bytes) -> None:
        self._parsed = {}
        self._width = find_width(head) if len(head) < HEAD_BYTES else 0  # people paste no more
        if self._width:
            head = join_wrapped(head, self._width)
        lines = split_lines(COLOUR.sub(b"", head))
        self._labels, self._own = learn_labels(lines, self._parsed)
        self._parsed = {} if self._labels or self._own else self._parsed  # parsed otherwise

    def _parse(self, data: bytes) -> LogLine:
        """Parse a line that is only looked at, and not kept."""
        return self._parsed.get(data) or parse_line(data, self._labels, self._own)

    @property
    def is_open(self) -> bool:
        """Whether something that was begun may go on in the next lines."""
        blocks = (self._fatals, self._ras, self._stacks, self._boot, self._tables)
        return any(reader.is_open for reader in (self._traces, self._exits, *blocks))

    def _take(self, data: bytes) -> None:
        if b"\x1b" in data:
            data = COLOUR.sub(b"", data)
        if self._width:
            data = join_wrapped(data, self._width)
        table = LineTable(data)
        lines = table.lines
        self._sections.begin()
        self._sampler.take(data, lines, self._row)
        self._find_shown(data)
        place, row, last = 0, self._row, len(data) - _LAST_BYTES
        if self._looks <= 0 < last:
            place, row = self._pass_over(data, place, row, last)
        found = self._patterns.found
        pieces = self._find_pieces(data, place, table)
        cost = (self._patterns.found - found) // _FOUND_PER_LOOK
        while place < len(data):
            if self._looks <= 0 and place < last:
                place, row = self._pass_over(data, place, row, last)
            if self.is_open:
                place, row = self._walk(data, place, row, pieces, last)
                continue
            while pieces and pieces[0].start < place:
                pieces.popleft()
            if not pieces:
                break
            piece = pieces.popleft()
            row += table.count_feeds(place, piece.start)
            place = piece.end
            if piece.most:
                self._hold(data, piece, row)
                continue
            self._look_at_held()
            self._look(data, slice(piece.start, place), row, piece.owners)
        self._looks -= cost
        self._row += lines
        self._behind = (self._behind + data[-BEFORE_BYTES:])[-BEFORE_BYTES:]

    def _find_shown(self, data: bytes) -> None:
        """Find source, and what is said of groups, in what somebody may have pasted."""
        if self._part.size <= MOST_PASTED:
            shown = find_shown(data, self._row)
            self._part.sources = [*self._part.sources, *shown][:MAX_SHOWN]
            for note in find_notes(data, self._row):
                self._part.keep_tabled(note)

    def _find_pieces(self, data: bytes, begin: int, table: LineTable) -> deque[TellingPiece]:
        """Find the lines from a place on that may matter."""
        if not begin:
            return deque(self._patterns.find_telling(data, table))
        rest = data[begin:]
        pieces = self._patterns.find_telling(rest, LineTable(rest))
        return deque(piece.shift(begin) for piece in pieces)

    def _hold(self, data: bytes, piece: TellingPiece, row: int) -> None:
        """Keep a line of progress, which is looked at before a failure, or at the end."""
        begin = max(0, piece.start - BEFORE_BYTES)
        before = data[begin : piece.start]
        if not begin:
            before = (self._behind + before)[-BEFORE_BYTES:]
        data = before + data[piece.start : piece.end]
        self._held.hold(HeldLine(row, data, len(before), piece.owners), piece.kind, piece.most)

    def _look_at_held(self) -> None:
        """Look at the lines of progress that were kept."""
        held = self._held.release()
        # They have with them what stands before them.
        behind, self._behind = self._behind, b""
        for line in held:
            place = slice(line.start, len(line.data))
            self._look(line.data, place, line.row, line.owners, is_held=True)
        self._behind = behind

    def _pass_over(self, data: bytes, place: int, row: int, last: int) -> tuple[int, int]:
        """Pass over lines of which there are too many; return where the next one begins."""
        begin = data.find(b"\n", last) + 1 or len(data)
        lines = data.count(b"\n", place, begin)
        self._part.left_out += lines
        self._close()
        return begin, row + lines

    def _close(self) -> None:
        """End what is open."""
        for trace in self._traces.finish():
            self._part.keep_trace(trace)
        for fatal in self._fatals.finish():
            self._part.keep_fatal(fatal)
        for answer in self._ras.finish():
            self._part.keep_ras(answer)
        for stack in self._stacks.finish():
            self._part.keep_stack(stack)
        self._traces, self._exits, self._fatals = TraceReader(), ExitReader(), FatalReader()
        self._stacks = StackReader()

    def _walk(
        self, data: bytes, place: int, row: int, pieces: deque[TellingPiece], last: int = 0
    ) -> tuple[int, int]:
        """Take lines one by one while something is open; return where the next one begins."""
        while place < len(data) and self.is_open and (self._looks > 0 or place >= last):
            if data[place : place + 1] in (b"\n", b"\r"):
                # The end of the line before; a line break of two characters is one.
                place, row = skip_end(data, place, row)
                continue
            match = LINE.match(data, place)
            end = match.end() if match else len(data)
            while pieces and pieces[0].start < place:
                pieces.popleft()
            owners = frozenset[int]()
            is_known = False
            while pieces and pieces[0].start < end:
                piece = pieces.popleft()
                owners |= piece.owners
                is_known |= not piece.most
            line = slice(place, min(end, place + MAX_LINE))
            self._look(data, line, row, owners, is_mark=is_known)
            place = end
        return place, row

    def _read_traces(self, line: LogLine, row: int, above: list[bytes]) -> None:
        for one in split_record(line):
            for trace in self._traces.read(one, row, map(self._parse, above)):
                self._part.keep_trace(trace)

    def _name_section(self, line: LogLine, data: bytes, start: int) -> None:
        host = line.node
        self._sections.name(line, data, start)
        if line.is_kernel and line.node != host:
            self._part.facts.note_host(line.node)

    def _look(
        self,
        data: bytes,
        place: slice,
        row: int,
        owners: frozenset[int],
        *,
        is_mark: bool = True,
        is_held: bool = False,
    ) -> None:
        """Take one line, which stands at a place of the data."""
        self._looks -= 1
        line = parse_line(raw := cut_bar(data[place]), self._labels, self._own)
        is_mark = is_mark and not self._end_row
        before: list[bytes] = []
        if line.stamp is None and self._last_row < row - 1:
            before = lines_above(self._behind, data, place.start)
        self._inherit(line, row, before)
        if is_mark:
            self._part.facts.note(line, row)
        if not is_held:
            self._name_section(line, data, place.start)
        is_known = bool(owners) and self._find_event(line, raw, row, owners)
        above = [*reversed(before)]
        self._read_traces(line, row, above)
        if is_mark and not self._traces.took:
            more = partial(lines_above, self._behind, data, place.start)
            if cut := read_headless(line, row, more, self._parse):
                self._part.keep_trace(cut)
            elif not is_known:
                self._clusters.read(line, row)
        self._take_blocks(data, place.start, line, row, is_mark=is_mark)
        if is_mark or self._exits.is_open:
            for seen in self._exits.read(line, row):
                self._part.keep_exit(seen)
        self._last, self._last_row = line, row

    def _take_blocks(
        self, data: bytes, start: int, line: LogLine, row: int, *, is_mark: bool
    ) -> None:
        """Give a line to what reads several of them as one thing."""
        for fatal in self._fatals.read(line, row):
            self._part.keep_fatal(fatal)
        for answer in self._ras.read(line.text, row):
            self._part.keep_ras(answer)
        self._part.boot += self._boot.read(line, row, is_mark=is_mark)
        if is_mark or self._tables.is_open:
            self._take_tabled(data, start, line, row, is_mark=is_mark)
        if self._fatals.is_of(line.owner) or not (is_mark or self._stacks.is_open):
            return
        begins = self._stacks.begins(line.text)
        fresh = row - 1 - self._stacks.last_row
        count = count_above(data, start, fresh) if begins else 0
        before = lines_above(self._behind, data, start, count) if count else []
        for stack in self._stacks.read(line, row, map(self._parse, before)):
            self._part.keep_stack(stack)

    def _take_tabled(
        self, data: bytes, start: int, line: LogLine, row: int, *, is_mark: bool
    ) -> None:
        """Give a line to the readers of tables, as it stands there as well."""

        def list_above() -> list[str]:
            above = lines_above(self._behind, data, start, MOST_ABOVE)
            return [one.decode("utf-8", errors="replace") for one in reversed(above)]

        for tabled in self._tables.read(
            line, read_raw(data, start), row, list_above, is_mark=is_mark
        ):
            self._part.keep_tabled(tabled)

    def _find_event(self, line: LogLine, raw: bytes, row: int, owners: frozenset[int]) -> bool:
        found = self._patterns.find_first(owners, line.text.encode(), raw.lstrip(b"\0"))
        if found is not None:
            line.text = line.text[:MAX_TEXT]
            attempt = self._part.facts.count_restarts(row)
            self._events.keep(EventSeen(found[0], row, line, found[1], attempt))
        return found is not None

    def _inherit(self, line: LogLine, row: int, before: list[bytes]) -> None:
        """Give a line without a time that of the line just before it, of the same writer."""
        last = self._last if self._last_row >= row - 1 else None
        last = self._parse(before[-1]) if before else last
        if line.stamp is None and last is not None and last.owner == line.owner:
            line.stamp = last.stamp


def read_log(data: bytes, tables: LogTables | None = None, block: int = 1 << 20) -> LogPart:
    """Read a log that is in memory.

    Args:
        data: The log.
        tables: What to look for; ours when left out.
        block: How many bytes to take at once.
    """
    reader = LogReader(tables or load_tables(), data[:HEAD_BYTES])
    for start in range(0, len(data), block):
        reader.feed(data[start : start + block])
    return reader.finish()
