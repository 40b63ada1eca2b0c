"""Where agents of this node live: a private folder for each, and how others find it.

A folder is claimed by a lock, which an agent that is killed frees. Its path has at most 54 bytes:
Kineto appends the name of its own socket, and copies both into 108 bytes unchecked.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from whystuck.evidence.agent import (
    AGENT_FILE,
    CLIENT_PREFIX,
    FABRIC_SOCKET,
    KINETO_CONFIG_FILE,
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
LOCK_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_RECORD_BYTES: Final = 1 << 16
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
            lock = os.open(self.folder / LOCK_FILE, LOCK_FLAGS | os.O_CREAT, 0o600)
        except OSError as error:
            raise _cannot_use(self.folder, error) from None
        self._fds.append(lock)
        if not is_ours(os.fstat(lock)):  # in a folder that others share, one may be there before
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
    return make_absolute(option or os.environ.get(FOLDER_ENV) or default_folder())


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
        is_new = make_folder(folder, is_shared=is_shared)
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


def make_absolute(path: str | Path) -> Path:
    """Take out dots, but follow no link: clients compare our address with the path they know."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links


def make_folder(folder: Path, *, is_shared: bool = False) -> bool:
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
        return is_ours(path.lstat())
    return False


def is_ours(status: os.stat_result) -> bool:
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
