"""What is wrong with an environment or a command line, by what programs print about it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from whystuck.diagnose.algorithms.failures.config_kinds import KINDS, ConfigKind, make_kind

_MIN_MAJOR = 10_000
# No size and no version has more digits.
_LONG = 20


@dataclass(frozen=True)
class ConfigError:
    """A kind that was found in a text, and the words that its groups hold."""

    kind: ConfigKind
    words: dict[str, str]

    @property
    def sentence(self) -> str:
        """What is wrong, in one sentence without a full stop."""
        return _fill(self.kind.says, self.words)

    @property
    def remedies(self) -> tuple[str, ...]:
        """Commands and advice to paste; those that need a word that is not known are left out."""
        filled = (_fill(text, self.words) for text in self.kind.remedies)
        return tuple(text for text in filled if text)

    @property
    def key(self) -> tuple[str, str]:
        """What is alike in two reports of one mistake; numbers of ranks and sizes may differ."""
        if self.kind.is_of_host:
            return self.kind.name, ""
        shown = {name: text for name, text in self.words.items() if name != "what"}
        told = " ".join(shown.values()) or self.words.get("what", "")
        return self.kind.name, re.sub(r"\d+", "#", told)


def find_config_error(text: str, *, is_raised: bool = False) -> ConfigError | None:
    """Find what a text says is wrong with the environment or the command line.

    Args:
        text: A line of a log, or ``Type: message`` of an exception.
        is_raised: Whether the text is of an exception that ended its process.

    Returns:
        The kind and its words; None when the text says nothing of the sort, or only that a
        program met it and went on.
    """
    for kind in KINDS:
        match = kind.pattern.search(text)
        if match and (is_raised or kind.is_plain or _leads(text, match.start())):
            words = {name: found for name, found in match.groupdict().items() if found}
            words["what"] = match[0].strip()
            return ConfigError(kind, _describe(words))
    return None


_LEADING_TYPE = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b")


def _leads(text: str, start: int) -> bool:
    """Tell whether a line begins with the error itself, as the last line of a traceback does."""
    return start == 0 or bool(_LEADING_TYPE.match(text.lstrip()))


def _describe(words: dict[str, str]) -> dict[str, str]:
    """Write versions of NCCL as people do, and take the package out of a dotted name."""
    for name in ("va", "vb"):
        if words.get(name, "").isdecimal() and len(words[name]) < _LONG:
            words[name] = name_nccl_version(int(words[name]))
    if "module" in words:
        words["package"] = words["module"].partition(".")[0]
    if len(words.get("size", "")) in range(1, _LONG):
        words["megabytes"] = str(max(1, int(words["size"]) >> 20))
    return words


def name_nccl_version(code: int) -> str:
    """Write a version that NCCL holds in one number: 22703 is 2.27.3, and 2708 is 2.7.8."""
    if code >= _MIN_MAJOR:
        return f"{code // 10_000}.{code // 100 % 100}.{code % 100}"
    return f"{code // 1000}.{code // 100 % 10}.{code % 100}"


def _fill(text: str, words: dict[str, str]) -> str:
    try:
        return text.format_map(words)
    except KeyError:
        return ""


# What is only wrong with the environment when no rank gets past it.
_SHARED = (
    make_kind(
        "file",
        r"(?:FileNotFoundError|NotADirectoryError): .*?'(?P<file>[^']*)'",
        "{file} is not there",
        "ls -ld {file}   # on every node, and inside the container",
    ),
    make_kind(
        "permission",
        r"PermissionError: .*?'(?P<file>[^']*)'",
        "{file} may not be used by this user",
        "ls -ld {file}; id   # on every node, and inside the container",
    ),
)


def find_shared_error(text: str) -> ConfigError | None:
    """Find an error that is one of configuration where all ranks have it, and data elsewhere."""
    for kind in _SHARED:
        if match := kind.pattern.search(text):
            words = {name: found for name, found in match.groupdict().items() if found}
            return ConfigError(kind, words | {"what": match[0]})
    return None
