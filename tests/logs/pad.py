"""Pad a case of the corpus to the size of a real job, without changing what is true of it.

    python -m tests.logs.pad NAME DIR --ranks 64 --seed 7 --wrap k8s --colour

The same case, size and seed always give the same bytes.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Literal

import msgspec
from tests.logs.cases import CORPUS, Case, Citation, LogFile, Truth, load_case
from tests.logs.healthy import OUTPUTS, Moment
from tests.logs.stamps import find_stamps, shift_stamps

Wrap = Literal["none", "iso", "k8s", "compose"]


@dataclass(frozen=True)
class Size:
    """How a case is padded. The defaults add healthy output and nothing that hides the text."""

    ranks: int
    seed: int = 0
    # Healthy lines of each rank and of each machine.
    lines: int = 12
    # Seconds the clock of a node is off at most.
    skew: float = 0.0
    # Put healthy lines of new ranks between the lines of the failure.
    interleave: bool = False
    # What a log collector puts before each line.
    wrap: Wrap = "none"
    colour: bool = False
    crlf: bool = False


@dataclass(frozen=True)
class Line:
    """A line on its way into a padded file."""

    text: str
    node: str | None = None
    # The line of the case it is, or is a copy of.
    origin: tuple[str, int] | None = None
    # The new rank that repeats that line.
    copy_of: int | None = None
    time: datetime | None = None


@dataclass
class Padded:
    """The padded case: the bytes of its files, and its truth with the lines where they are now."""

    files: dict[str, bytes] = field(default_factory=dict)
    truth: Truth | None = None

    def write(self, folder: Path) -> Path:
        """Write the case as a folder like those of the corpus."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        (folder / "truth.json").write_bytes(msgspec.json.encode(self.truth))
        return folder


def node_of(truth: Truth, rank: int) -> str:
    """Return the node of a rank: the one its file says, else by the number of the rank."""
    for file in truth.files:
        if file.node and (file.rank == rank or (file.kind == "merged" and rank in file.ranks)):
            return file.node
    return truth.pad.node.format(node=rank // truth.pad.per_node)


def renumber(text: str, old: int, new: int, truth: Truth) -> str:
    """Make a line of one rank a line of another: rank, local rank, node, process numbers."""
    per = truth.pad.per_node
    was, now = node_of(truth, old), node_of(truth, new)
    text = re.sub(rf"\b(rank ?|Rank |default|RANK=){old}\b", rf"\g<1>{new}", text)
    text = re.sub(
        rf"\b{re.escape(was)}:(\d+):(\d+) \[{old % per}\]",
        lambda hit: f"{was}:{int(hit[1]) + new}:{int(hit[2]) + new} [{new % per}]",
        text,
    )
    text = re.sub(rf"\b(cuda:|GPU ){old % per}\b", rf"\g<1>{new % per}", text)
    return re.sub(rf"\b{re.escape(was)}\b", now, text)


class _Padder:
    """The state of padding one case."""

    def __init__(self, case: Case, size: Size) -> None:
        self.case, self.truth, self.size = case, case.truth, size
        self.rng = Random(f"{case.name}/{size.seed}/{size.ranks}")
        world = self.truth.world
        self.world = max(world, size.ranks) if self.truth.pad.grow else world
        self.new = range(world, self.world)
        limit = self.truth.pad.max_skew
        skew = size.skew if limit is None else min(size.skew, limit)
        self._skew, self._offsets = skew, dict[str, float]()

    def offset(self, node: str) -> float:
        """Return how far the clock of a node is off, in seconds; the same at each call."""
        if node not in self._offsets:
            draw = Random(f"{self.case.name}/{self.size.seed}/{node}")
            self._offsets[node] = draw.uniform(-self._skew, self._skew)
        return self._offsets[node]

    # ------------------------------------------------------------------------- healthy lines

    def healthy(self, file: LogFile, ranks: Iterable[int]) -> list[Line]:
        """Make healthy lines of ranks, in the order of their times."""
        start, failed = self.truth.clock.start, self.truth.clock.failed
        every = (failed - start) / (self.size.lines + 1)
        lines = []
        for step in range(1, self.size.lines + 1):
            at_step = [(self.rng.random(), rank) for rank in ranks]
            for jitter, rank in sorted(at_step):
                time = start + every * (step + 0.9 * jitter - 0.5)
                lines.append(self.healthy_line(file, rank, step * 10, time))
        return lines

    def healthy_line(self, file: LogFile, rank: int, step: int, time: datetime) -> Line:
        """Make one healthy line, with the prefix of its file."""
        machine = file.kind not in {"rank", "merged", "agent"}
        node = file.node if machine and file.node else node_of(self.truth, rank)
        local = rank % self.truth.pad.per_node
        moment = Moment(rank, local, node, self.world, time, step, self.rng)
        text = self.head(file, rank) + OUTPUTS[file.output](moment)
        return Line(text, None if file.kind in {"scheduler", "events"} else node, time=time)

    # ---------------------------------------------------------------------------- the files

    def own_lines(self, file: LogFile) -> list[Line]:
        """Return the lines of a file of the case, with the node whose clock each shows."""
        lines = []
        for number, text in enumerate(self.case.read_lines(file.name), 1):
            text = re.sub(  # noqa: PLW2901 - the job's size as it is now
                rf"\b(n[rR]anks |world_size=|WORLD_SIZE=){self.truth.world}\b",
                rf"\g<1>{self.world}",
                text,
            )
            lines.append(Line(text, self._clock_of(file, text), (file.name, number)))
        return lines

    def _clock_of(self, file: LogFile, text: str) -> str | None:
        if file.kind in {"scheduler", "events"}:
            return None
        if file.prefix and file.kind == "merged":
            rank = self.rank_of(file, text)
            return file.node if rank is None else node_of(self.truth, rank)
        return file.node

    def head(self, file: LogFile, rank: int) -> str:
        """Return what stands before each line of a rank in a file, or nothing."""
        local = rank % self.truth.pad.per_node
        return (file.prefix or "").format(rank=rank, local=local, node=node_of(self.truth, rank))

    def rank_of(self, file: LogFile, text: str) -> int | None:
        """Return whose line of a merged file this is, by its prefix."""
        for rank in file.ranks:
            head = self.head(file, rank)
            if head and text.startswith(head):
                return rank
        return None

    def _is_of(self, file: LogFile, text: str, rank: int) -> bool:
        if file.prefix:
            return self.rank_of(file, text) == rank
        local = rank % self.truth.pad.per_node
        nccl = rf"{re.escape(node_of(self.truth, rank))}:\d+:\d+ \[{local}\] "
        said = rf"\[rank{rank}\]|\[Rank {rank}\]|{nccl}"
        return re.search(said, text) is not None

    def copies(self, file: LogFile, lines: list[Line], rank: int) -> list[Line]:
        """Return the lines from the failure on of the rank that new ranks are like, renumbered."""
        like = self.truth.pad.like
        if like is None:
            return []
        out = []
        for line in lines[file.insert :]:
            if file.kind == "rank" and file.rank != like:
                continue
            text = line.text
            if file.kind == "merged":
                if not self._is_of(file, text, like):
                    continue
                old, new = self.head(file, like), self.head(file, rank)
                text = new + text.removeprefix(old) if text.startswith(old) else text
            text = renumber(text, like, rank, self.truth)
            out.append(replace(line, text=text, node=node_of(self.truth, rank), copy_of=rank))
        return out

    def mixed(self, ranks: list[list[Line]]) -> list[Line]:
        """Put the lines of ranks into one list: one rank after the other, or in a mess."""
        if not self.size.interleave:
            return [line for lines in ranks for line in lines]
        turns = [number for number, lines in enumerate(ranks) for _ in lines]
        self.rng.shuffle(turns)
        queues = [iter(lines) for lines in ranks]
        return [next(queues[turn]) for turn in turns]

    def pad_file(self, file: LogFile) -> dict[str, list[Line]]:
        """Pad one file of the case. May make files for new ranks and nodes."""
        own = self.own_lines(file)
        pad = self.truth.pad
        if file.kind == "merged":
            new = list(self.new) if file.name == pad.file else []
            head = self.healthy(file, [*file.ranks, *new])
            tail = list(own[file.insert :])
            if self.size.interleave and new:
                tail = list(self._interleaved(file, tail, new))
            tail += self.mixed([self.copies(file, own, rank) for rank in new])
            made = {file.name: [*own[: file.insert], *head, *tail]}
            if "{node}" in pad.file and file is self._template("merged"):
                made |= self._new_nodes(file, own)
            return made
        if file.kind == "rank":
            assert file.rank is not None
            head = self.healthy(file, [file.rank])
            made = {file.name: [*own[: file.insert], *head, *own[file.insert :]]}
            if "{rank}" in pad.file and file is self._template("rank"):
                made |= self._new_ranks(file, own)
            return made
        head = [] if file.kind == "agent" else self.healthy(file, [0])
        return {file.name: [*own[: file.insert], *head, *own[file.insert :]]}

    def _template(self, kind: str) -> LogFile | None:
        """Return the file that files of new ranks are made after."""
        files = [file for file in self.truth.files if file.kind == kind]
        like = self.truth.pad.like
        for file in files:
            if like is not None and (file.rank == like or like in file.ranks):
                return file
        return files[0] if files else None

    def _new_ranks(self, file: LogFile, own: list[Line]) -> dict[str, list[Line]]:
        return {
            self.truth.pad.file.format(rank=rank, node=node_of(self.truth, rank)): [
                *self.healthy(file, [rank]),
                *self.copies(file, own, rank),
            ]
            for rank in self.new
        }

    def _new_nodes(self, file: LogFile, own: list[Line]) -> dict[str, list[Line]]:
        nodes: dict[str, list[int]] = {}
        for rank in self.new:
            nodes.setdefault(node_of(self.truth, rank), []).append(rank)
        made = {}
        for node, ranks in nodes.items():
            name = self.truth.pad.file.format(node=node)
            copies = [self.copies(file, own, rank) for rank in ranks]
            made[name] = [*self.healthy(file, ranks), *self.mixed(copies)]
        return made

    def _interleaved(self, file: LogFile, lines: list[Line], new: list[int]) -> Iterator[Line]:
        for line in lines:
            while self.rng.random() < 0.3:
                rank = self.rng.choice(new)
                yield self.healthy_line(file, rank, 9990, self.truth.clock.failed)
            yield line

    # ------------------------------------------------------------------------- how it looks

    def dress(self, lines: list[Line]) -> list[str]:
        """Give lines the clock of their node, and what terminals and collectors add."""
        year, out = self.truth.clock.start.year, []
        # Capture stamps are the collector's: one clock, never backwards.
        now = self.truth.clock.start
        for line in lines:
            text = line.text
            own = line.time or self._own_time(text, year)
            now = max(now, own) if own else now + timedelta(microseconds=211)
            if self._skew and line.node:
                text = shift_stamps(text, round(self.offset(line.node), 3), year)
            if self.size.colour:
                text = _coloured(text)
            text = _wrapped(text, self.size.wrap, now, line.node)
            out.append(text + ("\r" if self.size.crlf else ""))
        return out

    def _own_time(self, text: str, year: int) -> datetime | None:
        for stamp in find_stamps(text, year):
            if stamp.style != "uptime":
                return stamp.time.replace(tzinfo=None)
        return None

    # ---------------------------------------------------------------------------- the truth

    def new_truth(self, files: dict[str, list[Line]]) -> Truth:
        """Return the truth with the lines where they are now; copies of cited lines are cited."""
        old = {(cite.file, cite.line): cite for cite in self.truth.lines}
        lines: list[Citation] = []
        for name, content in files.items():
            for number, line in enumerate(content, 1):
                if line.origin is None or (cite := old.get(line.origin)) is None:
                    continue
                has = cite.has
                if line.copy_of is not None and (like := self.truth.pad.like) is not None:
                    has = renumber(has, like, line.copy_of, self.truth)
                lines.append(msgspec.structs.replace(cite, at=f"{name}:{number}", has=has))
        victims = list(self.truth.victims)
        if self.truth.pad.like in victims:
            victims += self.new
        return msgspec.structs.replace(
            self.truth, lines=lines, world=self.world, victims=victims, files=[]
        )


def _coloured(text: str) -> str:
    def paint(hit: re.Match[str]) -> str:
        colour = {"E": 31, "C": 31, "W": 33}.get(hit[0][0], 32)
        return f"\x1b[{colour}m{hit[0]}\x1b[0m"

    return re.sub(r"\b(ERROR|CRITICAL|WARNING|WARN|INFO|Error)\b", paint, text)


def _wrapped(text: str, wrap: Wrap, time: datetime, node: str | None) -> str:
    if wrap == "iso":
        return f"{time:%Y-%m-%dT%H:%M:%S.%f}Z {text}"
    if wrap == "k8s":
        return f"{time:%Y-%m-%dT%H:%M:%S.%f}789Z stderr F {text}"
    if wrap == "compose":
        return f"{node or 'launcher':<12} | {text}"
    return text


def pad_case(case: Case, size: Size) -> Padded:
    """Pad a case.

    Args:
        case: A case of the corpus.
        size: How many ranks, and how the logs look.

    Returns:
        The files and the truth of the padded case.
    """
    padder = _Padder(case, size)
    files: dict[str, list[Line]] = {}
    for file in case.truth.files:
        files |= padder.pad_file(file)
    padded = Padded(truth=padder.new_truth(files))
    for name, lines in files.items():
        padded.files[name] = ("\n".join(padder.dress(lines)) + "\n").encode()
    return padded


def _main() -> None:
    parser = argparse.ArgumentParser(description="Pad a case of the corpus.")
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lines", type=int, default=12)
    parser.add_argument("--skew", type=float, default=0.0)
    parser.add_argument("--wrap", choices=["none", "iso", "k8s", "compose"], default="none")
    for flag in ("interleave", "colour", "crlf"):
        parser.add_argument(f"--{flag}", action="store_true")
    options = vars(parser.parse_args())
    name, folder = options.pop("name"), options.pop("folder")
    print(pad_case(load_case(CORPUS / name), Size(**options)).write(folder))


if __name__ == "__main__":
    _main()
