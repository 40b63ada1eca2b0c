"""Flags as the C++ library gflags takes them: ``--port=1``, ``-port 1``, ``--noflag``, files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from whystuck.evidence.errors import UsageError

MAX_FILE_BYTES = 1 << 20
_MAX_DEPTH = 8
_YES = frozenset({"true", "t", "yes", "y", "1"})
_NO = frozenset({"false", "f", "no", "n", "0"})


def parse_flags(arguments: Sequence[str], switches: frozenset[str]) -> dict[str, str]:
    """Return the value of each flag; the last one counts.

    Args:
        arguments: What a command was given.
        switches: Flags that are on or off, and take no value of their own.

    Returns:
        Name to value; that of a switch is ``true`` or ``false``.

    Raises:
        UsageError: A file of flags cannot be read, a switch has another value, or a word is none.
    """
    return _parse(list(arguments), switches, 0)


def _parse(words: list[str], switches: frozenset[str], depth: int) -> dict[str, str]:
    found: dict[str, str] = {}
    while words:
        word = words.pop(0)
        if word == "--":
            break
        if not word.startswith("-") or not word.lstrip("-"):
            raise UsageError(f"`{word}` is no flag", hint="flags look like `--port=1778`")
        name, has_value, value = word.lstrip("-").partition("=")
        if name == "flagfile":
            value = value if has_value else _take(words, name)
            found |= _read_file(Path(value), switches, depth)
        elif name in switches:
            found[name] = _read_switch(name, value) if has_value else "true"
        elif not has_value and name.startswith("no") and name[2:] in switches:
            found[name[2:]] = "false"
        else:
            is_alone = not has_value and (not words or words[0].startswith("--"))
            found[name] = value if has_value else "true" if is_alone else _take(words, name)
    return found


def _take(words: list[str], name: str) -> str:
    if not words:
        raise UsageError(f"`--{name}` needs a value", hint=f"e.g. `--{name}=VALUE`")
    return words.pop(0)


def _read_switch(name: str, value: str) -> str:
    if value.lower() in _YES:
        return "true"
    if value.lower() in _NO:
        return "false"
    raise UsageError(f"`--{name}={value}` is not understood", hint=f"`--{name}` or `--no{name}`")


def _read_file(path: Path, switches: frozenset[str], depth: int) -> dict[str, str]:
    if depth >= _MAX_DEPTH:
        raise UsageError(f"{path}: files of flags name each other", hint="one of them is enough")
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the file of flags {path} cannot be read: {getattr(error, 'strerror', None) or error}",
            hint="it has one flag a line",
        ) from error
    lines = [line.strip() for line in text.splitlines()]
    flags = [line for line in lines if line.startswith("-")]
    return _parse(flags, switches, depth + 1)
