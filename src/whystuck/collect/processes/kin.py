"""The processes below one process, as the kernel lists them."""

from __future__ import annotations

import os

_MAX = 8192


def list_descendants(pid: int) -> set[int]:
    """Return all processes below one, as many as 8192; those that come and go may be missing."""
    found: set[int] = set()
    waiting = [pid]
    while waiting and len(found) < _MAX:
        for child in _list_children(waiting.pop()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def _list_children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 - names are all that is wanted
    except OSError:
        return []
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123 - speed
                children += map(int, file.read().split())
        except (OSError, ValueError):
            continue
    return children
