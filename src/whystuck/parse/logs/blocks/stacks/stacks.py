"""Stacks of processes that still ran, as text: py-spy, faulthandler, gdb, and summaries of many.

People paste them alone, one behind the other, or between the lines of a log. The stacks of each
writer are followed apart from those of others, as tracebacks are.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from whystuck.evidence.live import ThreadStack
from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.blocks.stacks.children import find_own_parent, find_parent
from whystuck.parse.logs.blocks.stacks.commands import find_local_rank, find_rank
from whystuck.parse.logs.blocks.stacks.forms import (
    COMMAND,
    GDB_BARE,
    GDB_NOISE,
    SPY,
    clean_line,
    cut_lead,
    cut_note,
    find_bare,
    find_head,
    find_locals,
    find_pid,
    find_process,
    make_thread,
    name_source,
    read_frame,
    read_number,
)
from whystuck.parse.logs.blocks.stacks.headings import (
    cut_sentence,
    find_group_heading,
    find_heading,
    find_local_heading,
    find_odd_heading,
    find_same,
    find_same_as,
    find_whose,
    is_same_word,
    take_note,
)
from whystuck.parse.logs.blocks.stacks.hosts import find_host
from whystuck.parse.logs.blocks.stacks.mains import is_worker, mark_main
from whystuck.parse.logs.blocks.stacks.pending import (
    MAX_STRANGERS,
    Heading,
    OpenProcess,
    read_heading_pid,
)
from whystuck.parse.logs.blocks.stacks.seen import StackSeen
from whystuck.parse.logs.blocks.stacks.summaries import read_summary
from whystuck.parse.logs.lines.lines import LogLine

# One of them is in the first line of each thread, or in a frame that is pasted without that line;
# healthy logs have none.
STACK_MARKS = (
    b" (active",
    b" (idle",
    b"(most recent call first)",
    b" (LWP ",
    *(b"#0  " + name for name in (b"0x", b"__", b"futex_")),
    b" (torch/",
    b" (pdb.py:",
    b" (threading.py:",
    b" (selectors.py:",
    b" (subprocess.py:",
    b" (socket.py:",
    b" (ssl.py:",
    b" (queue.py:",
    b'distributed_c10d.py", line',
)
_MAX_THREADS = 256
_MAX_FRAMES = 200
_MAX_NOTES = 16
_LEAST_NAMED = 2
# Lines between the name of a rank and its stack: a fence, the command, versions.
_MAX_PREAMBLE = 6
# Lines behind a stack in which somebody says who else has it.
_MAX_BEHIND = 4
# So many stacks may be meant by the rank that they are of.
_MAX_SHOWN = 64


class StackReader:
    """Follows the stacks of all writers of one log."""

    def __init__(self) -> None:
        self._open: dict[str, OpenProcess] = {}
        self._heading = Heading()
        self._last_owner = ""
        self._lines = 0
        # Processes of which the rank is told, and the last one that others are said to be like.
        self._shown: deque[StackSeen] = deque(maxlen=_MAX_SHOWN)
        self._alike: StackSeen | None = None
        # Where somebody last said which ranks are alike, of which stack, and who they are.
        self._said_alike: tuple[int, StackSeen, list[int]] | None = None
        # The process whose children are shown.
        self._parent = 0
        # The last line that was read while a stack was open.
        self.last_row = 0

    @property
    def is_open(self) -> bool:
        """Whether the next lines may belong to a stack."""
        return bool(self._open)

    def begins(self, text: str) -> bool:
        """Tell whether a stack begins in a line; what stands before it is of use then."""
        _, text = cut_lead(clean_line(text))
        return not self._open and (find_head(text) is not None or bool(find_bare(text)))

    def read(self, line: LogLine, row: int, before: Iterable[LogLine] = ()) -> Iterator[StackSeen]:
        """Take the next line; yield the processes that it ends."""
        for earlier in before:
            self._lines += 1
            text = clean_line(earlier.text)
            if not self._begin_bare(text, earlier, row):
                yield from self._take(text, earlier)
        self._lines += 1
        self.last_row = row if self._open else self.last_row
        lead, text = cut_lead(clean_line(line.text))
        if lead and self._note_heading(lead, line.rank):
            yield from self._close(line.owner)
        if summaries := [*read_summary(text, line, row)]:
            yield from summaries
        elif (head := find_head(text)) is not None and not self._is_first_frame(head, line.owner):
            yield from self._begin(head, line, row)
        elif not self._begin_bare(text, line, row) and self._open:
            yield from self._take(text, line)
        self.last_row = row if self._open else self.last_row
        for owner in [
            owner for owner, one in self._open.items() if self._lines - one.seen > MAX_STRANGERS
        ]:
            yield from self._close(owner)

    def _take(self, text: str, line: LogLine) -> Iterator[StackSeen]:
        """Take a line that may be a frame, or tell whose a stack is."""
        if self._take_frame(text, line.owner) or self._note_same(text, line):
            return
        if self._note_heading(text, line.rank):
            yield from self._close(line.owner)

    def _begin_bare(self, text: str, line: LogLine, row: int) -> bool:
        """Begin a process by its first frame, where a heading or a prefix names it alone."""
        heading = self._heading
        is_near = heading.names_one and self._lines - heading.seen <= _MAX_PREAMBLE
        is_named = is_near or line.rank != UNKNOWN_RANK
        if not is_named or line.owner in self._open or not (source := find_bare(text)):
            return False
        if not is_near and source != "py-spy":
            return False
        known = self._open_process(StackSeen(row, line, source=source))
        known.least = 1 if is_near else _LEAST_NAMED
        known.process.threads.append(ThreadStack(0, "MainThread", (), is_main=True))
        self._last_owner = line.owner
        return self._take_frame(text, line.owner)

    def _note_same(self, text: str, line: LogLine) -> bool:
        """Note the ranks of which a line behind a stack says that they have it, too."""
        owner = line.owner
        if line.rank != UNKNOWN_RANK and is_same_word(text):
            # What people write of a rank looks as if the rank had written it.
            text, owner = f"rank {line.rank}: {text}", self._last_owner
        # A comment behind a command is about the stack that the command shows.
        if "rank" not in text.lower() or COMMAND.search(text):
            return False
        known = self._find_open(owner)
        if known is not None and self._lines - known.seen > _MAX_BEHIND:
            known = None
        shown = known.process if known is not None else None
        if told := find_same_as(text[:400]):
            same, whose = told
            shown = self._find_shown(whose) if whose >= 0 else self._alike or shown
        else:
            same = find_same(text[:400]) if shown is not None else frozenset[int]()
            whose = find_whose(text[:400])
            shown = self._find_shown(whose) if whose >= 0 else shown
        if not same or shown is None:
            return False
        ranks = find_group_heading(text[:400], line.rank)[0]
        self._said_alike = (self._lines, shown, ranks) if ranks else None
        shown.others |= same - {shown.rank}
        self._alike = shown
        if known is not None:
            known.seen = self._lines
        return True

    def _find_shown(self, rank: int) -> StackSeen | None:
        """Find the last stack that a rank has, by its heading or by what is said of it."""
        shown = reversed(self._shown)
        return next((one for one in shown if rank in (one.own_rank, *one.others)), None)

    def finish(self) -> Iterator[StackSeen]:
        """Yield the stacks that the log ends in."""
        for owner in list(self._open):
            yield from self._close(owner)

    def _is_first_frame(self, head: re.Match[str], owner: str) -> bool:
        """Tell whether a frame that may begin the stack of a process is that of a known thread."""
        known = self._find_open(owner)
        return (
            head.re is GDB_BARE
            and known is not None
            and known.process.source == "gdb"
            and (bool(known.process.threads) and not known.frames)
        )

    def _find_open(self, owner: str) -> OpenProcess | None:
        """Find the process that a writer has open; only its first line may have all its names."""
        known = self._open.get(owner)
        if known is not None:
            return known
        owners = (self._last_owner, *reversed(self._open))
        return next(
            (self._open[one] for one in owners if one in self._open and one.startswith(owner)), None
        )

    def _note_heading(self, text: str, writer: int) -> bool:
        """Note a process or a rank that what follows is of."""
        text = cut_sentence(text.replace("RANK=RANK=", "RANK="), writer)  # as grep prints it
        if parent := find_parent(text[:400]):
            self._parent = parent
            return True
        self._parent = 0 if COMMAND.search(text) else self._parent
        if process := find_process(text):
            is_near = self._lines - self._heading.seen <= _MAX_PREAMBLE
            pid, command = process
            is_own = is_near and not self._heading.pid and self._heading.rank_pid in (0, pid)
            told, node = self._heading if is_own else Heading(), self._heading.node * is_near
            rank, whose = told.rank, (told.local, told.others)
            rank = find_rank(command) if rank == UNKNOWN_RANK else rank
            self._heading = Heading(rank, pid, command, self._lines, 0, writer, node, *whose)
        elif self._open and (odd := find_odd_heading(text[:200])):
            own = read_heading_pid(text)
            self._heading = Heading(odd[0], 0, "", self._lines, own, writer, local=odd[1])
        elif (local := find_local_heading(text[:200], writer)) >= 0:
            self._heading = Heading(seen=self._lines, writer=writer, local=local)
            self._heading.rank_pid = read_heading_pid(text)
            self._heading.others = find_same(text[:400], is_heading=True)
        elif match := find_heading(text[:200], writer):
            groups, self._parent = match.groupdict(), 0
            number = int(groups.get("rank") or groups.get("last") or match["said"])
            rank = number if number <= MAX_RANK else UNKNOWN_RANK
            self._heading = Heading(rank, 0, "", self._lines, read_heading_pid(text), writer)
            others = find_same(text[:400], is_heading=True) - {rank}
            self._heading.others, self._heading.node = others, find_host(text)
        elif not self._note_several(text, writer):
            if GDB_NOISE.match(text):
                self._heading.seen += 1
            elif writer not in (UNKNOWN_RANK, self._heading.writer, self._heading.rank):
                self._heading = Heading()  # somebody else speaks: it was no heading
            return False
        return True

    def _note_several(self, text: str, writer: int) -> bool:
        """Note some ranks, or a host, that what follows is of."""
        ranks, is_rest = find_group_heading(text[:400], writer)
        node = find_host(text) if not ranks and not is_rest else ""
        if ranks or is_rest or node:
            first, *others = ranks or [UNKNOWN_RANK]
            self._heading = Heading(first, seen=self._lines, writer=writer, node=node)
            self._heading.others, self._heading.is_rest = frozenset(others), is_rest
        return bool(ranks or is_rest or node)

    def _begin(self, head: re.Match[str], line: LogLine, row: int) -> Iterator[StackSeen]:
        """Begin a thread, in the process that is open or in a new one."""
        known = self._open.get(line.owner)
        if known is not None and _is_other(known, head):
            yield from self._close(line.owner)
            known = None
        if known is None:
            process = StackSeen(row, line, source=name_source(head))
            self._take_as_heading()
            known = self._open_process(process, find_pid(head))
            take_note(process, head.groupdict().get("note") or "")
        self._end_thread(known)
        known.seen = self._lines
        known.process.pid = known.process.pid or find_pid(head)
        self._last_owner = line.owner
        if len(known.process.threads) < _MAX_THREADS:
            known.process.threads.append(make_thread(head, known.process.pid))
        if head.re is GDB_BARE:
            self._take_frame(head.string, line.owner)

    def _take_as_heading(self) -> None:
        """Take what was said of ranks that are alike as the heading of a stack right below it."""
        at, shown, ranks = self._said_alike or (0, None, [])
        if shown is not None and self._lines - at == 1:
            shown.others -= {*ranks}
            others = frozenset(ranks[1:])
            self._heading = Heading(ranks[0], seen=at, others=others)

    def _open_process(self, process: StackSeen, main_pid: int = 0) -> OpenProcess:
        line, heading = process.line, self._heading
        if self._lines - heading.seen <= _MAX_PREAMBLE + (2 if heading.pid else 0):
            is_own = line.rank in (UNKNOWN_RANK, heading.writer, heading.rank)
            process.pid, process.rank = heading.pid, heading.rank if is_own else UNKNOWN_RANK
            local = find_local_rank(heading.command)
            process.node, process.local = heading.node, heading.local if local < 0 else local
            process.others, process.is_rest = heading.others, heading.is_rest
            own_pid = process.pid or main_pid
            if heading.rank_pid and own_pid and own_pid != heading.rank_pid:
                process.rank, process.local, process.others = UNKNOWN_RANK, -1, frozenset()
            process.pid = own_pid or heading.rank_pid
            process.parent = find_own_parent(heading.command)
        process.parent = process.parent or self._parent
        self._heading, self._alike = Heading(), None
        if process.own_rank != UNKNOWN_RANK:
            self._shown.append(process)
        known = self._open[line.owner] = OpenProcess(process, self._lines, command=heading.command)
        return known

    def _take_frame(self, text: str, owner: str) -> bool:
        known = self._find_open(owner)
        if known is None:
            return False
        text, note = cut_note(text)
        if self._is_variable(known, text):
            if note and known.frames:
                known.notes.append((len(known.frames) - 1, note))
            return True
        if (frame := read_frame(text, known.process.source)) is None:
            return False
        if len(known.frames) < _MAX_FRAMES:
            known.frames.append(frame)
            known.notes += [(len(known.frames) - 1, note)] if note else []
        known.seen = self._lines
        return True

    def _is_variable(self, known: OpenProcess, text: str) -> bool:
        """Tell whether a line shows variables of the last frame."""
        if known.process.source != "py-spy" or not known.frames:
            return False
        begin = find_locals(text)
        if begin >= 0:
            known.indent = begin
        elif known.indent >= 0 and len(text) - len(text.lstrip()) <= known.indent:
            known.indent = -1
        if known.indent >= 0:
            known.seen = self._lines
        return known.indent >= 0

    def _end_thread(self, known: OpenProcess) -> None:
        """Give the thread that is read its frames."""
        if known.process.threads and known.frames:
            last = known.process.threads[-1]
            notes = (*known.notes[:_MAX_NOTES],)
            known.process.threads[-1] = replace(last, frames=(*known.frames,), notes=notes)
        known.frames, known.notes, known.indent = [], [], -1

    def _close(self, owner: str) -> Iterator[StackSeen]:
        known = self._open.pop(owner, None)
        if known is None:
            return
        self._end_thread(known)
        process = known.process
        if len(process.threads) == 1 and len(process.threads[0].frames) < known.least:
            return
        process.threads = mark_main([one for one in process.threads if one.frames])
        if process.threads:
            process.is_worker = is_worker(process.threads, known.command)
            yield process


def _is_other(known: OpenProcess, head: re.Match[str]) -> bool:
    """Tell whether a thread is of another process, or of a later look, than those before."""
    if name_source(head) != known.process.source or head.re is GDB_BARE:
        return True
    numbers = {one.thread_id for one in known.process.threads}
    if head.re is SPY and head["name"] == "MainThread":
        return any(one.name == "MainThread" for one in known.process.threads)
    return read_number(head) in numbers
