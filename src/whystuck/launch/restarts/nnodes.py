"""How many nodes a job needs, by ``--nnodes`` of torchrun."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_NNODES = "--nnodes"
_NUMBERS = re.compile(r"(\d{1,6})(?::\d{1,6})?")


def find_least_nodes(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Return the least number of nodes, ``MIN`` or the only one; 0 where none is given."""
    texts = [environment.get("PET_NNODES", "")]
    for word, following in zip(command, [*command[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == _NNODES:
            texts.append(value if equals else following)
    match = _NUMBERS.fullmatch(texts[-1])
    return int(match[1]) if match else 0
