"""Paths of one job to its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from whystuck.evidence.errors import UsageError
from whystuck.evidence.model import Evidence
from whystuck.guarded.evidence_files import list_archived, settle
from whystuck.read.collected import Choice
from whystuck.read.pool import Progress
from whystuck.read.runs import Selection, select_all
from whystuck.read.tree import read_tree


def is_archived(path: Path) -> bool:
    """Return whether there is a folder at this path in an archive of evidence."""
    return bool(list_archived(path))


def read_paths(
    paths: Sequence[Path], progress: Progress | None = None, choice: Choice | None = None
) -> Evidence:
    """Read what is at some paths, as evidence of one job.

    Args:
        paths: Evidence folders, parts of them, or foreign files and folders, in any mix.
        progress: Called while dumps are read, with the number of those done and of all.
        choice: What is read; everything when left out.

    Returns:
        The evidence.

    Raises:
        UsageError: A path is missing, or holds nothing that can be read.
    """
    for path in paths:
        _check_path(path)
    choice = choice or Choice()
    names = ", ".join(str(path) for path in paths)
    # The user's own links are followed; what his file is called tells whose it is.
    paths = [settle(path) if path.is_dir() else settle(path.parent) / path.name for path in paths]
    choice = replace(choice, targets={path: settle(path) for path in paths if path.is_symlink()})
    base = _find_base(paths)
    try:
        chosen = (
            Selection(tuple(paths))
            if choice.prefix
            else select_all(paths, only_logs=choice.only_logs, home=choice.home)
        )
        evidence = read_tree(
            list(chosen.roots), base, chosen.incident, progress, choice, chosen.replaced
        )
    except OSError as error:
        reason = error.strerror or "it cannot be read"
        raise UsageError(f"cannot read {names}: {reason}", hint="check the permissions") from error
    if evidence is None:
        if choice.prefix:
            raise UsageError(
                f"no dump has `{choice.prefix}` and a number in its name",
                hint="without `--prefix`, dumps are told from what is in them",
            )
        raise _no_evidence(names, choice)
    return replace(evidence, job=chosen.job, gaps=(*evidence.gaps, *chosen.gaps))


def read_evidence(
    path: Path, progress: Progress | None = None, choice: Choice | None = None
) -> Evidence:
    """Read what is at a path.

    Args:
        path: An evidence folder, any folder in it, or foreign files.
        progress: Called while dumps are read, with the number of those done and of all.
        choice: What is read; everything when left out.

    Returns:
        The evidence. Of several runs, that of the newest one.

    Raises:
        UsageError: The path is missing, or holds nothing that can be read.
    """
    return read_paths([path], progress, choice)


def _find_base(paths: Sequence[Path]) -> Path:
    """Return the folder that citations are relative to."""
    if len(paths) > 1:
        return Path.cwd()
    # One that is not there is a folder in an archive.
    return paths[0].parent if paths[0].is_file() else paths[0]


def _check_path(path: Path) -> None:
    if not path.exists():
        if is_archived(path):
            return
        raise UsageError(
            f"{path} does not exist",
            hint="give the evidence folder that `whystuck run` printed, or a folder of dumps",
        )
    if not path.is_dir() and not path.is_file():
        # A pipe has no end that could be looked at first, and reading it may wait for ever.
        raise UsageError(
            f"{path} is {_name_kind(path)}, not a file or a folder",
            hint="write what comes out of it to a file, and give that",
        )


def _name_kind(path: Path) -> str:
    if path.is_fifo():
        return "a pipe"
    return "a socket" if path.is_socket() else "a device"


def _no_evidence(path: str, choice: Choice | None) -> UsageError:
    if choice and choice.only_logs:
        return UsageError(
            f"there is no log in {path}",
            hint="logs are text files; `whystuck diagnose` reads other evidence too",
        )
    return UsageError(
        f"no readable evidence in {path}",
        hint="give flight-recorder dumps, py-spy or faulthandler stacks, logs, or a folder of them",
    )
