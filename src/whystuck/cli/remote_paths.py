"""Where evidence is kept: a folder, or a URL."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from whystuck.evidence.errors import UsageError
from whystuck.evidence.finding import Gap
from whystuck.guarded.scratch import scratch_folder

_STDIN = "-"
# What is piped in has to lie on the disk while it is read.
MAX_STDIN_BYTES = 4 << 30
_PIECE_BYTES = 1 << 20


def choose_place(evidence: str | None) -> tuple[Path, str]:
    """Return the local folder for the value of ``--evidence``, and the URL to copy it to.

    The URL is empty where there is none; ``file://`` is the folder itself.
    """
    from whystuck.guarded.remote import local_path
    from whystuck.launch.incidents.folder import default_folder

    folder = local_path(evidence) if evidence else default_folder()
    return (folder, "") if folder is not None else (default_folder(), evidence or "")


@contextmanager
def on_disk(paths: Sequence[str]) -> Iterator[tuple[list[str], list[Gap]]]:
    """Give paths on disk for paths and URLs; what a URL holds lies there for the time of the block.

    Raises UsageError for a URL that cannot be read. The gaps are what was left out.
    """
    from whystuck.collect.stores import fetch_evidence
    from whystuck.guarded.remote import is_url, local_path

    with scratch_folder() as scratch:
        found, gaps = [], []
        for number, path in enumerate(paths):
            local = local_path(path)
            if local is not None:
                found.append(str(local) if is_url(path) else path)
                continue
            target = scratch / str(number)
            target.mkdir()
            gaps += [Gap(None, "evidence", text) for text in fetch_evidence(path, target)]
            found.append(str(target))
        yield found, gaps


@contextmanager
def with_stdin(paths: Sequence[str], command: str) -> Iterator[tuple[list[str], list[Gap]]]:
    """Give paths in which ``-`` is a file that holds standard input; the gap is what was too much.

    Raises UsageError when it is empty, or cannot be kept; ``command`` is for the hint.
    """
    if _STDIN not in paths:
        yield list(paths), []
        return
    with scratch_folder() as scratch:
        kept = scratch / "stdin"
        try:
            size_bytes, is_cut = _keep_stdin(kept)
        except OSError as problem:
            raise UsageError(
                f"standard input cannot be kept: {problem.strerror or problem}",
                hint=f"write it to a file, and give that; {tempfile.gettempdir()} must have room",
            ) from problem
        if not size_bytes:
            raise UsageError(
                "standard input is empty",
                hint=f"pipe a log into it, e.g. `... | whystuck {command} -`",
            )
        reason = f"only the first {MAX_STDIN_BYTES >> 30} GiB were read: write it to a file"
        gaps = [Gap(None, "standard input", reason)] if is_cut else []
        yield [str(kept) if path == _STDIN else path for path in paths], gaps


def _keep_stdin(target: Path) -> tuple[int, bool]:
    """Copy standard input to a file; return its size, and whether there was more."""
    size_bytes = 0
    with target.open("wb") as file:
        while piece := sys.stdin.buffer.read(_PIECE_BYTES):
            piece = piece[: MAX_STDIN_BYTES - size_bytes]
            if not piece:
                return size_bytes, True
            size_bytes += file.write(piece)
    return size_bytes, False
