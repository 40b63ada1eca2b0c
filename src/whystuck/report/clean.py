r"""Makes text from evidence safe to show: no terminal sequences, no hidden or reordered letters.

File names, log lines and exception texts come from the job, and may hold anything. What cannot be
seen, or would act on the terminal, is written as an escape such as ``\x1b`` so that a reader
notices it.
"""

from __future__ import annotations

import re
import unicodedata

# Long enough for any sentence of ours; a log line of a megabyte must not fill the screen.
MAX_CHARS = 2000

# Control (Cc), format and bidi (Cf), surrogates (Cs), line and paragraph separators (Zl, Zp).
_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_PLAIN = re.compile(r"[ -~]*")


def clean_line(text: object, limit: int = MAX_CHARS) -> str:
    """Return ``text`` as one line that is safe to print, at most ``limit`` characters long."""
    raw = str(text)
    short = raw if len(raw) <= limit else raw[: limit - 1] + "…"
    if _PLAIN.fullmatch(short):
        return short
    return "".join(_escape(char) for char in short.replace("\t", "    "))


def drop_surrogates(text: str) -> str:
    """Replace lone surrogates, which no encoding of a report can hold, by U+FFFD."""
    return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text


def escape_invisible(text: str) -> str:
    r"""Write what :func:`clean_line` would escape as ``\uXXXX``, which JSON reads back unchanged.

    Line breaks stay: they are layout of the JSON text, never part of a string in it.
    """
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(
        char if char == "\n" or unicodedata.category(char) not in _UNSAFE_CATEGORIES
        else _json_escape(char)
        for char in text
    )  # fmt: skip


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def _escape(char: str) -> str:
    if unicodedata.category(char) not in _UNSAFE_CATEGORIES:
        return char
    if char == "\n":
        return "\\n"
    code = ord(char)
    if code <= 0xFF:  # noqa: PLR2004 - the width of the escape
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004
