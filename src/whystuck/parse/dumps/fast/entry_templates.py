"""Molds: what entries that are alike byte by byte have in common, all but their numbers.

Ops that are issued again and again are written with the same bytes, in which only times, counters
and numbers of the memo differ. One entry of each such layout is a mold: it is taken apart once, and
all others are compared with it, and their numbers read, in a few steps of numpy. Numbers by which
they call for something in the memo, such as a shape, tell the kinds of entries apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from whystuck.parse.dumps.fast.entry_keys import Key
from whystuck.parse.dumps.fast.template_builder import Mold, try_mold

_MAX_KNOWN = 4096


@dataclass
class KnownMolds:
    """Molds of dumps that were read before: those of one job are much alike."""

    by_keys: dict[tuple[Key, ...], dict[int, list[Mold]]] = field(default_factory=dict)
    count: int = 0

    def choose(self, keys: tuple[Key, ...]) -> dict[int, list[Mold]]:
        """Return the molds of entries with these keys, by the length of the entry."""
        if self.count > _MAX_KNOWN:
            self.by_keys.clear()
            self.count = 0
        return self.by_keys.setdefault(keys, {})

    def find(self, molds: list[Mold], entry: bytes, keys: Sequence[Key]) -> Mold | None:
        """Find the mold of an entry, or make one.

        Args:
            molds: Those of its length; a new one is added.
            entry: The bytes of the entry.
            keys: Its keys, in their order.

        Returns:
            The mold, or None when the entry cannot serve as one.
        """
        value = int.from_bytes(entry, "little")
        mold = next((mold for mold in molds if not (value ^ mold.value) & mold.mask), None)
        if mold is None:
            mold = try_mold(keys, entry)
            if mold is not None:
                molds.append(mold)
                self.count += 1
        return mold
