"""Stores of evidence behind a URL: those that users have registered, and what fsspec knows."""

from __future__ import annotations

import errno
import io
import time
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any

from whystuck.evidence.errors import UsageError
from whystuck.evidence.writer import EvidenceReader, EvidenceWriter, OpenStore
from whystuck.guarded.remote import hide_user_info
from whystuck.guarded.url_stores import MAX_FILES, find_files, open_url_store

WRITERS_GROUP = "whystuck.writers"
# What is read back at most: evidence of a large job, and not a store that grew without end.
MAX_FILE_BYTES = 512 << 20
MAX_TOTAL_BYTES = 16 << 30
# Servers that are slower than this on the average keep whoever reads from them waiting.
_LEAST_BYTES_PER_S = 10_000
_PATIENCE_S = 300.0
# The pages made from the evidence, which are made anew.
_NOT_FETCHED = frozenset({"report.json", "report.txt", "report.html", "env.json"})
_PIECE_BYTES = 1 << 20
_REGISTERED: dict[str, OpenStore] = {}


def register_writer(scheme: str, open_store: OpenStore) -> None:
    """Use ``open_store`` for URLs of a scheme.

    Args:
        scheme: What stands before ``://``.
        open_store: Called with the whole URL; returns the writer.
    """
    _REGISTERED[scheme.lower()] = open_store


def open_store(url: str) -> EvidenceWriter:
    """Open the store behind a URL.

    Args:
        url: The evidence folder of one job.

    Returns:
        The writer; it can read too where it has ``list_files`` and ``read``.

    Raises:
        UsageError: Nothing that is installed knows the scheme, or the store refuses.
    """
    scheme = url.partition("://")[0].lower()
    try:
        opener = _REGISTERED.get(scheme) or _find_opener(scheme)
        return opener(url) if opener is not None else _FsspecStore(url)
    except ImportError as error:
        raise UsageError(
            f"`{hide_user_info(url)}` needs a package that is not installed: {error}",
            hint="`pip install 'whystuck[remote]'`, and for a cloud its package, e.g. s3fs",
        ) from error
    except Exception as error:  # whatever a store of somebody else raises
        raise UsageError(
            f"`{hide_user_info(url)}` cannot be opened: {error}",
            hint="name a folder, or a URL that fsspec knows",
        ) from error


def _find_opener(scheme: str) -> OpenStore | None:
    # Here, since it imports much that reading from a disk does not need.
    from importlib.metadata import entry_points

    for entry in entry_points(group=WRITERS_GROUP, name=scheme):
        opener: OpenStore = entry.load()
        return opener
    return None


class _FsspecStore:
    """A folder on any file system of fsspec."""

    def __init__(self, url: str) -> None:
        self._files, root = open_url_store(url)
        self._root = root.rstrip("/")

    def write(self, relative_path: str, data: bytes) -> None:
        """Write one file, with the folders above it where the store has folders."""
        path = f"{self._root}/{relative_path}"
        try:
            self._files.pipe_file(path, data)
        except FileNotFoundError:
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(path, data)

    def list_files(self) -> Iterable[tuple[str, int]]:
        """Return all files below the folder."""
        found = find_files(self._files, self._root)
        for path, info in found.items():
            inside = str(path).removeprefix(self._root).lstrip("/")
            # A URL may name one file.
            yield inside or PurePosixPath(path).name, int(info.get("size") or 0)

    def read(self, relative_path: str) -> bytes:
        """Return one file."""
        path = f"{self._root}/{relative_path}"
        if not self._files.exists(path):
            path = self._root
        # Not at once: what a server says of sizes may be wrong, or nothing.
        with self._files.open(path, "rb") as stream:
            return _read_whole(stream)


def _read_whole(stream: Any) -> bytes:  # noqa: ANN401 - anything to read
    """Return what a stream holds; raises OSError when that is too much."""
    found = io.BytesIO()
    while piece := stream.read(_PIECE_BYTES):
        if found.tell() + len(piece) > MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"it has more than {MAX_FILE_BYTES} bytes")
        found.write(piece)
    return found.getvalue()


def fetch_evidence(url: str, target: Path) -> list[str]:
    """Copy the evidence behind a URL to a folder.

    Args:
        url: An evidence folder, a part of it, or one file.
        target: An empty folder.

    Returns:
        What was left out, one sentence each.

    Raises:
        UsageError: The store cannot be read, or is empty there.
    """
    store = open_store(url)
    if not isinstance(store, EvidenceReader):
        raise UsageError(f"the store of `{hide_user_info(url)}` can be written to only")
    try:
        listed = sorted(store.list_files())
    except Exception as error:  # whatever a store of somebody else raises
        raise _unreadable(url, error) from error
    if not listed:
        raise _unreadable(url, "there is nothing")
    wanted = _choose(listed)
    left_out = _fetch(store, wanted, target)
    if len(left_out) == len(wanted):
        raise _unreadable(url, left_out[0])
    return left_out


def _unreadable(url: str, reason: object) -> UsageError:
    return UsageError(
        f"cannot read `{hide_user_info(url)}`: {reason}",
        hint="give the URL that `whystuck run --evidence` got",
    )


def _choose(listed: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Leave out what a diagnosis does not read: with incidents, the logs of the rounds."""
    has_incidents = any(path.startswith("incidents/") for path, _ in listed)
    return [
        (path, size)
        for path, size in listed
        if PurePosixPath(path).name not in _NOT_FETCHED
        and not (has_incidents and path.startswith("rounds/"))
    ] or listed


def _fetch(store: EvidenceReader, wanted: list[tuple[str, int]], target: Path) -> list[str]:
    left_out = []
    total_bytes, began_s = 0, time.monotonic()
    for number, (path, size) in enumerate(wanted):
        inside = PurePosixPath(path)
        if inside.is_absolute() or ".." in inside.parts:
            left_out.append(f"{path}: the name leads out of the folder")
        elif size > MAX_FILE_BYTES:
            left_out.append(f"{path}: {size} bytes are more than {MAX_FILE_BYTES}")
        elif number >= MAX_FILES or total_bytes + size > MAX_TOTAL_BYTES:
            left_out.append(f"{path} and what comes after it: too much for one diagnosis")
            break
        elif time.monotonic() > began_s + _PATIENCE_S + total_bytes / _LEAST_BYTES_PER_S:
            left_out.append(f"{path} and what comes after it: the server is too slow")
            break
        else:
            try:
                data = store.read(path)
            except Exception as error:  # noqa: BLE001 - one file that is gone is a gap
                left_out.append(f"{path}: {getattr(error, 'strerror', None) or error}")
                continue
            total_bytes += max(size, len(data))
            if total_bytes > MAX_TOTAL_BYTES:
                left_out.append(f"{path}: {MAX_TOTAL_BYTES} bytes are read, and no more")
                break
            if problem := _keep(target / inside, data):
                left_out.append(f"{path}: {problem}")
    return left_out


def _keep(copy: Path, data: bytes) -> str:
    """Write a copy; return why that cannot be: a store has names that no folder has."""
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(data)
    except (OSError, ValueError) as error:
        return f"it cannot be kept here: {getattr(error, 'strerror', None) or error}"
    return ""
