"""What the path of a log tells: its rank, its host, its attempt. Content goes over it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from pathlib import PurePosixPath

from whystuck.evidence.ranks import MAX_RANK

# Those of a job of many nodes, one after the other.
_MAX_FOLDERS = 64
_PACKED = re.compile(r"\.(?:gz|bz2|xz|zst)$")
_ROTATED = re.compile(r"\.(\d{1,3})$|-\d{8}$")
_NUMBERED = re.compile(r"\.(\d{1,3})(?=\.(?:log|txt)$)")
_SUFFIX = re.compile(
    r"\.(?:log|out|err|txt|stdout|stderr|jsonl?|dmesg|kern|kmsg|journal|syslog)$", re.IGNORECASE
)
_RANK = re.compile(r"(?:^|[^a-z])(?:global[_\-.]?)?rank[_\-.=]?(\d{1,7})(?!\d)", re.IGNORECASE)
_LOCAL = re.compile(r"local[_\-.]?rank[_\-.=]?(\d{1,4})(?!\d)", re.IGNORECASE)
_INDEX = re.compile(r"^(.*?)(\d{1,7})$")
_ATTEMPT = re.compile(r"^attempt[_\-.]?(\d{1,6})$", re.IGNORECASE)
_STREAM = re.compile(r"^(?:std)?(?:out|err)$|^log$", re.IGNORECASE)
_HEAD = re.compile(
    r"^(?:kubectl[_\-.]logs?|node|host|agent|log|logs|kern|dmesg|kmsg|syslog|messages|journal|"
    r"journalctl|fabricmanager|train|job|out|describe)[_\-.]",
    re.IGNORECASE,
)
_TAIL = re.compile(
    r"[_\-.](?:dmesg|kern|kernel|kmsg|syslog|messages|journal|fabricmanager|log|out)$",
    re.IGNORECASE,
)
# Names that are hosts wherever they stand.
_HOSTLIKE = re.compile(
    r"^(?:n|node|host|gpu|cpu|cn|nid|dgx|compute|server|worker|ip|hgx|gke|aks|eks)(?=[\w.-]*\d)[\w.-]+$|"
    r"^[a-z][\w-]*\d\.[\w.-]+$|^[a-z][a-z-]*-worker-\d+$|^[a-z][\w-]*-(?:master|launcher)-\d+$",
    re.IGNORECASE,
)
_NO_HOST = re.compile(
    r"^(?:logs?|pods?|out(?:put)?s?|rank[_\-.]?\d+|attempt.*|rounds?|incidents?|run.*|step.*|\d+|"
    r"none_.*|default.*|tmp|var|home|data|node-?logs|worker-\d+)$",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class LogName:
    """What a path tells; what it does not tell is None or empty.

    Attributes:
        rank: The rank, as a name with the word "rank" tells it.
        local: The local rank.
        index: A number at the end of the name, which may be a rank.
        series: The name without that number: names of one series belong together.
        attempt: The attempt of the launcher.
        hosts: Names that may be the host, the likeliest first.
        rotation: How old it is among its likes: 0 is what was written last.
        base: The path without packing and rotation, which its likes share.
        root: The folder that holds the folders of the attempts, or the file.
    """

    rank: int | None = None
    local: int | None = None
    index: int | None = None
    series: str = ""
    attempt: int | None = None
    hosts: tuple[str, ...] = ()
    rotation: int = 0
    base: str = ""
    root: str = ""


@dataclass(frozen=True, slots=True)
class _Folders:
    """What the folders of a log tell, the one it lies in first."""

    names: tuple[str, ...]
    path: str
    joined: str
    rank: int | None
    local: int | None
    attempt: int | None
    root: str


@lru_cache(_MAX_FOLDERS)
def _read_folders(folder: str) -> _Folders:
    """Read the folders of a log, which share them with many others."""
    path = PurePosixPath(folder)
    names = [part for part in path.parts if part not in ("/", "..", ".")]
    below = names[::-1]
    return _Folders(
        names=tuple(below),
        path=str(path),
        joined="/".join(names),
        rank=_first(_RANK, *(_LOCAL.sub("", part) for part in below)),
        local=_first(_LOCAL, *below),
        attempt=next((int(m[1]) for part in names if (m := _ATTEMPT.match(part))), None),
        root="/".join(takewhile(lambda part: not _ATTEMPT.match(part), path.parts)),
    )


def read_log_name(artifact: str) -> LogName:
    """Read the path of a log.

    Args:
        artifact: The path, relative to the evidence.
    """
    folder, _, name = artifact.rpartition("/")
    stem, rotation = _strip(name)
    above = _read_folders(folder)
    local = _first(_LOCAL, stem)
    rank = _first(_RANK, stem if local is None else _LOCAL.sub("", stem))
    local = above.local if local is None else local
    index, series = _find_index(stem, above)
    if above.attempt is not None and local is None and above.names[0].isdecimal():
        # torchelastic puts the output of local rank 3 into `attempt_0/3`.
        local, index = int(above.names[0][:4]), None
    if index is not None and index > MAX_RANK:
        index = None
    return LogName(
        above.rank if rank is None else rank,
        local,
        index,
        series,
        above.attempt,
        _find_hosts(stem, above.names),
        rotation,
        f"{above.path}/{stem}",
        above.root,
    )


def is_file(name: str) -> bool:
    """Whether a name that stands above lines is that of a file with output, rather than a host."""
    return _SUFFIX.search(name) is not None


def is_hostlike(name: str) -> bool:
    """Whether a name is that of a host wherever it stands."""
    return bool(_HOSTLIKE.match(name)) and not _NO_HOST.match(name)


def _strip(name: str) -> tuple[str, int]:
    """Take off what is not the name: packing, rotation, suffix."""
    name = _PACKED.sub("", name)
    rotation = 0
    if match := _ROTATED.search(name):
        rotation = int(match[1] or 1)
        name = name[: match.start()]
    else:
        name = _NUMBERED.sub("", name)
    return _SUFFIX.sub("", name), rotation


def _first(pattern: re.Pattern[str], *names: str) -> int | None:
    for name in names:
        if (match := pattern.search(name)) and int(match[1]) <= MAX_RANK:
            return int(match[1])
    return None


def _find_index(stem: str, above: _Folders) -> tuple[int | None, str]:
    if match := _INDEX.match(stem):
        return int(match[2]), f"{above.joined}/{match[1]}"
    if above.names and above.names[0].isdecimal() and _STREAM.match(stem):
        return int(above.names[0][:7]), f"{above.joined.rpartition('/')[0]}/*/{stem}"
    return None, ""


def _find_hosts(stem: str, folders: Sequence[str]) -> tuple[str, ...]:
    short = _TAIL.sub("", _HEAD.sub("", stem))
    # Of `node-n1`, the host is `n1`; of `node-1`, it is that.
    found = [short, stem] if is_hostlike(short) else [stem, short]
    found += [_TAIL.sub("", stem), *folders]
    return tuple(name for name in dict.fromkeys(found) if name and not _NO_HOST.match(name))
