"""What the command of a process, which py-spy prints above its stacks, tells of its rank."""

from __future__ import annotations

import re

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ranks import MAX_RANK

# Where one process starts others, it is the number of the host.
_RANK = re.compile(r"^(?!.*multiprocessing).* --(?:global[-_])?rank[ =](\d{1,7})(?!\S)")
_LOCAL = re.compile(r"(?<!\S)--local[-_]rank[ =](\d{1,4})(?!\S)")
# What people add of its environment: `RANK=0 python train.py`, `python train.py   [env RANK=0]`
_ENVIRON = re.compile(r"(?<![\w-])RANK=['\"]?(\d{1,7})(?![\w.])")
_LOCAL_ENVIRON = re.compile(r"(?<![\w-])LOCAL_RANK=['\"]?(\d{1,4})(?![\w.])")
# A word about it behind the command, in brackets or as a comment.
_SAID = re.compile(
    r"\s(?:[#\[(<]|<-{1,3}|-{2,3}>?)\s?"
    r"(?:this is |is |= ?|global |(?:the )?main(?: process)?, {0,2})?rank[ =:_#]{0,2}(\d{1,7})"
    r"(?:[,;](?![^()\[\]]{0,60}rank)[^()\[\]]{0,60})?[\])>]?[\s.]{0,8}$",
    re.IGNORECASE,
)
_LOCAL_SAID = re.compile(
    r"\s(?:[#\[(<]|<-{1,3}|-{2,3}>?)\s?local[-_ ]rank[ =:_#]{0,2}(\d{1,4})[\])>]?[\s.]{0,8}$",
    re.IGNORECASE,
)


def find_rank(command: str) -> int:
    """Return the rank that an option names, or what people add to the command."""
    found = _RANK.search(command) or _ENVIRON.search(command) or _SAID.search(command)
    return min(int(found[1]), MAX_RANK) if found else UNKNOWN_RANK


def find_local_rank(command: str) -> int:
    """Return the local rank that launchers give by an option, or people add, -1 where none is."""
    found = _LOCAL.search(command) or _LOCAL_ENVIRON.search(command) or _LOCAL_SAID.search(command)
    return int(found[1]) if found else -1
