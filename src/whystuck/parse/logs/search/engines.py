"""The engines that find fixed texts in a block of a log: numpy, or hyperscan where it is installed.

Both find every such text, so both give the same hits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
_CHUNK = 1 << 18
# So many places has the table of four bytes that texts hold: of 2^16, one in 35 would be taken.
_HASH_BITS = 18
# What healthy logs are full of, in small letters and without numbers: the numpy engine looks for
# the bytes of each text that are rarest here.
_COMMON = b"""
[default0]:[rank0]: node0:00:00 [0] nccl info net/ib : using net/socket channel via p2p comm init
nccl info channel 00/0 : 0[0] -> 0[0] via p2p/cumem/read connected all rings, use ring pxn 0 gdr 0
nccl info comm 0x00 rank 0 nranks 00 nnodes 0 localranks 0 localrank 0 mnnvl 0 busid 00 - init
nccl info threadthresholds 0/0/00 | 00/0/00 | 000 | 000 trees [0] 0/-0/-0->0->0 nccl_debug set by
warning: futurewarning userwarning python0 site-packages torch/distributed/ cuda: errors error: loss
iteration        0/  000000 | consumed samples:          000 | elapsed time per iteration (ms): 00.0
 | learning rate: 0.000000e-00 | global batch size:   000 | lm loss: 0.000000e+00 | loss scale: 0.0
 | grad norm: 0.000 | num zeros: 0 | params norm: 0.000 | number of skipped iterations:   0 |
 | throughput per gpu (tflop/s/gpu): 000.0 | number of nan iterations:   0 | times across ranks
iteration number of global batch size saved loading checkpoint worker process rank timeout 0000-00
slurmstepd: srun: nvrm: kernel mlx0_core pid= status code failed 00000 info: root - info - step: 0
[0000-00-00 00:00:00,000] [info] [logging.py:000:log_dist] [rank 0] step=000, skipped=0, lr=[0e-00],
mom=[(0.0, 0.00)] 0000-00-00 00:00:00,000 info train: step=000 loss=0.0000 grad_norm=0.00
{'loss': 0.0000, 'grad_norm': 0.000000, 'learning_rate': 0.0e-00, 'epoch': 0.00, 'scale': 0}
step:     0  loss:  0.0000  grad_norm:  0.0000  memory: 00.00gib(00.00%)  tps: 0,000  mfu: 00.00%
epoch 0:   0%|          | 0/0000 [00:00<00:00,  0.00it/s, v_num=0, train_loss=0.000, train_step]
step 000 loss 0.0000 lr 0.0e-00 0.00 s/step validation: mean absolute error 0.0000, 0 failed samples
consumed samples: elapsed time per iteration connected all rings resource memory usage ] step ] set
the given array is not writable train training epoch loss step number of nan iterations loss scale
saved checkpoint in 00.0 s, 0 errors retrying token tokens batch data dataloader val accelerate all
"""
_SMALL = frozenset(b"abcdefghijklmnopqrstuvwxyz ")
_NO_DIGITS = bytes.maketrans(b"123456789", b"000000000")
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
            expressions=[text.text for text in texts],
            ids=list(range(len(texts))),
            elements=len(texts),
            flags=[hyperscan.HS_FLAG_CASELESS if text.caseless else 0 for text in texts],
            # Texts rather than patterns: a sixth faster.
            literal=True,
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
    """Looks up every four bytes of the block in a table of 2^18 places, all at once.

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
        self._may_be = np.zeros(1 << _HASH_BITS, np.bool_)
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


def _hash(grams: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return (grams * np.uint32(2654435761)) >> np.uint32(32 - _HASH_BITS)


def _rows_of(texts: Sequence[Text]) -> Iterable[tuple[int, ...]]:
    """Yield the bytes that stand for each text, with its number, and what else it must hold."""
    common = _count_common()
    for number, text in enumerate(texts):
        at = _rarest_gram(text.text, common)
        last = len(text.text) - MIN_LITERAL
        other = last if at < last - at else 0
        mask = _NO_CASE if text.caseless else _WHOLE
        wanted = int.from_bytes(text.text[other : other + 4], "little") & mask
        for gram in _spellings(text.text[at : at + 4], caseless=text.caseless):
            yield int.from_bytes(gram, "little"), number, at, other, wanted, mask


def _count_common() -> Counter[bytes]:
    return Counter(_COMMON[at : at + MIN_LITERAL] for at in range(len(_COMMON) - MIN_LITERAL + 1))


def _rarest_gram(text: bytes, common: Mapping[bytes, int]) -> int:
    """Return where the four bytes are that healthy logs hold least."""
    plain = text.lower().translate(_NO_DIGITS)

    def weigh(at: int) -> tuple[int, int]:
        small = sum(byte in _SMALL for byte in text[at : at + MIN_LITERAL])
        return common.get(plain[at : at + MIN_LITERAL], 0), small

    return min(range(len(text) - MIN_LITERAL + 1), key=weigh)


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
