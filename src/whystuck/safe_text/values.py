"""Makes values of many texts safe: reports, JSON, rows of tables."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeVar, cast

import msgspec

from whystuck.safe_text.escaping import drop_surrogates, escape_cell, escape_json
from whystuck.safe_text.secrets import SECRET, hide_arguments, hide_secrets

# Deeper than any value of ours; what comes from a job may be nested without end.
_MAX_DEPTH = 100
# Tables of millions of rows hold few texts, and logs many: then the first are forgotten.
_MAX_KNOWN = 100_000
_NO_VALUE = object()
_T = TypeVar("_T")


def hide_values(value: _T, leave: Collection[str] = ()) -> _T:
    """Return a value with no secret in its texts, in its keys, or behind a key that names one.

    Args:
        value: Structures of msgspec, lists, tuples and dictionaries, as deep as `_MAX_DEPTH`.
        leave: Fields of the outermost structure that stay as they are.
    """
    cleaner = Cleaner()
    if isinstance(value, msgspec.Struct):
        names = [name for name in value.__struct_fields__ if name not in leave]
        fields = {name: cleaner.value(getattr(value, name)) for name in names}
        return cast("_T", msgspec.structs.replace(value, **fields))
    return cast("_T", cleaner.value(value))


def encode_json(value: object, indent: int = 2) -> bytes:
    """Return a value as JSON in UTF-8 that is safe to print, and a line break.

    Secrets are hidden, invisible characters are escaped, lone surrogates are replaced, and figures
    without a value are left out of objects and null in lists.

    Args:
        value: What msgspec can encode, and arrays of numpy.
        indent: As that of `msgspec.json.format`; -1 writes one line.
    """
    plain = [msgspec.to_builtins(value, enc_hook=_encode_foreign, str_keys=True)]
    _clean_in_place(plain)
    data = msgspec.json.encode(plain[0])
    return escape_json(msgspec.json.format(data, indent=indent).decode()).encode() + b"\n"


class Cleaner:
    """Hides secrets in many values; a text that comes again is not searched again."""

    def __init__(self) -> None:
        """Start with no text known."""
        self._known: dict[str, str] = {}
        self._cells: dict[str, str] = {}

    def text(self, text: str) -> str:
        """Return one text without secrets and lone surrogates."""
        shown = self._known.get(text)
        if shown is None:
            if len(self._known) > _MAX_KNOWN:
                self._known.clear()
            shown = self._known[text] = hide_secrets(drop_surrogates(text))
        return shown

    def cell(self, text: str) -> str:
        """Return the text of a cell of a CSV file: no secret, no formula, nothing invisible."""
        shown = self._cells.get(text)
        if shown is None:
            if len(self._cells) > _MAX_KNOWN:
                self._cells.clear()
            shown = self._cells[text] = escape_cell(hide_secrets(text))
        return shown

    def named(self, name: object, text: str) -> str:
        """Return a text that stands under a name, which may tell that it is a secret."""
        shown = self.text(text)
        if shown == text and text and type(name) is str:
            mark = '"' if "'" in text else "'"
            pair = f"'{name}': {mark}{text}{mark}"
            return shown if self.text(pair) == pair else SECRET
        return shown

    def texts(self, items: Sequence[Any]) -> list[Any]:
        """Return a list with its texts cleaned, which may be the arguments of a command."""
        if any(type(item) is str and item[:1] == "-" for item in items):
            shown = hide_arguments([item if type(item) is str else "" for item in items])
            pairs = zip(items, shown, strict=True)
            return [drop_surrogates(one) if type(item) is str else item for item, one in pairs]
        return [self.text(item) if type(item) is str else item for item in items]

    def value(self, value: Any, depth: int = 0) -> Any:  # noqa: ANN401 - as above
        """Return a value with all that it holds cleaned; other types are returned as they are."""
        if isinstance(value, str):
            # An enumeration is a text too, and its words are ours.
            return self.text(value) if type(value) is str else value
        if depth > _MAX_DEPTH:
            return value
        if isinstance(value, dict):
            return {
                self.value(key): self.named(key, item)
                if type(item) is str
                else self.value(item, depth + 1)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            items = self.texts(value)
            return type(value)(
                item if isinstance(item, str) else self.value(item, depth + 1) for item in items
            )
        if isinstance(value, msgspec.Struct):
            names = value.__struct_fields__
            fields = {name: self.value(getattr(value, name), depth + 1) for name in names}
            return msgspec.structs.replace(value, **fields)
        return value

    def column(self, values: Iterable[Any]) -> list[Any]:
        """Return the values of a column, cleaned."""
        return [
            self.text(value)
            if type(value) is str
            else self.value(value)
            if isinstance(value, (list, tuple, dict))
            else value
            for value in values
        ]


def _encode_foreign(value: object) -> object:
    """Encode numpy scalars and arrays, which rules may leave in ``details``."""
    to_list = getattr(value, "tolist", None)
    return to_list() if callable(to_list) else str(value)


def _clean_in_place(plain: list[Any]) -> None:
    """Clean a tree; the walk is a loop because details and stacks may be nested deeply."""
    cleaner = Cleaner()
    todo: list[Any] = [plain]
    while todo:
        container = todo.pop()
        if isinstance(container, dict):
            items = [
                (cleaner.text(key), cleaner.named(key, item) if type(item) is str else item)
                for key, item in container.items()
                if _tidy_figure(item) is not _NO_VALUE
            ]
            container.clear()
            container.update(items)
            todo.extend(container.values())
        elif isinstance(container, list):
            tidied = [_tidy_figure(item) for item in cleaner.texts(container)]
            container[:] = [None if item is _NO_VALUE else item for item in tidied]
            todo.extend(container)


def _tidy_figure(item: object) -> object:
    return _NO_VALUE if isinstance(item, float) and not math.isfinite(item) else item
