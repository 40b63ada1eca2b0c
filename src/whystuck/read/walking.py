"""Finds the files below a path, and whose they are."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from whystuck.evidence import archive, records
from whystuck.evidence.fault_events import FAULT_EVENTS_FILE, FAULT_LOG_FILE, OLD_SUFFIX
from whystuck.evidence.finding import Gap
from whystuck.evidence.ranks import MAX_RANK
from whystuck.guarded.evidence_files import list_archive, list_archived, settle
from whystuck.guarded.known_folders import LINK

_RANK_DIR = re.compile(rf"^{records.RANK_DIR_PREFIX}(\d+)$")
_WORKER_DIR = re.compile(rf"^{records.WORKER_DIR_PREFIX}(\d+)$")
_SKIPPED_DIRS = {records.SOURCES_DIR, ".git", "__pycache__"}
_SKIPPED_NAMES = {"report.json", "report.txt", "report.html", "env.json"} | {
    f"{name}{suffix}" for name in (FAULT_LOG_FILE, FAULT_EVENTS_FILE) for suffix in ("", OLD_SUFFIX)
}


def list_files(root: Path, gaps: list[Gap], odd: list[Path] | None = None) -> Iterator[Path]:
    """List the files below a path, each folder by name.

    Args:
        root: A file, or a folder.
        gaps: Gets a gap for each folder in it that cannot be read.
        odd: Gets what is neither a file nor a folder: pipes, devices, links. Links to folders are
            left out, and those to files below the root, which are listed themselves.

    Yields:
        Absolute paths of files; of saved sources their index only. The files in an archive of
        evidence have the paths that they would have in the folder that it stands for.

    Raises:
        OSError: The root itself cannot be read.
    """
    if root.is_file():
        yield from _list_one(root.absolute(), gaps)
        return
    if settle(root) != root.absolute():
        # Those that a user names are settled: this one was found in evidence.
        gaps.append(Gap(None, f"folder {root.name[:100]}", LINK))
        return
    archived = [name.split("/") for name in list_archived(root)]
    if not archived or root.exists():
        yield from _walk(root, gaps, odd)
    yield from _list_members(root.absolute(), archived)


def _walk(root: Path, gaps: list[Gap], odd: list[Path] | None) -> Iterator[Path]:
    """List the files in a folder and those below it."""
    # No call into itself, and no path but those of files: folders can be deep, large and many.
    waiting = _list_folder(str(root.absolute()))
    while waiting:
        entry = waiting.pop()
        if entry.is_dir(follow_symlinks=False):
            if entry.name == records.SOURCES_DIR:
                yield Path(entry.path, records.SOURCES_INDEX_FILE)
            elif entry.name not in _SKIPPED_DIRS:
                waiting += _try_folder(entry, gaps)
        elif entry.name not in _SKIPPED_NAMES:
            if entry.is_file(follow_symlinks=False):
                yield from _list_one(Path(entry.path), gaps)
            elif odd is not None and not _is_told_elsewhere(entry, root):
                odd.append(Path(entry.path))


def _list_one(path: Path, gaps: list[Gap]) -> Iterator[Path]:
    """List a file, or what is in it where it is an archive of evidence."""
    folder = archive.folder_of(path.name)
    if not folder:
        yield path
        return
    try:
        members = list_archive(path)
    except OSError as error:
        gaps.append(Gap(None, path.name[:100], f"cannot be read: {error.strerror or error}"))
        return
    if members.problem:
        gaps.append(Gap(None, path.name[:100], members.problem))
    names = [name.split("/")[1:] for name in members.by_name]
    yield from _list_members(path.with_name(folder), names)


def _list_members(folder: Path, names: list[list[str]]) -> Iterator[Path]:
    """List members of an archive in the place of a folder, as parts of their names in it."""
    # What lies in the folder itself is listed there.
    is_beside = folder.is_dir()
    for parts in sorted(names):
        place = folder.joinpath(*parts)
        if _is_wanted(parts) and not (is_beside and os.path.lexists(place)):
            yield place


def _is_wanted(parts: list[str]) -> bool:
    """Return whether a member of an archive would be listed in a folder."""
    if records.SOURCES_DIR in parts:
        return parts[-2:] == [records.SOURCES_DIR, records.SOURCES_INDEX_FILE]
    return parts[-1] not in _SKIPPED_NAMES and not _SKIPPED_DIRS & set(parts)


def _try_folder(entry: os.DirEntry[str], gaps: list[Gap]) -> list[os.DirEntry[str]]:
    """List a folder; one that cannot be read is a gap."""
    try:
        return _list_folder(entry.path)
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        gaps.append(Gap(None, f"folder {entry.name[:100]}", reason))
        return []


def _list_folder(path: str) -> list[os.DirEntry[str]]:
    """List a folder, the last name first."""
    with os.scandir(path) as entries:
        return sorted(entries, key=attrgetter("name"), reverse=True)


def _is_told_elsewhere(entry: os.DirEntry[str], root: Path) -> bool:
    """Return whether an entry is a link to a folder, or to a file that lies below the root."""
    try:
        return entry.is_dir() or (entry.is_file() and settle(Path(entry.path)).is_relative_to(root))
    except OSError:  # a link that leads to itself, or nowhere
        return False


def is_link_to_file(path: Path) -> bool:
    """Return whether a path is a link that leads to a file."""
    return path.is_symlink() and path.is_file()


def explain_odd(path: Path) -> str:
    """Say what a path is that is neither a file nor a folder."""
    if is_link_to_file(path):
        return "it is a link out of the evidence, which is not followed: give what it leads to"
    return "it is no regular file" if path.exists() else "it is a link that leads nowhere"


@dataclass(frozen=True)
class Origin:
    """Where a file comes from: what to cite, whose it is."""

    artifact: str
    rank: int | None
    node: str = ""
    worker: int | None = None


class Origins:
    """Finds the origins of files; what only their folder tells is found once for each folder."""

    def __init__(self, base: Path, home: Path | None = None) -> None:
        """Cite files relative to ``base``, an incident of ``home`` where that is given."""
        self._base = base.absolute()
        self._home = home
        self._by_folder: dict[Path, Origin] = {}

    def find(self, path: Path, named: int | None) -> Origin:
        """Find the origin of a file, whose rank its name tells unless a folder does."""
        folder = path.parent
        known = self._by_folder.get(folder)
        if known is None:
            known = self._by_folder[folder] = self._describe(folder)
        rank = named if known.rank is None else known.rank
        if rank is not None and rank > MAX_RANK:
            rank = None
        return Origin(f"{known.artifact}{path.name}", rank, known.node, known.worker)

    def _describe(self, folder: Path) -> Origin:
        """Describe all files of a folder; the artifact is what their names are added to."""
        rank, worker, node = None, None, ""
        for position, part in enumerate(folder.parts):
            if match := _RANK_DIR.match(part):
                rank, node = int(match[1]), folder.parts[position - 1]
            elif match := _WORKER_DIR.match(part):
                worker = int(match[1])
        try:
            prefix = folder.relative_to(self._base).as_posix()
        except ValueError:
            prefix = self._describe_outside(folder)
        return Origin("" if prefix == "." else f"{prefix.rstrip('/')}/", rank, node, worker)

    def _describe_outside(self, folder: Path) -> str:
        """Name a folder outside the base: of the same job from the base on, as with `cd`."""
        job = self._home or self._base.parent.parent
        is_near = self._base.parent.name == "incidents" and folder.is_relative_to(job / "rounds")
        place = job / "incidents" / self._base.name
        return os.path.relpath(folder, place) if is_near else folder.as_posix()
