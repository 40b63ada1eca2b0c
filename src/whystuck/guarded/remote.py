"""Files behind URLs, through fsspec: listed, fetched to the disk, and written from it."""

from __future__ import annotations

import errno
import os
import re
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from whystuck.evidence.errors import UsageError
from whystuck.guarded.evidence_files import open_evidence, settle, size_of
from whystuck.guarded.folders import make_file
from whystuck.guarded.scratch import scratch_folder
from whystuck.guarded.url_stores import MAX_FILES, find_files, open_url_store
from whystuck.safe_text.secrets import drop_logins, hide_secrets

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# As much as standard input may hold; a trace of one rank has some 100 MB.
MAX_FETCHED_BYTES = 4 << 30
_PIECE_BYTES = 8 << 20
# Without O_PATH, one must be able to list a folder to write into it.
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
# They have no folders; making the one that is missing there would make a bucket of a typing error.
_OBJECT_STORES = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss"})

_IN_MEMORY = "memory"


@dataclass(frozen=True)
class RemoteFile:
    """A file behind a URL; ``mark`` changes with its content, and is empty where nothing does."""

    url: str
    path: str
    size_bytes: int
    mark: str = ""


def is_url(text: str) -> bool:
    """Tell whether a text is a URL rather than a path."""
    return _URL.match(text) is not None


def local_path(text: str) -> Path | None:
    """Return the path that a path or a ``file://`` URL means; None for any other URL."""
    if not is_url(text):
        return Path(text)
    parts = urlsplit(text)
    if parts.scheme.lower() != "file":
        return None
    return Path(unquote(parts.netloc + parts.path))


def hide_user_info(url: str) -> str:
    """Return a URL as it may be shown: without user and password, and no other secret."""
    return hide_secrets(drop_logins(url))


def list_remote(url: str) -> list[RemoteFile]:
    """List the files at and below a URL, by name.

    Args:
        url: A file, or a folder.

    Returns:
        The files; their paths are relative to the folder, or the name of the one file.

    Raises:
        UsageError: The store cannot be read, or there is nothing.
    """
    files, root = _open_store(url)
    # The store of the same name could have been listed before it was written.
    try:
        files.invalidate_cache()
        found = find_files(files, root)
    except Exception as error:  # whatever a store raises
        raise _unusable(url, "read", error) from error
    if not found:
        raise _unusable(url, "read", "there is nothing")
    if len(found) > MAX_FILES:
        raise _unusable(url, "read", f"there are {len(found)} files, more than {MAX_FILES}")
    base = str(root).rstrip("/")
    listed = []
    for path, info in sorted(found.items()):
        inside = str(path).removeprefix(base).lstrip("/") or str(path).rpartition("/")[2]
        mark = str(info.get("ETag") or info.get("etag") or info.get("md5Hash") or "")
        place = str(files.unstrip_protocol(path))
        listed.append(RemoteFile(place, inside, _read_size(info.get("size")), mark))
    return listed


def _read_size(said: object) -> int:
    """Return what a store says of the size of a file; 0 where that is no size."""
    return said if isinstance(said, int) and said > 0 else 0


@contextmanager
def fetched(url: str, limit: int = MAX_FETCHED_BYTES) -> Iterator[Path]:
    """Give a copy of a file behind a URL on the disk, for the time of the block.

    Args:
        url: The file; a path is given as it is.
        limit: The most bytes to fetch, whatever size the store tells.

    Yields:
        The copy. Its name is that of the file.

    Raises:
        OSError: It cannot be read, or is larger; the store's own error is in it.
    """
    local = local_path(url)
    if local is not None:
        yield local
        return
    with scratch_folder() as scratch:
        copy = settle(scratch) / (url.rpartition("/")[2] or "file")
        try:
            files, path = _open_store(url)
            with files.open(path, "rb") as source, copy.open("wb") as target:
                _copy(source, target, limit)
        except (OSError, UsageError) as error:
            raise OSError(f"cannot be fetched ({error})") from error
        except Exception as error:  # whatever a store raises
            raise OSError(f"cannot be fetched ({type(error).__name__}: {error})") from error
        yield copy


def read_bytes(place: str, limit: int) -> bytes:
    """Read a small file, at a path or behind a URL.

    Args:
        place: Where it lies.
        limit: The most bytes to accept.

    Raises:
        OSError: It cannot be read, is larger, no regular file, or a link.
    """
    with fetched(place, limit) as path, open_evidence(settle(path.parent) / path.name) as stream:
        size = size_of(stream)
        if size > limit:
            raise OSError(errno.EFBIG, f"it has {size} bytes, more than {limit}")
        return stream.read()


@contextmanager
def written(place: str) -> Iterator[IO[bytes]]:
    """Write a file whole, at a path or behind a URL: a reader sees all of it, or nothing.

    Args:
        place: Where; folders above it are made.

    Yields:
        A stream; what it got lies there when the block ends without an error.

    Raises:
        OSError: It cannot be written.
    """
    target = local_path(place)
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replaced(target) as stream:
            yield stream
        return
    with scratch_folder() as scratch:
        part = scratch / "part"
        with part.open("xb") as stream:
            yield stream
        _upload(part, place)


@contextmanager
def replaced(target: Path) -> Iterator[IO[bytes]]:
    """Give a stream for what comes into the place of a file; its mode follows the umask.

    By the descriptor of the folder: another user, whose it is, may put links into it meanwhile.
    """
    # Not resolved here: the kernel follows no link of others in /tmp, where it is told so.
    folder = os.open(target.parent, _FOLDER)
    try:
        part = f".whystuck-{secrets.token_hex(8)}"
        file = make_file(folder, part, 0o666)
        try:
            with os.fdopen(file, "wb") as stream:
                yield stream
            os.rename(part, target.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(part, dir_fd=folder)
            raise
    finally:
        os.close(folder)


def join(place: str, name: str) -> str:
    """Return the path or URL of a file in a folder."""
    return f"{place.rstrip('/')}/{name}" if is_url(place) else str(Path(place) / name)


def check_store(url: str) -> None:
    """Raise UsageError when nothing that is installed can open a URL."""
    _open_store(url)


def check_lasting(place: str) -> None:
    """Raise UsageError for a URL whose files end with the process that writes them."""
    if is_url(place) and urlsplit(place).scheme.lower() == _IN_MEMORY:
        raise UsageError(
            f"what is written to `{place}` lies in the memory of the agent, where nobody finds it",
            hint="name a folder, or a store that others can read, e.g. `s3://bucket/traces`",
        )


def check_folder(folder: Path) -> None:
    """Raise UsageError for what can be no folder of traces; nothing is left there."""
    there = next(one for one in (folder, *folder.parents) if os.path.lexists(one))
    try:
        # Not the folder itself: without a trace there is to be none.
        Path(tempfile.mkdtemp(prefix=".whystuck-", dir=there)).rmdir()
    except OSError as error:
        cannot = f"nothing can be made in {there} ({error.strerror})"
        why = cannot if there.is_dir() else f"{there} is no folder"
        raise UsageError(
            f"traces cannot be put into {folder}: {why}",
            hint="give a folder that this user can write to, or one that can be made",
        ) from None


def _upload(part: Path, url: str) -> None:
    try:
        files, path = _open_store(url)
        try:
            files.put_file(str(part), path)
        except FileNotFoundError:
            if _OBJECT_STORES.intersection(_protocols(files)):
                raise
            files.makedirs(path.rpartition("/")[0], exist_ok=True)
            files.put_file(str(part), path)
    except (OSError, UsageError):
        raise
    except Exception as error:  # whatever a store raises
        raise OSError(f"{type(error).__name__}: {error}") from error


def _copy(source: IO[bytes], target: IO[bytes], limit: int) -> None:
    left = limit
    while piece := source.read(min(_PIECE_BYTES, left + 1)):
        left -= len(piece)
        if left < 0:
            raise OSError(errno.EFBIG, f"it has more than {limit} bytes")
        target.write(piece)


def _protocols(files: Any) -> tuple[str, ...]:  # noqa: ANN401 - an optional module
    named = files.protocol
    return (named,) if isinstance(named, str) else tuple(named)


def _open_store(url: str) -> tuple[Any, str]:
    try:
        return open_url_store(url)
    except ImportError as error:
        raise UsageError(
            f"`{hide_user_info(url)}` needs a package that is not installed: {error}",
            hint="`pip install 'whystuck[remote]'`, and for a cloud its package, e.g. s3fs",
        ) from error
    except Exception as error:  # whatever a store raises
        raise _unusable(url, "open", error) from error


def _unusable(url: str, verb: str, reason: object) -> UsageError:
    return UsageError(
        f"cannot {verb} `{hide_user_info(url)}`: {reason}",
        hint="name a folder, or a URL that fsspec knows",
    )
