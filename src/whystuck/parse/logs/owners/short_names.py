"""Ranks by the short names that people print before lines, which look like those of hosts: `r0`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.log_inputs import LogInput

_SHORT = re.compile(r"r(0|[1-9]\d{0,6})")
_LEAST = 2


def find_short_names(sources: Sequence[LogInput], hosts: Iterable[str]) -> dict[str, int]:
    """Return the rank of each such name, where all names are of that form and counted from 0.

    A name behind which NCCL, the kernel or a launcher tells something is that of a host.
    """
    names = frozenset(hosts)
    found = {name: int(match[1]) for name in names if (match := _SHORT.fullmatch(name))}
    numbers = set(found.values())
    if len(found) < max(_LEAST, len(names)) or max(numbers) >= min(2 * len(numbers), MAX_RANK):
        return {}
    own = [{name for name, _ in one.part.facts.comms} for one in sources]
    own += [{seen.node for seen in one.part.exits} for one in sources]
    is_host = any(names & told for told in own) or any(one.node in names for one in sources)
    return found if 0 in numbers and not is_host else {}
