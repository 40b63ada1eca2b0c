"""Tells the rank of a file from its name and what is beside it, and which ranks have no file."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from whystuck.evidence.finding import Gap
from whystuck.read.content import strip_packed_suffix

_RANK_IN_NAME = re.compile(r"rank[_\-.]?(\d+)", re.IGNORECASE)
_RANK_FOLDER = re.compile(r"(?:(?:local[_\-.]?)?rank[_\-.]?)?(\d+)", re.IGNORECASE)
_ATTEMPT_FOLDER = re.compile(r"attempt[_\-.]?(\d+)", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
# A number that is far above the number of files is a time, a process or a job.
_SPARSE = 4
_SMALL_JOB = 64
_MAX_GAPS = 20_000


def find_rank(name: str) -> int | None:
    """Find the rank in a file name: ``nccl_trace_rank_3``, ``host_5``, ``0.pkl``, ``_dump_12``.

    Args:
        name: The name without folders.

    Returns:
        The number after "rank", else the last number before the suffix, else None.
    """
    match = _RANK_IN_NAME.search(name)
    if match:
        return int(match[1])
    numbers = _NUMBER.findall(_stem(name)) or _NUMBER.findall(name)
    return int(numbers[-1]) if numbers else None


def find_missing(
    world_size: int,
    seen: Collection[int],
    gaps: Iterable[Gap],
    reason: str = "no file of this rank was found",
) -> Iterator[Gap]:
    """List the ranks of which there is no file at all.

    Args:
        world_size: How many ranks the job has.
        seen: Ranks of which something was read.
        gaps: What could not be read: it is told already.
        reason: What the gaps say.

    Yields:
        A gap for each rank, or one for all where they are very many.
    """
    known = {*seen, *(gap.rank for gap in gaps if gap.rank is not None)}
    missing = world_size - sum(0 <= rank < world_size for rank in known)
    if missing > _MAX_GAPS:
        yield Gap(None, f"evidence of {missing} ranks", reason)
        return
    for rank in range(world_size):
        if rank not in known:
            yield Gap(rank, "evidence", reason)


def find_prefixed_rank(name: str, prefix: str) -> int | None:
    """Find the rank in a file name as the number after a prefix that the user gave.

    Args:
        name: The name without folders.
        prefix: The text before the number; other text may stand before it.

    Returns:
        The number, or None when the name has no such text.
    """
    match = re.search(re.escape(prefix) + r"(\d+)", name)
    return int(match[1]) if match else None


def find_ranks(paths: Sequence[Path]) -> dict[Path, int | None]:
    """Find the ranks of many files: names that differ in one number only differ in the rank.

    Args:
        paths: The files.

    Returns:
        The rank of each, None where nothing tells it.
    """
    alike: dict[tuple[Path, str], list[Path]] = defaultdict(list)
    for path in paths:
        alike[path.parent, _NUMBER.sub("#", _stem(path.name))].append(path)
    found: dict[Path, int | None] = {}
    for group in alike.values():
        found |= _find_in_group(group)
    return found


def find_old_attempts(paths: Sequence[Path]) -> Mapping[Path, Path]:
    """Find what belongs to an attempt of torchelastic that was not the last one.

    Args:
        paths: The files.

    Returns:
        The folder of the attempt, for each file in one that has a later one beside it.
    """
    attempts: dict[Path, dict[int, Path]] = defaultdict(dict)
    owners: dict[Path, tuple[Path, int] | None] = {}
    for parent in {path.parent for path in paths}:
        owners[parent] = None
        for folder in (parent, *parent.parents):
            if match := _ATTEMPT_FOLDER.fullmatch(folder.name):
                attempts[folder.parent][int(match[1])] = folder
                owners[parent] = folder.parent, int(match[1])
                break
    if not attempts:
        return {}
    owned = ((path, owners[path.parent]) for path in paths)
    return {
        path: attempts[owner[0]][owner[1]]
        for path, owner in owned
        if owner is not None and owner[1] < max(attempts[owner[0]])
    }


def _stem(name: str) -> str:
    return strip_packed_suffix(name).split(".", maxsplit=1)[0]


def _find_in_group(group: Sequence[Path]) -> dict[Path, int | None]:
    """Find the ranks of files whose names differ in numbers only."""
    by_word = [_RANK_IN_NAME.search(path.name) for path in group]
    if len(group) == 1 or all(by_word):
        return {path: _find_alone(path) for path in group}
    fields = [[int(number) for number in _NUMBER.findall(_stem(path.name))] for path in group]
    columns = [column for column in zip(*fields, strict=True) if len(set(column)) == len(group)]
    plausible = [column for column in columns if max(column) < _SPARSE * len(group) + _SMALL_JOB]
    if plausible:
        return dict(zip(group, plausible[-1], strict=True))
    if columns:
        return dict(zip(group, min(columns, key=max), strict=True))
    return {path: _find_alone(path) for path in group}


def _find_alone(path: Path) -> int | None:
    if match := _RANK_IN_NAME.search(path.name):
        return int(match[1])
    # The folder of a rank tells more than a number in the name, which may be a time.
    for folder in path.parents:
        if _RANK_IN_NAME.fullmatch(folder.name) or _is_numbered_attempt(folder):
            match = _RANK_FOLDER.fullmatch(folder.name)
            return int(match[1]) if match else None
    rank = find_rank(path.name)
    if rank is None and (match := _RANK_FOLDER.fullmatch(path.parent.name)):
        return int(match[1])
    return rank


def _is_numbered_attempt(folder: Path) -> bool:
    """Tell the folder of one rank in an attempt: ``attempt_0/3``."""
    return folder.name.isdecimal() and bool(_ATTEMPT_FOLDER.fullmatch(folder.parent.name))


_SAYS_RANK = re.compile(
    r"rank[_\-.=]?\d|\d[_\-.]?rank(?![a-z])|stacks-\d|^\d+/|(?:^|/)r\d+\b|py-?spy", re.IGNORECASE
)


def says_rank(path: Path) -> bool:
    """Tell whether the number in a name is said to be a rank, rather than counting files."""
    return _SAYS_RANK.search(f"{path.parent.name}/{path.name}") is not None
