"""Which ranks share a process group, as programs print it at their start: `ep=[0,1] dp=[0,2]`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.evidence.ranks import MAX_RANK

_MOST_LISTS = 64
_MOST_NAMES = 16
_LIST = r"[\[({]\s?\d{1,7}(?:\s?,\s?\d{1,7}){1,255}\s?[\])}]"
_ONE = re.compile(_LIST)
# What people write between two lists, in any language.
_AND = (
    r"\s{0,2}(?:[,;/|&+\u3001\uff0c\uff1b]|(?:and|und|et|e|y|i|og|en)\b|[^\x00-\x7f]{1,6})?\s{0,2}"
)
# The word for a group in other languages: `tp 组: [0,1]`, `dp-Gruppen: [0,2]`, `les groupes ...`.
_WORDS = (
    r"[ _-]?[^\W\d_]{0,12}(?:组|組|通信域|グループ|그룹|group|grupp|grup|groep|групп)"
    r"[^\W\d_]{0,5}\s{0,2}"
)
_NAMED = re.compile(
    r"(?<![\w.])(?P<name>(?:(?:tensor|data|pipe(?:line)?|expert|context|sequence|model)[ _-]){1,2}"
    r"parallel(?:[_-]\w{1,20})?|[A-Za-z][\w-]{0,40})"
    r"(?P<kind>(?: (?:process )?(?:groups?|pgs?|ranks|members)){0,2})"
    r"(?: (?:of|for) rank \d{1,7}| #?\d{1,4}(?= ?[:=]))?"
    rf"(?:\s{{0,6}}(?:[=:\uff1a\u2192]|->|=>)?\s{{0,4}}|{_WORDS}(?:[=:\uff1a\u2192]|->|=>)\s{{0,4}})"
    rf"(?P<lists>[\[({{]?\s?{_LIST}(?:{_AND}{_LIST}){{0,63}})"
)
# What is behind the name of a group in names of variables.
_KIND = re.compile(
    r"(?:^|[_ -])(?:process[_ ]?groups?|groups?|pgs?|ranks|members|comms?|communicators?"
    r"|gr[ou]{1,2}pp?(?:e|en|er|es|o|os|i|y)?)$",
    re.IGNORECASE,
)
# Names that are groups without such a word.
_KNOWN = re.compile(
    r"(?:e?tp|e?dp|pp|ep|cp|sp|mp|edp|etp|fsdp|ddp|hsdp|zero|tensor|data|pipe(?:line)?|expert|model"
    r"|sequence|seq|context|shard|replica|replicate|intra|inter|world)"
    r"(?:[_-](?:parallel|model|node|cp|dp|tp|pp|ep))*\d{0,4}$",
    re.IGNORECASE,
)
# Who says that ranks are in several groups: `ranks 0 and 1 are both in tp and in ep`. There may be
# more ranks in them.
_SHARED = re.compile(
    r"\branks? (?P<ranks>\d{1,7}(?:(?:, ?| and | & |, and )\d{1,7}){1,63})"
    r"(?P<how> [a-z ]{0,40}?\b(?:in|to|of|share)\b)(?P<names>(?:,? (?:(?:and|in|to|of|the|both|&) )"
    r"{0,4}[A-Za-z][\w-]{0,40}(?: (?:process )?(?:groups?|pgs?)\b)?){2,8})"
)
_DENIED = re.compile(r"\b(?:not|never|neither|only|no)\b")
_NAME = re.compile(r"[A-Za-z][\w-]{0,40}(?: (?:process )?(?:groups?|pgs?)\b)?")
# `DeviceMesh('cuda', [[0, 1], [2, 3]], mesh_dim_names=('dp', 'tp'))`, and since torch 2.9
# `DeviceMesh((dp=2, tp=2), 'cuda', stride=(2, 1))`, whose ranks count on.
_TWO = 2
_MESH = re.compile(
    rf"DeviceMesh\([^\[]{{0,40}}\[({_LIST}(?:\s{{0,2}},\s{{0,2}}{_LIST}){{0,63}})\]"
    r".{0,40}?mesh_dim_names=[(\[](?P<names>[^)\]]{1,80})"
)
_SHORT_MESH = re.compile(r"DeviceMesh\(\((\w{1,20})=(\d{1,4}), (\w{1,20})=(\d{1,4})\)")
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

    What is called a group, or has a name that groups of ranks have, such as `dp`; and the groups of
    a `DeviceMesh`, as torch shows it.
    """
    if "DeviceMesh(" in text:
        yield from _list_of_mesh(text)
        return
    if "rank" in text and (shared := _SHARED.search(text)):
        yield from _list_shared(shared)
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


def _list_shared(match: re.Match[str]) -> Iterator[tuple[str, frozenset[int]]]:
    """Yield the groups that somebody says some ranks share: of one alone, it may be no group.

    They are called as functions that use them are: `expert_pg` is `expert`.
    """
    members = frozenset(int(rank) for rank in re.findall(r"\d+", match["ranks"]))
    names = {
        _cut_kind(name)
        for name in _NAME.findall(match["names"])
        if _KIND.search(name) or _KNOWN.match(name)
    } - {""}
    if len(names) > 1 and max(members) <= MAX_RANK and not _DENIED.search(match[0]):
        yield from ((name, members) for name in sorted(names))


def _list_of_mesh(text: str) -> Iterator[tuple[str, frozenset[int]]]:
    """Yield the groups of a mesh of two dimensions: its rows, and its columns."""
    if found := _MESH.search(text):
        rows = [[int(rank) for rank in re.findall(r"\d+", row)] for row in _ONE.findall(found[1])]
        names = re.findall(r"\w+", found["names"])
    elif found := _SHORT_MESH.search(text):
        first, second = min(int(found[2]), _MOST_LISTS), min(int(found[4]), _MOST_LISTS)
        if "stride=" in text and f"stride=({second}, 1)" not in text:
            return  # it is a part of a larger one, or transposed
        rows = [[one * second + two for two in range(second)] for one in range(first)]
        names = [found[1], found[3]]
    else:
        return
    if len(names) != _TWO or len({len(row) for row in rows}) != 1 or max(map(max, rows)) > MAX_RANK:
        return
    for name, groups in ((names[1], rows), (names[0], zip(*rows, strict=True))):
        for members in groups:
            if len(set(members)) > 1:
                yield name_group(name), frozenset(members)


def name_group(text: str) -> str:
    """Return the name of a group without the words for a group behind it, in small letters."""
    name = _cut_kind(text)
    if _KNOWN.match(name):
        name = name.rstrip("0123456789").rstrip("_")  # `dp0=[0,2] dp1=[1,3]`
    return _SHORT.get(name.removesuffix("_parallel").removesuffix("_model"), name)


def _cut_kind(text: str) -> str:
    name = text.strip().lower()
    for _ in range(3):
        name = _KIND.sub("", name)
    return re.sub(r"[ -]", "_", name.strip(" _-"))
