"""Which ranks share a process group, as programs print it at their start: `ep=[0,1] dp=[0,2]`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.ranks import MAX_RANK

_MOST_LISTS = 64
_MOST_NAMES = 16
_LIST = r"[\[({]\s?\d{1,7}(?:\s?,\s?\d{1,7}){1,255}\s?[\])}]"
_ONE = re.compile(_LIST)
_NAMED = re.compile(
    r"(?<![\w.])(?P<name>(?:(?:tensor|data|pipe(?:line)?|expert|context|sequence|model)[ _-]){1,2}"
    r"parallel(?:[_-]\w{1,20})?|[A-Za-z][\w-]{0,40})"
    r"(?P<kind>(?: (?:process )?(?:groups?|pgs?|ranks|members)){0,2})"
    rf"\s{{0,6}}[=:]?\s{{0,4}}(?P<lists>[\[({{]?\s?{_LIST}(?:\s{{0,2}},?\s{{0,2}}{_LIST}){{0,63}})"
)
# What is behind the name of a group in names of variables.
_KIND = re.compile(
    r"(?:^|[_ -])(?:process[_ ]?groups?|groups?|pgs?|ranks|members|comms?|communicators?)$",
    re.IGNORECASE,
)
# Names that are groups without such a word.
_KNOWN = re.compile(
    r"(?:e?tp|e?dp|pp|ep|cp|sp|mp|edp|etp|fsdp|ddp|hsdp|zero|tensor|data|pipe(?:line)?|expert|model"
    r"|sequence|seq|context|shard|replica|replicate|intra|inter|world)"
    r"(?:[_-](?:parallel|model|node|cp|dp|tp|pp|ep))*$",
    re.IGNORECASE,
)
# What the groups of ways to split a model are called in short.
_SHORT = {
    "tensor": "tp",
    "data": "dp",
    "pipe": "pp",
    "pipeline": "pp",
    "expert": "ep",
    "context": "cp",
    "sequence": "sp",
    "model": "mp",
}


def list_groups(text: str) -> Iterator[tuple[str, frozenset[int]]]:
    """Yield the groups that a line names, each with its members: one name may have several.

    What is called a group, or has a name that groups of ranks have, such as `dp`.
    """
    for number, match in enumerate(_NAMED.finditer(text)):
        if number >= _MOST_NAMES:
            return
        name = name_group(match["name"] + match["kind"])
        is_group = _KIND.search(match["name"] + match["kind"]) or _KNOWN.match(name)
        if not name or not is_group:
            continue
        for one in _ONE.findall(match["lists"])[:_MOST_LISTS]:
            members = frozenset(map(int, re.findall(r"\d+", one)))
            if len(members) > 1 and max(members) <= MAX_RANK:
                yield name, members


def name_group(text: str) -> str:
    """Return the name of a group without the words for a group behind it, in small letters."""
    name = text.strip().lower()
    for _ in range(3):
        name = _KIND.sub("", name)
    name = re.sub(r"[ -]", "_", name.strip(" _-"))
    return _SHORT.get(name.removesuffix("_parallel").removesuffix("_model"), name)
