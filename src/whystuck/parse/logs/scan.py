"""Finds known lines in a log of any size, block by block.

Each signature has fixed texts of which every line that matches holds one. An engine finds those
texts in a whole block at once; only the lines around them are matched with the patterns. Both
engines find every such text, so both give the same hits.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain
from operator import itemgetter
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from whystuck.parse.logs.patterns import MIN_LITERAL, find_literals
from whystuck.parse.logs.signatures import Signature

# A longer line is looked at in pieces of this size.
MAX_LINE = 8192
MAX_GROUP = 200
# What the numpy engine takes at once: the tables it makes of it stay in the cache.
_CHUNK = 1 << 17
# Classes of signatures that healthy logs are full of, and how many of each signature are looked at.
_PROGRESS, _CENSUS = "progress", "census"
_MAX_QUIET = 6

# What healthy logs are full of, in small letters: the numpy engine looks for rarer bytes.
_COMMON = b"""
[default0]:[rank0]: node1:22:33 [0] nccl info net/ib : using net/socket channel via p2p comm init
warning: futurewarning userwarning python3 site-packages torch/distributed/ cuda: errors error: loss
iteration number of global batch size saved loading checkpoint worker process rank timeout 2026-11
slurmstepd: srun: nvrm: kernel mlx5_core pid= status code failed 00000 11111 22222 33333 44444 77777
consumed samples: elapsed time per iteration connected all rings resource memory usage ] step ] set
the given array is not writable train training epoch loss step number of nan iterations loss scale
"""
_SMALL = frozenset(b"abcdefghijklmnopqrstuvwxyz ")

Engine = Literal["auto", "numpy", "hyperscan"]


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


@dataclass(frozen=True, slots=True)
class _Text:
    """A fixed text, and the numbers of the signatures that it may stand for."""

    text: bytes
    caseless: bool
    owners: tuple[int, ...]

    def is_at(self, data: bytes, start: int) -> bool:
        """Whether the text stands at a place of the data."""
        if start < 0:
            return False
        if not self.caseless:
            return data.startswith(self.text, start)
        return data[start : start + len(self.text)].lower() == self.text.lower()


class _Finder(Protocol):
    """Finds fixed texts in a block."""

    engine: Engine

    def find(self, data: bytes) -> list[tuple[int, int]]:
        """Return place and number of each text in the data, by place."""


class _NumpyFinder:
    """Looks up every four bytes of the block in a table of 65,536 bits, all at once.

    Each text is stood for by its four rarest bytes.
    """

    engine: Engine = "numpy"

    def __init__(self, texts: Sequence[_Text]) -> None:
        self._texts = texts
        self._by_gram: dict[int, list[tuple[int, int]]] = {}
        for number, text in enumerate(texts):
            at = _rarest_gram(text.text)
            for gram in _spellings(text.text[at : at + 4], caseless=text.caseless):
                known = self._by_gram.setdefault(int.from_bytes(gram, "little"), [])
                known.append((number, at))
        self._grams = np.array(sorted(self._by_gram), dtype="<u4")
        self._may_be = np.zeros(1 << 16, np.bool_)
        self._may_be[_hash(self._grams)] = True

    def find(self, data: bytes) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for start in range(0, len(data) - 3, _CHUNK):
            for shift in range(start, min(start + 4, len(data) - 3)):
                found += self._find_at(data, shift)
        found.sort()
        return found

    def _find_at(self, data: bytes, shift: int) -> Iterator[tuple[int, int]]:
        """Yield what begins in the chunk at ``shift`` bytes, at each fourth byte from there."""
        grams = np.frombuffer(data, "<u4", min(_CHUNK, len(data) - shift) // 4, shift)
        places = np.flatnonzero(self._may_be.take(_hash(grams)))
        if not places.size:
            return
        values = grams[places]
        known = np.searchsorted(self._grams, values).clip(max=len(self._grams) - 1)
        right = self._grams[known] == values
        for place, gram in zip(places[right].tolist(), values[right].tolist(), strict=True):
            for number, at in self._by_gram[gram]:
                start = place * 4 + shift - at
                if self._texts[number].is_at(data, start):
                    yield start, number


class _HyperscanFinder:
    """Gives all texts to hyperscan, of the extra ``fast``."""

    engine: Engine = "hyperscan"

    def __init__(self, texts: Sequence[_Text]) -> None:
        hyperscan: Any = import_module("hyperscan")
        self._lengths = [len(text.text) for text in texts]
        self._database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        self._database.compile(
            expressions=[
                "".join(f"\\x{byte:02x}" for byte in text.text).encode() for text in texts
            ],
            ids=list(range(len(texts))),
            elements=len(texts),
            flags=[hyperscan.HS_FLAG_CASELESS if text.caseless else 0 for text in texts],
        )

    def find(self, data: bytes) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []

        def note(number: int, _start: int, end: int, _flags: int, _context: object) -> None:
            found.append((end - self._lengths[number], number))

        self._database.scan(data, match_event_handler=note)
        found.sort()
        return found


def _make_finder(texts: Sequence[_Text], engine: Engine) -> _Finder:
    if engine != "numpy" and texts:
        try:
            return _HyperscanFinder(texts)
        except ImportError:
            if engine == "hyperscan":
                raise
    return _NumpyFinder(texts)


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
        """
        self._ids: list[str] = []
        self._patterns: list[bytes] = []
        self._compiled: dict[int, re.Pattern[bytes]] = {}
        owners: dict[tuple[bytes, bool], list[int]] = {}
        for number, signature in enumerate(signatures):
            self._ids.append(signature.id)
            self._patterns.append(signature.regex.encode())
            literals = find_literals(signature.regex)
            for text in _drop_longer(literals.texts):
                owners.setdefault((text, literals.caseless), []).append(number)
        for text in marks:
            owners.setdefault((text, False), [])
        self._texts = [_Text(text, low, tuple(known)) for (text, low), known in owners.items()]
        self._census = {at for at, one in enumerate(signatures) if one.kind == _CENSUS}
        self._quiet = {at for at, one in enumerate(signatures) if one.kind in (_PROGRESS, _CENSUS)}
        self._finder = _make_finder(self._texts, engine)
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

    def find_telling(self, data: bytes) -> Iterator[tuple[int, int, set[int]]]:
        """Yield the same as `find_pieces`, but few of the lines that tell of progress.

        To look at each would take three times as long as all the rest. The last ones tell: of all,
        and before each line that may tell of a failure.
        """
        waiting: dict[int, deque[tuple[int, int, set[int]]]] = {}
        for piece in self.find_pieces(data, len(data)):
            start, end, owners = piece
            if not owners or not owners <= self._quiet:
                yield from sorted(chain(*waiting.values()), key=itemgetter(0))
                waiting.clear()
                yield piece
            # Most communicators are of no use, and there may be many.
            elif not owners <= self._census or self.find_first(owners, data[start:end]):
                waiting.setdefault(min(owners), deque(maxlen=_MAX_QUIET)).append(piece)
        yield from sorted(chain(*waiting.values()), key=itemgetter(0))

    def find_pieces(self, data: bytes, cut: int) -> Iterator[tuple[int, int, set[int]]]:
        """Yield the pieces of lines that hold a text, in their order.

        Args:
            data: The lines.
            cut: Where the last whole line ends.

        Yields:
            Start and end of the piece, and the numbers of the signatures to try; none where it
            holds nothing but a mark.
        """
        if not self._texts:
            return
        lines = _Lines(data)
        last = (-1, -1)
        is_piece = False
        owners: set[int] = set()
        found = self._finder.find(data)
        self.found += len(found)
        for place, number in found:
            if place >= cut:
                break
            piece = lines.piece_at(place)
            if piece != last:
                if is_piece:
                    yield (*last, owners)
                last, owners, is_piece = piece, set(), True
            owners.update(self._texts[number].owners)
        if is_piece:
            yield (*last, owners)


class _Lines:
    """Finds the line around a place, for places that only grow: no byte is searched twice."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._start = 0
        # The line break behind the line, and the line feed behind it; as if one stood before all.
        self._end = -1
        self._feed = -1

    def piece_at(self, place: int) -> tuple[int, int]:
        """Return start and end of the piece of a line that holds a place."""
        if place > self._end:
            self._move(place)
        start = place - (place - self._start) % MAX_LINE
        return start, min(start + MAX_LINE, self._end)

    def _move(self, place: int) -> None:
        data = self._data
        feed = max(self._end, data.rfind(b"\n", self._end + 1, place))
        self._start = max(feed, data.rfind(b"\r", feed + 1, place)) + 1
        if self._feed < place:
            self._feed = data.find(b"\n", place)
            self._feed = len(data) if self._feed < 0 else self._feed
        back = data.find(b"\r", place, self._feed)
        self._end = self._feed if back < 0 else back


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


def _hash(grams: NDArray[np.uint32]) -> NDArray[np.uint16]:
    return ((grams * np.uint32(2654435761)) >> np.uint32(16)).astype(np.uint16)


def _rarest_gram(text: bytes) -> int:
    """Return where the four bytes are that healthy logs hold least."""

    def weight(at: int) -> tuple[bool, int]:
        gram = text[at : at + 4]
        small = sum(byte in _SMALL for byte in gram)
        return gram.lower() not in _COMMON, -small

    return max(range(len(text) - MIN_LITERAL + 1), key=weight)


def _spellings(gram: bytes, *, caseless: bool) -> set[bytes]:
    if not caseless:
        return {gram}
    spellings = {b""}
    for byte in gram:
        letter = bytes([byte])
        spellings = {
            known + form for known in spellings for form in (letter.lower(), letter.upper())
        }
    return spellings
