"""The agents of this node: each leaves a record in its folder, where others find it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from whystuck.agent.agent_folder import (
    FOLDER_ENV,
    JOB_FOLDER,
    LIST_FOLDER,
    LOCK_FILE,
    LOCK_FLAGS,
    default_folder,
    is_ours,
    make_absolute,
    make_folder,
    read_agent,
)
from whystuck.collect.job_dirs import is_job_dir
from whystuck.evidence.agent import (
    AGENT_FILE,
    KINETO_CONFIG_FILE,
    KINETO_CONFIG_TEXT,
    AgentRecord,
)
from whystuck.evidence.errors import UsageError
from whystuck.guarded.folders import folder_at, read_file

_JOB_PREFIX: Final = "whystuck-"  # of launch/jobdir.py, which is not ours to import
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - only looked into, and the owner is checked
_MAX_PATH_BYTES: Final = 4096
_MAX_LISTED: Final = 1024


def write_agent(record: AgentRecord) -> None:
    """Tell others of an agent, in its folder and in the list of this user; raises OSError.

    The folder must be claimed: a record whose folder nobody has claimed is not believed.
    """
    folder = Path(record.folder)
    _write(folder / AGENT_FILE, msgspec.json.encode(record))
    with suppress(OSError):  # without it they ask every five seconds
        _write(folder / KINETO_CONFIG_FILE, KINETO_CONFIG_TEXT.encode())
    if folder not in set(_known_folders()):
        entry = _entry_of(folder)
        with suppress(OSError, UsageError):  # a list is a convenience; the agent works without
            # That of another agent may be open to all users, and stays so.
            make_folder(default_folder())
            entry.parent.mkdir(mode=0o700, exist_ok=True)
            if _is_private(entry.parent):
                _drop_old_entries(entry.parent)
                _write(entry, os.fsencode(folder))


def remove_agent(folder: Path) -> None:
    """Forget an agent that ends; its sockets are closed by those who made them."""
    with suppress(OSError):
        (folder / AGENT_FILE).unlink()
    with suppress(OSError):
        _entry_of(folder).unlink()


def list_agents() -> list[AgentRecord]:
    """Return the agents of this user on this host that live: of the node first, then by age."""
    found: dict[Path, AgentRecord] = {}
    for folder in [*_known_folders(), *_listed_folders()]:
        if folder not in found and _is_private(folder) and _is_served(folder):
            record = read_agent(folder)
            if record is not None:
                found[folder] = record
    return sorted(found.values(), key=lambda one: (one.job_dir != "", one.started_ns, one.folder))


def find_agent(job: str = "") -> AgentRecord | None:
    """Return the agent of a job: its pid, its folder or that of the job; "" means the first."""
    for record in list_agents():
        job_dir = record.job_dir
        names = (str(record.pid), record.folder, job_dir, Path(job_dir).name)
        if not job or job in names:
            return record
    return None


def _is_served(folder: Path) -> bool:
    """Whether somebody holds the lock of a folder."""
    try:
        fd = os.open(folder / LOCK_FILE, LOCK_FLAGS)
    except OSError:
        return False
    try:
        if not is_ours(os.fstat(fd)):
            return False
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    finally:
        os.close(fd)
    return False


def _is_private(folder: Path) -> bool:
    """Whether a folder is ours; anybody may make one of any name in /tmp."""
    with suppress(OSError), folder_at(folder, uid=os.getuid()):
        return True
    return False


def _known_folders() -> Iterator[Path]:
    """Yield where an agent of this user may live without being listed."""
    yield default_folder()
    option = os.environ.get(FOLDER_ENV)
    if option:
        yield make_absolute(option)
    for root in dict.fromkeys((_MEMORY, Path(tempfile.gettempdir()))):
        with suppress(OSError):
            for job_dir in sorted(root.glob(f"{_JOB_PREFIX}{os.getuid()}-*")):
                if is_job_dir(job_dir, os.getuid()):
                    yield job_dir / JOB_FOLDER


def _listed_folders() -> Iterator[Path]:
    listed = default_folder() / LIST_FOLDER
    if not (_is_private(default_folder()) and _is_private(listed)):
        return
    for entry in sorted(listed.iterdir())[:_MAX_LISTED]:
        with suppress(OSError, ValueError):
            folder = Path(os.fsdecode(_read_entry(entry)))
            if folder.is_absolute() and entry == _entry_of(folder):
                yield folder


def _drop_old_entries(listed: Path) -> None:
    """Drop those of folders that are gone; an agent that makes its folder anew lists it again."""
    for entry in sorted(listed.iterdir())[:_MAX_LISTED]:
        with suppress(OSError, ValueError):
            if not Path(os.fsdecode(_read_entry(entry))).is_dir():
                entry.unlink()


def _read_entry(entry: Path) -> bytes:
    with folder_at(entry.parent, uid=os.getuid()) as listed:
        return read_file(listed, entry.name, _MAX_PATH_BYTES, uid=os.getuid())[0]


def _entry_of(folder: Path) -> Path:
    return default_folder() / LIST_FOLDER / hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]


def _write(path: Path, data: bytes) -> None:
    """Write a file whole; in a folder that others share, what they laid there is not followed."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(part, flags, 0o600), "wb") as file:
        file.write(data)
    part.replace(path)
