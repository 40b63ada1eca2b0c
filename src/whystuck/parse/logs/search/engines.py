"""The engines that find fixed texts in a block of a log: numpy, or hyperscan where it is installed.

Both find every such text, so both give the same hits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from whystuck.parse.logs.search.patterns import MIN_LITERAL

Engine = Literal["auto", "numpy", "hyperscan"]
# Places of texts in a block, in their order, and the number of the text at each.
Found = tuple[NDArray[np.int64], NDArray[np.int64]]

# What the numpy engine takes at once: the tables it makes of it stay in the cache.
_CHUNK = 1 << 17
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
# Four bytes as they are, and without the bit that tells small letters from capitals.
_WHOLE, _NO_CASE = 0xFFFFFFFF, 0xDFDFDFDF


@dataclass(frozen=True, slots=True)
class Text:
    """A fixed text, and the numbers of the signatures that it may stand for."""

    text: bytes
    caseless: bool
    owners: frozenset[int]

    def is_at(self, data: bytes, start: int) -> bool:
        """Whether the text stands at a place of the data."""
        if not self.caseless:
            return data.startswith(self.text, start)
        return data[start : start + len(self.text)].lower() == self.text.lower()


class Finder(Protocol):
    """Finds fixed texts in a block."""

    engine: Engine

    def find(self, data: bytes) -> Found:
        """Return place and number of each text in the data, by place."""


def make_finder(texts: Sequence[Text], engine: Engine) -> Finder:
    """Make an engine ready for some texts.

    Args:
        texts: What to look for.
        engine: ``auto`` is hyperscan where it can be loaded.

    Raises:
        ImportError: hyperscan was asked for and cannot be loaded.
    """
    if engine != "numpy" and texts:
        try:
            return _HyperscanFinder(texts)
        except ImportError:
            if engine == "hyperscan":
                raise
    return _NumpyFinder(texts)


class _HyperscanFinder:
    """Gives all texts to hyperscan, of the extra ``fast``."""

    engine: Engine = "hyperscan"

    def __init__(self, texts: Sequence[Text]) -> None:
        hyperscan: Any = import_module("hyperscan")
        self._lengths = np.array([len(text.text) for text in texts])
        self._database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        self._database.compile(
            expressions=[
                "".join(f"\\x{byte:02x}" for byte in text.text).encode() for text in texts
            ],
            ids=list(range(len(texts))),
            elements=len(texts),
            flags=[hyperscan.HS_FLAG_CASELESS if text.caseless else 0 for text in texts],
        )

    def find(self, data: bytes) -> Found:
        found: list[int] = []
        note, size = found.append, len(self._lengths)
        # Called for each text that is found: a tenth of the time where they are many.
        self._database.scan(
            data,
            match_event_handler=lambda number, _start, end, _flags, _: note(end * size + number),
        )
        ends, numbers = np.divmod(np.array(found, np.int64), size)
        return _by_place(ends - self._lengths[numbers], numbers)


class _NumpyFinder:
    """Looks up every four bytes of the block in a table of 65,536 bits, all at once.

    Each text is stood for by its four rarest bytes; where those are, four others far from them
    must be in their place too.
    """

    engine: Engine = "numpy"

    def __init__(self, texts: Sequence[Text]) -> None:
        self._texts = texts
        rows = sorted(_rows_of(texts))
        grams, numbers, self._at, others, wanted, masks = np.array(rows, np.int64).reshape(-1, 6).T
        self._numbers, self._others = numbers, others
        self._wanted, self._masks = wanted.astype(np.uint32), masks.astype(np.uint32)
        self._grams, self._first, self._count = np.unique(
            grams.astype("<u4"), return_index=True, return_counts=True
        )
        self._may_be = np.zeros(1 << 16, np.bool_)
        self._may_be[_hash(self._grams)] = True

    def find(self, data: bytes) -> Found:
        places, numbers = list[int](), list[int]()
        if len(data) >= MIN_LITERAL and self._texts:
            # Four bytes from every place on.
            grams = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))
            for start in range(0, len(grams), _CHUNK):
                for place, number in self._find_in(data, grams, start):
                    if self._texts[number].is_at(data, place):
                        places.append(place)
                        numbers.append(number)
        return _by_place(np.array(places, np.int64), np.array(numbers, np.int64))

    def _find_in(
        self, data: bytes, grams: NDArray[np.uint32], start: int
    ) -> Iterable[tuple[int, int]]:
        """Return where texts of one chunk may be, and their numbers."""
        seen = [self._look_up(data, shift) for shift in range(start, min(start + 4, len(grams)))]
        places, known = (np.concatenate(parts) for parts in zip(*seen, strict=True))
        # Several texts may be stood for by the same bytes.
        counts = self._count[known]
        ends = counts.cumsum()
        rows = np.arange(ends[-1] if ends.size else 0)
        rows += np.repeat(self._first[known] - ends + counts, counts)
        starts = np.repeat(places, counts) - self._at[rows]
        others = starts + self._others[rows]
        inside = np.flatnonzero((starts >= 0) & (others < len(grams)))
        starts, rows = starts[inside], rows[inside]
        is_there = (grams[others[inside]] & self._masks[rows]) == self._wanted[rows]
        return zip(starts[is_there].tolist(), self._numbers[rows[is_there]].tolist(), strict=True)

    def _look_up(self, data: bytes, shift: int) -> Found:
        """Return where bytes of texts are, at each fourth byte, and which these are."""
        grams = np.frombuffer(data, "<u4", min(_CHUNK, len(data) - shift) // 4, shift)
        places = np.flatnonzero(self._may_be.take(_hash(grams)))
        values = grams[places]
        known = np.searchsorted(self._grams, values).clip(max=len(self._grams) - 1)
        right = self._grams[known] == values
        return places[right] * 4 + shift, known[right]


def _by_place(places: NDArray[np.int64], numbers: NDArray[np.int64]) -> Found:
    order = np.argsort(places, kind="stable")
    return places[order], numbers[order]


def _hash(grams: NDArray[np.uint32]) -> NDArray[np.uint16]:
    return ((grams * np.uint32(2654435761)) >> np.uint32(16)).astype(np.uint16)


def _rows_of(texts: Sequence[Text]) -> Iterable[tuple[int, ...]]:
    """Yield the bytes that stand for each text, with its number, and what else it must hold."""
    for number, text in enumerate(texts):
        at = _rarest_gram(text.text)
        last = len(text.text) - MIN_LITERAL
        other = last if at < last - at else 0
        mask = _NO_CASE if text.caseless else _WHOLE
        wanted = int.from_bytes(text.text[other : other + 4], "little") & mask
        for gram in _spellings(text.text[at : at + 4], caseless=text.caseless):
            yield int.from_bytes(gram, "little"), number, at, other, wanted, mask


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
