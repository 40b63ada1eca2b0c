"""Finds known lines in a log of any size, block by block.

Each signature has fixed texts of which every line that matches holds one. An engine finds those
texts in a whole block at once; only the lines around them are matched with the patterns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from whystuck.parse.logs.search.engines import Engine, Text, make_finder
from whystuck.parse.logs.search.patterns import MIN_LITERAL, find_literals
from whystuck.parse.logs.search.raw_lines import LineTable, Places
from whystuck.parse.logs.signatures import Signature

# A longer line is looked at in pieces of this size.
MAX_LINE = 8192
MAX_GROUP = 200
# Classes of signatures that healthy logs are full of, and how many of each signature are looked at;
# times are told by each rank.
_CENSUS, _TIMING = "census", "timing"
_QUIET = {"progress", _CENSUS, _TIMING}
MAX_QUIET, MAX_TIMES = 6, 256


@dataclass(frozen=True, slots=True)
class Hit:
    """A signature that matches a line.

    Attributes:
        offset: Where the line begins, in bytes from the start of the log.
        line: The line without its end; ``MAX_LINE`` bytes at most.
        signature: The id of the signature.
        groups: What the named groups of the pattern hold, cut to ``MAX_GROUP`` characters.
    """

    offset: int
    line: bytes
    signature: str
    groups: dict[str, str] = field(default_factory=dict)


# A piece of a line: its start and end, and the numbers of the signatures to try on it.
Piece = tuple[int, int, frozenset[int]]


@dataclass(frozen=True, slots=True)
class TellingPiece:
    """A piece of a line that may tell something.

    ``kind`` is the first signature of one that tells of progress alone; of these, ``most`` are
    looked at before a failure or the end. ``most`` is 0 for what may tell of a failure.
    """

    start: int
    end: int
    owners: frozenset[int]
    kind: int = 0
    most: int = 0

    def shift(self, by: int) -> TellingPiece:
        """Return the same further behind in the data."""
        return TellingPiece(self.start + by, self.end + by, self.owners, self.kind, self.most)


class LogScanner:
    """Finds signatures in one log that is given block by block.

    A line ends with a line feed or a carriage return, so each state of a progress bar is a line of
    its own. Memory stays constant: a block, and less than ``MAX_LINE`` bytes of the one before.
    """

    def __init__(self, patterns: LogPatterns) -> None:
        self._patterns = patterns
        self._rest = b""
        self._offset = 0

    def feed(self, block: bytes) -> list[Hit]:
        """Return the hits in all lines that this block completes, in the order of the log.

        Several signatures that match one line come in the order of their table.
        """
        data = self._rest + block
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        cut += (len(data) - cut) // MAX_LINE * MAX_LINE
        self._rest = data[cut:]
        return self._take(data, cut)

    def finish(self) -> list[Hit]:
        """Return the hits in a last line that has no end."""
        rest, self._rest = self._rest, b""
        return self._take(rest, len(rest))

    def _take(self, data: bytes, cut: int) -> list[Hit]:
        hits = list(self._patterns.scan(data, self._offset, cut))
        self._offset += cut
        return hits


class LogPatterns:
    """Signatures, made ready for the search; one object serves many logs, one after the other."""

    def __init__(
        self,
        signatures: Iterable[Signature],
        engine: Engine = "auto",
        marks: Iterable[bytes] = (),
    ) -> None:
        """Find the texts to search for; a pattern is compiled when a line has one of its texts.

        Args:
            signatures: What to look for; those that come first are told first.
            engine: ``auto`` is hyperscan where it can be loaded.
            marks: Further texts; `find_pieces` yields the lines that hold one too.

        Raises:
            ImportError: hyperscan was asked for and cannot be loaded.
            ValueError: A mark has less than four bytes, which not every engine can search for.
        """
        self._ids: list[str] = []
        self._patterns: list[bytes] = []
        self._compiled: dict[int, re.Pattern[bytes]] = {}
        signatures = tuple(signatures)
        owners: dict[tuple[bytes, bool], list[int]] = {}
        for number, signature in enumerate(signatures):
            self._ids.append(signature.id)
            self._patterns.append(signature.regex.encode())
            literals = find_literals(signature.regex)
            for text in _drop_longer(literals.texts):
                owners.setdefault((text, literals.caseless), []).append(number)
        for text in marks:
            if len(text) < MIN_LITERAL:
                raise ValueError(f"{text!r} is too short to be searched for")
            owners.setdefault((text, False), [])
        self._texts = [Text(text, low, frozenset(known)) for (text, low), known in owners.items()]
        self._kinds = _TextKinds(self._texts, signatures)
        self._finder = make_finder(self._texts, engine)
        self.engine = self._finder.engine
        # How many texts were found so far, in all that was looked through.
        self.found = 0

    def _compile(self, owner: int) -> re.Pattern[bytes]:
        known = self._compiled.get(owner)
        if known is None:
            known = self._compiled[owner] = re.compile(self._patterns[owner])
        return known

    def scan(self, data: bytes, offset: int = 0, cut: int | None = None) -> Iterator[Hit]:
        """Yield the hits in whole lines.

        Args:
            data: The lines.
            offset: Where they begin in the log.
            cut: Where the last whole line ends; the end of the data when left out.
        """
        for start, end, owners in self.find_pieces(data, len(data) if cut is None else cut):
            line = data[start:end]
            # A file that was cut while it was being written begins with a hole.
            text = line.lstrip(b"\0")
            place = offset + start + len(line) - len(text)
            for owner in sorted(owners):
                if match := self._compile(owner).search(text):
                    yield Hit(place, text, self._ids[owner], _groups_of(match))

    def find_first(self, owners: Iterable[int], *lines: bytes) -> tuple[int, dict[str, str]] | None:
        """Return the first of some signatures that matches one of some lines, with its groups.

        Args:
            owners: Numbers of signatures, as `find_pieces` yields them.
            lines: Forms of one line.
        """
        for owner in sorted(owners):
            for line in lines:
                if match := self._compile(owner).search(line):
                    return owner, _groups_of(match)
        return None

    def find_telling(self, data: bytes, lines: LineTable) -> Iterator[TellingPiece]:
        """Yield the same as `find_pieces`, but few of the lines that tell of progress.

        To look at each would take three times as long as all the rest. The last ones tell: of all,
        and before each line that may tell of a failure.

        Args:
            data: The lines.
            lines: Where they are.
        """
        found = self._find(data, len(data), lines)
        kinds = self._kinds.judge(found)
        # Most communicators are of no use, and there may be many.
        for at in np.flatnonzero(kinds.is_census).tolist():
            start, end, owners = self._piece_of(found, at)
            kinds.is_useless[at] = not self.find_first(owners, data[start:end])
        for at in kinds.pick().tolist():
            start, end, owners = self._piece_of(found, at)
            if kinds.is_loud[at]:
                yield TellingPiece(start, end, owners)
            else:
                kind = int(kinds.least[at])
                yield TellingPiece(start, end, owners, kind, int(kinds.most[kind]))

    def find_pieces(self, data: bytes, cut: int) -> Iterator[Piece]:
        """Yield the pieces of lines that hold a text, in their order.

        Args:
            data: The lines.
            cut: Where the last whole line ends.

        Yields:
            Start and end of the piece, and the numbers of the signatures to try; none where it
            holds nothing but a mark.
        """
        found = self._find(data, cut, LineTable(data))
        for at in range(len(found.first)):
            yield self._piece_of(found, at)

    def _find(self, data: bytes, cut: int, lines: LineTable) -> _Found:
        places, numbers = self._finder.find(data)
        self.found += len(places)
        count = places.searchsorted(cut)
        places, numbers = places[:count], numbers[:count]
        starts, ends = lines.find_lines(places)
        starts = places - (places - starts) % MAX_LINE
        first = np.flatnonzero(np.diff(starts, prepend=-1))
        starts = starts[first]
        return _Found(starts, np.minimum(starts + MAX_LINE, ends[first]), first, numbers)

    def _piece_of(self, found: _Found, at: int) -> Piece:
        behind = found.first[at + 1] if at + 1 < len(found.first) else None
        texts = [self._texts[number] for number in found.numbers[found.first[at] : behind]]
        owners = texts[0].owners.union(*(text.owners for text in texts[1:]))
        return int(found.starts[at]), int(found.ends[at]), owners


@dataclass(frozen=True, slots=True)
class _Found:
    """Pieces of lines: where they are, and the texts in each, from its first one on."""

    starts: Places
    ends: Places
    first: Places
    numbers: Places


class _TextKinds:
    """What each text tells of the lines that hold it, for many lines at once."""

    def __init__(self, texts: Sequence[Text], signatures: Sequence[Signature]) -> None:
        census = {at for at, one in enumerate(signatures) if one.kind == _CENSUS}
        quiet = {at for at, one in enumerate(signatures) if one.kind in _QUIET}
        self._most = np.array(
            [MAX_TIMES if one.kind == _TIMING else MAX_QUIET for one in signatures], np.int64
        )
        self._is_mark = np.array([not text.owners for text in texts], np.bool_)
        self._is_loud = np.array([not text.owners <= quiet for text in texts], np.bool_)
        self._is_more = np.array([not text.owners <= census for text in texts], np.bool_)
        self._least = np.array([min(text.owners, default=len(signatures)) for text in texts])

    def judge(self, found: _Found) -> _Kinds:
        """Tell the kind of each piece."""
        first, numbers = found.first, found.numbers
        is_loud = np.logical_or.reduceat(self._is_loud[numbers], first)
        is_loud |= np.logical_or.reduceat(self._is_mark[numbers], first)
        is_more = np.logical_or.reduceat(self._is_more[numbers], first)
        least = np.minimum.reduceat(self._least[numbers], first)
        is_useless = np.zeros(len(first), np.bool_)
        return _Kinds(is_loud, ~is_loud & ~is_more, is_useless, least, self._most)


@dataclass(frozen=True, slots=True)
class _Kinds:
    """Of each piece: whether it may tell of a failure, or of a communicator alone.

    ``is_useless`` is set for those that are left out, and ``least`` is the first signature of each;
    ``most`` tells of each signature how many are looked at.
    """

    is_loud: NDArray[np.bool_]
    is_census: NDArray[np.bool_]
    is_useless: NDArray[np.bool_]
    least: Places
    most: Places

    def pick(self) -> Places:
        """Return which pieces to look at: all that are loud, and few before each of those."""
        is_quiet = ~self.is_loud & ~self.is_useless
        quiet = np.flatnonzero(is_quiet)
        runs = self.is_loud.cumsum()[quiet] * (self.least.max(initial=0) + 1) + self.least[quiet]
        order = runs.argsort(kind="stable")
        for most in (MAX_QUIET, MAX_TIMES):
            # Those with as many of the same run behind them.
            early = order[:-most][runs[order[:-most]] == runs[order[most:]]]
            is_quiet[quiet[early[self.most[self.least[quiet[early]]] == most]]] = False
        return np.flatnonzero(self.is_loud | is_quiet)


def _groups_of(match: re.Match[bytes]) -> dict[str, str]:
    return {
        name: value.decode(errors="replace")[:MAX_GROUP]
        for name, value in match.groupdict().items()
        if value is not None
    }


def _drop_longer(texts: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the texts that hold no other of them: where a longer one stands, so does that."""
    for text in texts:
        if not any(other in text for other in texts if other != text):
            yield text
