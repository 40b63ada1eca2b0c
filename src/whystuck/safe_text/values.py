"""Hides secrets in values of many texts: reports, JSON, rows of tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from whystuck.safe_text.secrets import SECRET, hide_arguments, hide_secrets

# Deeper than any value of ours; what comes from a job may be nested without end.
_MAX_DEPTH = 100


def hide_values(value: Any, leave: Collection[str] = ()) -> Any:  # noqa: ANN401 - any value in, the same shape out
    """Return a value with no secret in its texts, in its keys, or behind a key that names one.

    Args:
        value: Structures of msgspec, lists, tuples and dictionaries, as deep as `_MAX_DEPTH`.
        leave: Fields of the outermost structure that stay as they are.
    """
    hider = SecretHider()
    if isinstance(value, msgspec.Struct):
        names = [name for name in value.__struct_fields__ if name not in leave]
        return msgspec.structs.replace(
            value, **{name: hider.hide(getattr(value, name)) for name in names}
        )
    return hider.hide(value)


class SecretHider:
    """Hides secrets in many values; a text that comes again is not searched again."""

    def __init__(self) -> None:
        """Start with no text known."""
        self._known: dict[str, str] = {}

    def hide(self, value: Any, depth: int = 0) -> Any:  # noqa: ANN401 - as above
        """Hide in a value and in all that it holds; other types are returned as they are."""
        if isinstance(value, str):
            # An enumeration is a text too, and its words are ours.
            return self.text(value) if type(value) is str else value
        if depth > _MAX_DEPTH:
            return value
        if isinstance(value, dict):
            return {
                self.hide(key): self._named(key, item)
                if type(item) is str
                else self.hide(item, depth + 1)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return type(value)(self._items(value, depth + 1))
        if isinstance(value, msgspec.Struct):
            fields = {
                name: self.hide(getattr(value, name), depth + 1) for name in value.__struct_fields__
            }
            return msgspec.structs.replace(value, **fields)
        return value

    def _items(self, items: Sequence[Any], depth: int) -> Iterator[Any]:
        if not any(type(item) is str and item[:1] == "-" for item in items):
            return (self.hide(item, depth) for item in items)
        hidden = hide_arguments([item if type(item) is str else "" for item in items])
        pairs = zip(items, hidden, strict=True)
        return (one if type(item) is str else self.hide(item, depth) for item, one in pairs)

    def text(self, text: str) -> str:
        """Hide in one text."""
        shown = self._known.get(text)
        if shown is None:
            shown = self._known[text] = hide_secrets(text)
        return shown

    def _named(self, key: object, text: str) -> str:
        shown = self.text(text)
        if shown == text and type(key) is str and text:
            named = f"'{key}': '{text}'" if "'" not in text else f"'{key}': \"{text}\""
            return shown if self.text(named) == named else SECRET
        return shown
