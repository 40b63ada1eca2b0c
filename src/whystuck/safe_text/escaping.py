r"""Makes what is invisible or active in a text visible: for terminals, JSON and CSV.

File names, log lines and exception texts come from the job, and may hold anything. What cannot be
seen, changes the order of letters, or would act on the terminal is written as an escape such as
``\x1b`` or ``\u202e``, so that a reader notices it.
"""

from __future__ import annotations

import re
import unicodedata

from whystuck.safe_text.secrets import hide_secrets

# Long enough for any sentence of ours; a log line of a megabyte must not fill the screen.
MAX_CHARS = 2000

# Control (Cc), format and bidi (Cf), surrogates (Cs), private use (Co), unassigned (Cn), line and
# paragraph separators (Zl, Zp).
_UNSAFE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Letters, marks and symbols by their category, and yet nothing is seen: fillers of Hangul, vowels
# of Khmer, selectors of variants, the blank of Braille.
_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_CLOSER_LOOK = re.compile(r"[^\x20-\x7e]")
# What a spreadsheet would take for a formula, also in the wide letters of East Asia.
_FORMULA = re.compile(r"[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?(?:[eE][+-]?[0-9]{1,4})?|inf|nan)?$")


def show_line(text: object, limit: int = MAX_CHARS) -> str:
    """Return ``text`` as one line that is safe to print, without the secrets in it.

    Args:
        text: Anything; what it says as ``str``.
        limit: The most characters of the text that are shown; escapes may make the line longer.
    """
    raw = str(text)
    # What comes after the last line that can be shown cannot be part of a secret before it.
    raw = hide_secrets(raw if len(raw) <= 8 * limit else raw[: 8 * limit])
    short = raw if len(raw) <= limit else raw[: limit - 1] + "…"
    return escape_line(short)


def escape_line(text: str) -> str:
    """Return a text as one line of visible characters; tabs become blanks."""
    if not _CLOSER_LOOK.search(text):
        return text
    return _CLOSER_LOOK.sub(_escape, text.replace("\t", "    "))


def escape_lines(text: str) -> str:
    """Return a text of several lines with all but the line breaks made visible."""
    return "\n".join(map(escape_line, text.split("\n")))


def escape_json(text: str) -> str:
    r"""Write what cannot be seen in a JSON text as ``\uXXXX``, which JSON reads back unchanged.

    Line breaks stay: they are layout of the JSON text, never part of a string in it.
    """
    if text.isascii() and "\x7f" not in text:
        return text
    return _CLOSER_LOOK.sub(_escape_json, text)


def escape_cell(text: str) -> str:
    """Return the text of a cell of a CSV file: visible, and no formula for a spreadsheet.

    Nor is a part of it one where a spreadsheet parts cells at semicolons, as in many countries.
    """
    return ";".join(map(_escape_part, text.split(";")))


def _escape_part(text: str) -> str:
    shown = escape_line(text)
    if _FORMULA.match(text) and not _NUMBER.match(text):
        return f"'{shown}"
    return shown


def drop_surrogates(text: str) -> str:
    """Replace lone surrogates, which no encoding can hold, by U+FFFD."""
    return text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text


def _is_visible(match: re.Match[str]) -> bool:
    char = match[0]
    if char == "\ufe0f" and unicodedata.category(match.string[match.start() - 1]) == "So":
        return match.start() > 0  # an emoji in colours
    return unicodedata.category(char) not in _UNSAFE_CATEGORIES and not _BLANK.match(char)


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    if _is_visible(match):
        return char
    if char == "\n":
        return "\\n"
    code = ord(char)
    if code <= 0xFF:  # noqa: PLR2004 - the width of the escape
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004


def _escape_json(match: re.Match[str]) -> str:
    char = match[0]
    if char == "\n" or _is_visible(match):
        return char
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
