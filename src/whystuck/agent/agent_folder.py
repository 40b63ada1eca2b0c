"""Where agents of this node live: a private folder for each, and how others find it.

A folder is claimed by a lock, which an agent that is killed frees. Its path has at most 54 bytes:
Kineto appends the name of its own socket, and copies both into 108 bytes unchecked.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from whystuck.collect.job_dirs import is_job_dir
from whystuck.evidence.agent import (
    AGENT_FILE,
    CLIENT_PREFIX,
    FABRIC_SOCKET,
    KINETO_CONFIG_FILE,
    KINETO_CONFIG_TEXT,
    RPC_SOCKET,
    AgentRecord,
)
from whystuck.evidence.decoding import decode_json
from whystuck.evidence.errors import UsageError
from whystuck.guarded.folders import evict_others, folder_at, read_file

FOLDER_ENV: Final = "WHYSTUCK_AGENT_DIR"
JOB_FOLDER: Final = "k"
"""In the folder of a job: that of the agent beside it."""
LOCK_FILE: Final = "lock"
LIST_FOLDER: Final = "agents"
"""In the default folder: a small file for each agent whose folder is elsewhere."""
MAX_FOLDER_BYTES: Final = 54
_JOB_PREFIX: Final = "whystuck-"  # of launch/jobdir.py, which is not ours to import
_LOCK_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - only looked into, and the owner is checked
_MAX_RECORD_BYTES: Final = 1 << 16
_MAX_PATH_BYTES: Final = 4096
_MAX_LISTED: Final = 1024
_OWN_FILES: Final = frozenset(
    {
        *(AGENT_FILE, FABRIC_SOCKET, KINETO_CONFIG_FILE, LIST_FOLDER, LOCK_FILE, RPC_SOCKET),
        *("traces", "triggers"),  # raw traces where the configuration puts them, and incidents
    }
)
_OWN_PARTS: Final = (f"{AGENT_FILE}.", f"{KINETO_CONFIG_FILE}.", CLIENT_PREFIX)
_OTHERS_WRITE: Final = stat.S_ISVTX | stat.S_IWOTH
_OTHERS_ENTER: Final = stat.S_IRWXG | stat.S_IRWXO
_CLAIM_TRIES, _CLAIM_PAUSE_S = 20, 0.01


class FolderClaim:
    """The right to serve a folder, held until `release` or the end of this process."""

    def __init__(self, folder: Path, *, is_shared: bool = False) -> None:
        """Take it; raises UsageError that names who has it."""
        self.folder = folder
        self._is_shared = is_shared
        self._fds: list[int] = []
        self._take()

    def renew(self) -> None:
        """Make the folder anew where it was removed; raises UsageError when another has it."""
        if not self.is_held():
            self.release()
            agent_folder(self.folder, is_shared=self._is_shared)
            self._take()

    def is_held(self) -> bool:
        """Whether the folder that lies there now is the one that was claimed."""
        if not self._fds:
            return False
        with suppress(OSError):
            return os.path.samestat(os.fstat(self._fds[0]), (self.folder / LOCK_FILE).lstat())
        return False

    def release(self) -> None:
        """Let another have it."""
        for fd in self._fds:
            os.close(fd)
        self._fds = []

    def _take(self) -> None:
        try:
            lock = os.open(self.folder / LOCK_FILE, _LOCK_FLAGS | os.O_CREAT, 0o600)
        except OSError as error:
            raise _cannot_use(self.folder, error) from None
        self._fds.append(lock)
        if not _is_ours(os.fstat(lock)):  # in a folder that others share, one may be there before
            self.release()
            raise UsageError(f"{self.folder / LOCK_FILE} is another user's", hint="remove it")
        if not _lock_patiently(lock):
            self.release()
            record = read_agent(self.folder)
            who = f"the agent with pid {record.pid}" if record else "another agent"
            raise UsageError(
                f"{who} serves {self.folder} already",
                hint="use that one, end it first, or give this one a folder of its own",
            )
        # Those who clean up /tmp by age leave a folder alone that is locked itself.
        with suppress(OSError):
            self._fds.append(os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            fcntl.flock(self._fds[-1], fcntl.LOCK_SH | fcntl.LOCK_NB)


def default_folder() -> Path:
    """Return the folder of this user's agent for a whole node."""
    # Not that of TMPDIR, which differs from job to job and may be long.
    return Path(f"/tmp/whystuck-agent-{os.getuid()}")  # noqa: S108 - made private, owner checked


def named_folder(option: str | Path | None = None) -> Path:
    """Return the folder of an agent without a look at it, as `agent_folder` would make it."""
    return _absolute(option or os.environ.get(FOLDER_ENV) or default_folder())


def agent_folder(option: str | Path | None = None, *, is_shared: bool = False) -> Path:
    """Make the folder of an agent and return its path, without links or dots at its end.

    It is ``option``, ``WHYSTUCK_AGENT_DIR`` or the default one, in this order. Only its owner may
    enter it; with ``is_shared`` everybody may add sockets to it, and nobody may take away those of
    others. Who may enter is changed only where the folder is new, empty or an agent's. Raises
    UsageError when it is too long, a link, somebody else's, or used for something else.
    """
    folder = named_folder(option)
    size_bytes = len(os.fsencode(folder))
    if size_bytes > MAX_FOLDER_BYTES:
        raise UsageError(
            f"the path of the agent's folder has {size_bytes} bytes, Kineto takes at most "
            f"{MAX_FOLDER_BYTES}: {folder}",
            hint="give a shorter one, such as /tmp/agent",
        )
    if folder == default_folder() and os.geteuid() == 0:
        with suppress(OSError):  # whoever came first would keep root's agent from starting
            evict_others(folder.parent, [folder.name])
    try:
        is_new = _make(folder, is_shared=is_shared)
        if is_new or not _is_fit(folder, is_shared=is_shared):
            folder.chmod(0o1777 if is_shared else 0o700)
        if is_shared:
            evict_others(folder, _OWN_FILES)
    except OSError as error:
        raise _cannot_use(folder, error) from None
    return folder


def claim_folder(folder: Path, *, is_shared: bool = False) -> FolderClaim:
    """Take the right to serve a folder; raises UsageError that names the agent that has it."""
    return FolderClaim(folder, is_shared=is_shared)


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
            _make(default_folder())
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


def read_agent(folder: Path) -> AgentRecord | None:
    """Return what an agent says of itself; None when nothing usable lies there."""
    try:
        with folder_at(folder) as opened:
            data, _ = read_file(opened, AGENT_FILE, _MAX_RECORD_BYTES, uid=os.getuid())
        record = decode_json(data, AgentRecord)
    except (OSError, msgspec.MsgspecError, UnicodeError):
        return None
    record.folder = str(folder)
    return record if record.pid > 0 else None


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


def _absolute(path: str | Path) -> Path:
    """Take out dots, but follow no link: clients compare our address with the path they know."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links


def _make(folder: Path, *, is_shared: bool = False) -> bool:
    """Make a folder of ours; returns whether it is new. Raises UsageError when it is not ours."""
    above = [one for one in folder.parents if not one.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    for one in above if is_shared else ():
        one.chmod(0o755)  # whatever the umask: others pass through it
    is_new = False
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        is_new = True
    _check_owner(folder)
    return is_new


def _is_fit(folder: Path, *, is_shared: bool) -> bool:
    """Whether those may enter a folder who should; False where the agent may see to that itself.

    Raises UsageError when the folder is used for something else: a /tmp or /etc that others can no
    longer enter stops a machine.
    """
    mode = stat.S_IMODE(folder.stat().st_mode)
    names = os.listdir(folder)  # noqa: PTH208 - names only
    if is_shared:
        # Others may have put anything there since an agent left its files.
        is_agents = _is_own_file(folder / KINETO_CONFIG_FILE) or all(map(_is_own_name, names))
        is_fit = mode & 0o1777 == 0o1777 and is_agents  # noqa: PLR2004 - as for chmod
    else:
        is_fit = not mode & _OTHERS_ENTER
    is_served = _is_own_file(folder / LOCK_FILE) and all(map(_is_own_name, names))
    if is_fit or is_served or not (names or mode & _OTHERS_WRITE):
        return is_fit
    why = "is used by others" if mode & _OTHERS_WRITE else "holds files that are not the agent's"
    raise UsageError(
        f"the folder {folder} {why}, so who may enter it is not changed",
        hint="name one that does not exist yet; jobs find it by KINETO_IPC_SOCKET_DIR",
    )


def _is_own_name(name: str) -> bool:
    return name in _OWN_FILES or name.startswith(_OWN_PARTS)


def _is_own_file(path: Path) -> bool:
    with suppress(OSError):
        return _is_ours(path.lstat())
    return False


def _is_ours(status: os.stat_result) -> bool:
    """Whether it is a plain file of this user."""
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()


def _check_owner(folder: Path) -> None:
    status = folder.lstat()
    if stat.S_ISLNK(status.st_mode) or not stat.S_ISDIR(status.st_mode):
        what = "a link" if stat.S_ISLNK(status.st_mode) else "no folder"
        raise UsageError(
            f"the agent's folder {folder} is {what}", hint="remove it, or give another folder"
        )
    if status.st_uid != os.getuid():
        raise UsageError(
            f"the agent's folder {folder} belongs to uid {status.st_uid}",
            hint="give a folder of your own: jobs would take orders from its owner",
        )


def _cannot_use(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"the agent's folder {folder} cannot be used: {error.strerror or error}",
        hint="give a folder that this user can write to",
    )


def _lock_patiently(fd: int) -> bool:
    """Take the lock; those who list agents hold it for a moment, too."""
    for _ in range(_CLAIM_TRIES):
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_CLAIM_PAUSE_S)
    return False


def _is_served(folder: Path) -> bool:
    """Whether somebody holds the lock of a folder."""
    try:
        fd = os.open(folder / LOCK_FILE, _LOCK_FLAGS)
    except OSError:
        return False
    try:
        if not _is_ours(os.fstat(fd)):
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
        yield _absolute(option)
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


__all__ = [
    "AGENT_FILE",
    "FABRIC_SOCKET",
    "FOLDER_ENV",
    "RPC_SOCKET",
    "FolderClaim",
    "agent_folder",
    "claim_folder",
    "default_folder",
    "find_agent",
    "list_agents",
    "read_agent",
    "remove_agent",
    "write_agent",
]
