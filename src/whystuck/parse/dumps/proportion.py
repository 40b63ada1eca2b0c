"""Refuses a dump that means far more than it holds.

A pickle may hold a list once and refer to it from everywhere, in two bytes each time: what a reader
then does for each entry, it does for all of that list. Real dumps repeat short texts only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from whystuck.parse.errors import ParseError

# What a dump may mean: so many numbers and letters, and so many more for each of its bytes.
_FREE = 4_000_000
_PER_BYTE = 4
_KEYS = (
    "profiling_name",
    "state",
    "input_sizes",
    "output_sizes",
    "input_dtypes",
    "output_dtypes",
    "process_group",
    "frames",
)
_GET = itemgetter(*_KEYS)
_SCALARS = {str, int, float, bool, type(None)}


def check_proportion(content: object, data_bytes: int) -> None:
    """Look at what was unpickled, before anything is done for each entry.

    Args:
        content: The value; only a dictionary with entries is looked at.
        data_bytes: How long the pickle was.

    Raises:
        ParseError: It means far more than it holds, or has a container in place of a value.
    """
    if not isinstance(content, dict):
        return
    scale = _Scale(_FREE + _PER_BYTE * data_bytes)
    try:
        scale.add_values([content.get("version")])
        ranks = _weigh_config(content.get("pg_config") or {}, scale)
        _weigh_entries(content.get("entries") or (), ranks, scale)
    except (AttributeError, TypeError, KeyError) as error:
        # The name only: the text of a KeyError can be a value of any size and depth.
        raise ParseError(f"damaged flight-recorder dump ({type(error).__name__})") from error


class _Scale:
    """Adds up what a dump means, layer by layer, so that nothing is looked at that is too much."""

    def __init__(self, limit: int) -> None:
        self._left = limit

    def add(self, weight: int) -> None:
        self._left -= weight
        if self._left < 0:
            raise ParseError("the dump means far more than it holds: its entries share long lists")

    def add_length(self, lists: Iterable[Collection[Any] | None]) -> list[Collection[Any]]:
        """Add the lengths of some lists, and give those that are not empty."""
        filled = list(filter(None, lists))
        self.add(sum(map(len, filled)))
        return filled

    def add_lists(self, lists: Iterable[Collection[Any] | None]) -> list[Any]:
        """Add the lengths of some lists, and give what is in them."""
        return list(chain.from_iterable(self.add_length(lists)))

    def add_values(self, values: Collection[Any]) -> None:
        """Add numbers and texts; a container is no value, since its text can be of any length."""
        kinds = set(map(type, values))
        if not kinds <= _SCALARS:
            raise TypeError("a container in place of a value")
        if str in kinds:
            texts = values if len(kinds) == 1 else [one for one in values if isinstance(one, str)]
            self.add(sum(map(len, texts)))


def _weigh_config(config: Mapping[Any, Any], scale: _Scale) -> dict[Any, int]:
    """Weigh ``pg_config``, and tell how many members each group has at most."""
    scale.add_values(list(config))
    length_by_name: dict[Any, int] = {}
    for group in config.values():
        ranks = group.get("ranks") or ""
        scale.add(len(ranks))
        if not isinstance(ranks, str):
            scale.add_values(ranks)
        scale.add_values([group.get("name"), group.get("desc")])
        length_by_name[group.get("name")] = len(ranks)
    return length_by_name


def _weigh_entries(
    entries: Sequence[Mapping[Any, Any]], ranks: Mapping[Any, int], scale: _Scale
) -> None:
    if not entries:
        return
    name, state, inputs, outputs, *texts, groups, frames = _pick(entries)
    scale.add_values(name + state)
    scale.add_values(scale.add_lists(chain.from_iterable(texts)))
    scale.add_values(scale.add_lists(groups))
    scale.add_values(scale.add_lists(scale.add_lists(inputs + outputs)))
    scale.add_length(frames)
    # Their members are looked at once for each pair of a name and a description.
    pairs = set(map(tuple, filter(None, groups)))
    scale.add(sum(ranks.get(pair[0], 0) for pair in pairs))


def _pick(entries: Sequence[Mapping[Any, Any]]) -> Iterable[tuple[Any, ...]]:
    """Turn entries into columns."""
    try:
        return zip(*map(_GET, entries), strict=True)
    except KeyError:  # some leave a value out
        return zip(*([entry.get(key) for key in _KEYS] for entry in entries), strict=True)
