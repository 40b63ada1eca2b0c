"""Whose host the stacks that come next are of: a heading, or the command that was run there."""

from __future__ import annotations

import re

from whystuck.parse.logs.owners.names import is_file

# A host or a pod in a line of its own: `=== gpu-node-3 ===`.
_HOST_HEADING = re.compile(
    r"^(?:[#=*<>-]{2,12} ?|[#\[(] ?)(?:(?:pod|host|node|container)[:/ ] ?)?"
    r"([a-z][a-z0-9.-]{0,62}\d[a-z0-9.-]{0,62}) ?[#=*<>\])-]{0,12}$"
)
# A command that runs another one elsewhere, which prints stacks; what its options take.
_ELSEWHERE = re.compile(r"(?<!\S)(?:exec|ssh|-w) .{1,400}\b(?:py-spy|gdb|pstack)\b")
_TAKES_VALUE = {
    "-n",
    "-c",
    "-i",
    "-p",
    "-l",
    "-o",
    "-u",
    "-e",
    "--namespace",
    "--container",
    "--context",
}
_TARGET = re.compile(r"(?:pod/|[\w.-]{1,80}@)?(?=[\w.]*[\d.-])([A-Za-z0-9][\w.-]{0,252})")


def find_host(text: str) -> str:
    """Return the host or pod that a heading names, or that a command is run on."""
    if match := _HOST_HEADING.match(text[:120]):
        return "" if is_file(match[1]) else match[1]
    found = _ELSEWHERE.search(text[:600])
    if found is None:
        return ""
    skips = False
    for word in found[0].split()[1:]:
        if skips or word.startswith("-"):
            skips = word in _TAKES_VALUE
            continue
        target = _TARGET.fullmatch(word)
        return target[1] if target else ""
    return ""
