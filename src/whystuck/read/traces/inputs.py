"""Finds the trace files, and the partials, at paths and URLs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from whystuck.evidence.errors import UsageError
from whystuck.evidence.finding import Gap
from whystuck.evidence.ranks import MAX_RANK
from whystuck.guarded.evidence_files import forget_archives, look_at, settle
from whystuck.guarded.remote import hide_user_info, list_remote, local_path
from whystuck.read.content import strip_packed_suffix
from whystuck.read.naming import find_ranks
from whystuck.read.traces.detection import WHAT
from whystuck.read.traces.partials import SUFFIX
from whystuck.read.walking import Origins, explain_odd, is_link_to_file, list_files

# What is read behind a URL: there, a look at every file would fetch it.
_TRACE_NAME = re.compile(r"\.json$|\.trace$|\.pt\.trace", re.IGNORECASE)
# On a disk a look is cheap, so traces may have any name but these.
_NO_TRACE_NAME = re.compile(
    r"\.(?:log|txt|out|err|py|pyc|csv|parquet|html|md|pkl|pickle|pt|pth|bin|so|ring|yaml|yml|toml)$",
    re.IGNORECASE,
)
# The pages made of evidence, and the names of other evidence, are no traces.
_OTHER_NAME = re.compile(
    r"^(?:report|env|job|gaps|incident|exit|proc|trigger)\.json$|^stacks-|^fr[_.]"
)
_NUMBER = re.compile(r"\d+")
_RANK_IN_NAME = re.compile(r"rank[_\-.]?(\d+)", re.IGNORECASE)
# A number that is far above the number of files is a time, a process or a job.
_SPARSE = 4
_SMALL_JOB = 64
_LOOSE_NUMBER_FROM = 2


@dataclass(frozen=True)
class TraceInput:
    """A file that holds a trace, or may hold one.

    Attributes:
        place: Its path, or its URL.
        artifact: The name that citations and gaps give to it.
        size_bytes: How large it is, packed or not.
        rank: What its name and folders say; -1 when nothing.
        node: The host, where a folder tells it.
        is_sure: Whether it is known, or claimed by the user, to be a trace.
        mark: Changes with its content, and is empty when that must be told by reading it.
    """

    place: str
    artifact: str = ""
    size_bytes: int = 0
    rank: int = -1
    node: str = ""
    is_sure: bool = False
    mark: str = ""

    @property
    def is_partial(self) -> bool:
        """Whether its name is that of a partial."""
        return self.place.endswith(SUFFIX)


def find_inputs(places: Sequence[str]) -> tuple[list[TraceInput], list[Gap]]:
    """Find the files that may hold traces, or partials of traces.

    Args:
        places: Paths and URLs of files and folders; folders are searched to their depth.

    Returns:
        The files, each once, in the order of the places and by name; what could not be looked at.

    Raises:
        UsageError: A place is missing, or cannot be read.
    """
    forget_archives()
    found: dict[str, TraceInput] = {}
    gaps: list[Gap] = []
    for place in places:
        local = local_path(place)
        listed = _list_remote(place) if local is None else _list_local(local, gaps)
        for one in listed:
            found.setdefault(one.place, one)
    return list(found.values()), gaps


def guess_ranks(paths: Sequence[Path]) -> dict[Path, int]:
    """Tell ranks from the names of trace files, where they tell.

    A number in the name of a trace is often that of a process or a time, so it counts only
    after the word "rank", or where the names differ in small numbers.

    Args:
        paths: The files.

    Returns:
        The rank of each of those whose name tells it.
    """
    told: dict[Path, int] = {}
    loose: dict[Path, int] = {}
    for path, rank in find_ranks(paths).items():
        names = (path.name, *(folder.name for folder in list(path.parents)[:3]))
        word = next((match for name in names if (match := _RANK_IN_NAME.search(name))), None)
        if word and int(word[1]) <= MAX_RANK:
            told[path] = int(word[1])
        elif rank is not None:
            loose[path] = rank
    is_distinct = len(set(loose.values())) == len(loose) >= _LOOSE_NUMBER_FROM
    if is_distinct and max(loose.values()) < _SPARSE * len(loose) + _SMALL_JOB and not told:
        return loose
    return told


def find_promised(others: Sequence[str], traces: Iterable[str]) -> set[str]:
    """Find the files that should be traces by their names: those of traces with other numbers.

    Args:
        others: Paths or URLs of what is no trace.
        traces: Those of traces.

    Returns:
        The others that are named so. One that is a trace itself, packed or unpacked, is none.
    """
    if not others:
        return set()
    plain = {strip_packed_suffix(place) for place in traces}
    forms = {_NUMBER.sub("#", place) for place in plain}
    return {
        place
        for place in others
        if (name := strip_packed_suffix(place)) not in plain and _NUMBER.sub("#", name) in forms
    }


def _list_local(root: Path, gaps: list[Gap]) -> list[TraceInput]:
    _check_path(root)
    odd: list[Path] = []
    # The user's own links are followed; what his file is called tells whose it is.
    root = settle(root) if root.is_dir() else settle(root.parent) / root.name
    try:
        paths = list(list_files(root, gaps, odd))
    except OSError as error:
        reason = error.strerror or "it cannot be read"
        raise UsageError(f"cannot read {root}: {reason}", hint="check the permissions") from error
    is_named = not root.is_dir()
    if not is_named:
        paths = [path for path in paths if _may_be_trace(path.name)]
    origins = Origins(root if root.is_dir() else root.parent)
    named = [str(path) for path in odd if _is_candidate(path.name)]
    promised = find_promised(named, map(str, paths))
    promised |= {name for name in named if is_link_to_file(Path(name))}
    odd = [path for path in odd if str(path) in promised]
    ranks = guess_ranks([*paths, *odd])
    listed = []
    for path in [*paths, *odd]:
        origin = origins.find(path, None)
        rank = ranks.get(path, -1) if origin.rank is None else origin.rank
        if str(path) in promised:
            # It is not handed on: to open a pipe may take for ever.
            reason = f"{origin.artifact}: {explain_odd(path)}"
            gaps.append(Gap(rank if rank >= 0 else None, WHAT, reason))
            continue
        size = _measure(path)
        place = settle(path) if is_named else path
        listed.append(
            TraceInput(str(place), origin.artifact, size, rank, origin.node, is_sure=is_named)
        )
    return listed


def _list_remote(url: str) -> list[TraceInput]:
    files = list_remote(url)
    is_named = len(files) == 1 and files[0].url.rstrip("/").endswith(url.rpartition("/")[2])
    if not is_named:
        files = [file for file in files if _is_candidate(Path(file.path).name)]
    ranks = guess_ranks([Path(file.path) for file in files])
    return [
        TraceInput(
            file.url,
            hide_user_info(file.path),
            file.size_bytes,
            ranks.get(Path(file.path), -1),
            is_sure=is_named,
            mark=file.mark,
        )
        for file in files
    ]


def _is_candidate(name: str) -> bool:
    if name.endswith(SUFFIX):
        return True
    plain = strip_packed_suffix(name)
    return bool(_TRACE_NAME.search(plain)) and not _OTHER_NAME.search(plain)


def _may_be_trace(name: str) -> bool:
    plain = strip_packed_suffix(name)
    is_other = _NO_TRACE_NAME.search(plain) or _OTHER_NAME.search(plain)
    return _is_candidate(name) or not is_other


def _measure(path: Path) -> int:
    try:
        return look_at(path).size
    except OSError:
        return 0


def _check_path(path: Path) -> None:
    if not str(path) or not path.exists():
        raise UsageError(f"`{path}` does not exist", hint="give trace files, or a folder of them")
    if not path.is_dir() and not path.is_file():
        raise UsageError(
            f"`{path}` is no file and no folder",
            hint="write what comes out of it to a file, and give that",
        )
