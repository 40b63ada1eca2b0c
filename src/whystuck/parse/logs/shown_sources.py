"""Texts of files, as far as logs show them: pieces at their lines, made ready to be parsed.

A piece begins and ends anywhere. It is moved to the left; where it leaves blocks whose heads are
not shown, heads that ask for nothing stand in the lines above it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from whystuck.evidence.ops.collectives import Frame
from whystuck.parse.logs.blocks.stacks.shown_source import SourceSeen

_MAX_TRIES = 8
_MAX_FILE_LINE = 200_000
_ELSE = ("else:", "elif ")
_EXCEPT = ("except", "finally")


def make_sources(shown: Iterable[SourceSeen], frames: Iterable[Frame]) -> dict[str, str]:
    """Make the text of each file of which pieces are shown, by its names.

    Args:
        shown: The pieces.
        frames: Frames of stacks: a piece is often called by the last part of such a path, and one
            without a name is of the file whose frames are in it.
    """
    shown = tuple(shown)
    lines: dict[str, set[int]] = {}
    for frame in frames if shown else ():
        lines.setdefault(frame.file, set()).add(frame.line)
    pieces: dict[str, list[SourceSeen]] = {}
    for seen in shown:
        pieces.setdefault(seen.file or _find_file(seen, lines), []).append(seen)
    found: dict[str, str] = {}
    for file, parts in pieces.items():
        text = _join(parts) if file else ""
        same = [one for one in lines if _is_same_file(one, file)]
        if text:
            # Where several files have this name, it is that of none of them.
            found |= dict.fromkeys([file, *(same if len(same) == 1 else ())], text)
    return found


def _find_file(seen: SourceSeen, lines: Mapping[str, set[int]]) -> str:
    inside = [file for file, there in lines.items() if there & seen.lines.keys()]
    return inside[0] if len(inside) == 1 else ""


def _is_same_file(one: str, other: str) -> bool:
    longer, shorter = sorted((one, other.removeprefix("./")), key=len, reverse=True)
    return longer == shorter or longer.endswith(f"/{shorter}")


def _join(parts: Iterable[SourceSeen]) -> str:
    """Put the pieces of a file at their lines; what cannot be parsed is left out."""
    text: dict[int, str] = {}
    for seen in sorted(parts, key=lambda one: min(one.lines)):
        own = _make_parsable(seen.lines)
        if own and min(own) > max(text, default=0) and _parses({**text, **own}):
            text |= own
    return _write(text)


def _write(lines: Mapping[int, str]) -> str:
    return "\n".join(lines.get(number, "") for number in range(1, max(lines, default=0) + 1))


def _parses(lines: Mapping[int, str]) -> bool:
    return _find_error(lines) is None


def _find_error(lines: Mapping[int, str]) -> int | None:
    """Return the line at which a text is no Python, None where it is; 0 where nothing tells."""
    try:
        ast.parse(_write(lines))
    except SyntaxError as error:
        return error.lineno or 0
    except (ValueError, RecursionError, MemoryError):
        return 0
    return None


def _make_parsable(lines: Mapping[int, str]) -> dict[int, str]:
    """Give a piece the heads that it lacks, and cut off what is begun or ended elsewhere."""
    if max(lines) > _MAX_FILE_LINE:
        return {}
    left = {number: text for number, text in sorted(lines.items()) if text.strip()}
    for _ in range(_MAX_TRIES):
        if not left:
            break
        whole = _add_heads(left)
        error = _find_error(whole)
        if error is None:
            return whole
        left = _cut(left, error)
    return {}


def _cut(lines: Mapping[int, str], error: int) -> dict[int, str]:
    """Leave out what stands from an error on, or up to it where that is nearer."""
    at = min(max(error, min(lines)), max(lines))
    before = {number: text for number, text in lines.items() if number < at}
    behind = {number: text for number, text in lines.items() if number > at}
    return before if len(before) >= len(behind) else behind


def _add_heads(lines: Mapping[int, str]) -> dict[int, str]:
    """Move a piece to the left; put heads above it for blocks that it is inside of."""
    depths = {number: len(text) - len(text.lstrip()) for number, text in lines.items()}
    first = min(lines)
    # The depths to which it comes back, each the first time, and what stands there.
    outer: list[tuple[int, str]] = []
    least = depths[first]
    for number, text in lines.items():
        if depths[number] < least:
            outer.append((depths[number], text.strip()))
            least = depths[number]
    whole = {number: text[least:] for number, text in lines.items()}
    for place, (depth, text) in enumerate(outer):
        at = first - 1 - place
        if at < 1:
            return dict(whole)
        whole[at] = " " * (depth - least) + _choose_head(text)
    last = max(lines)
    if whole[last].partition("#")[0].rstrip().endswith(":"):
        whole[last + 1] = " " * (depths[last] - least + 1) + "pass"
    return whole


def _choose_head(text: str) -> str:
    """Return the head of a block that may end in a line: what goes on with it tells its kind."""
    if text.startswith(_EXCEPT):
        return "try:"
    return "if shown:" if text.startswith(_ELSE) else "with shown:"
