"""A file system that is served, as NFS and Lustre are: each request is counted, and takes a while.

It speaks the protocol of FUSE itself, passes everything on to a folder, and is mounted as
``fuse.shared``. Needs root and ``/dev/fuse``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_IN = struct.Struct("=IIQQIIII")
_OUT = struct.Struct("=IiQ")
_ATTR = struct.Struct("=QQQQQQIIIIIIIIII")
_ENTRY = struct.Struct("=QQQQII")
_ATTR_OUT = struct.Struct("=QII")
_OPEN = struct.Struct("=QII")
_IO = struct.Struct("=QQIIQII")
_SETATTR = struct.Struct("=IIQQQQQQIIIIIIII")
_INIT_OUT = struct.Struct("=IIIIHHIIHH8I")
_DIRENT = struct.Struct("=QQII")
_STATFS = struct.Struct("=QQQQQIIII6I")
_BIG_WRITES = 1 << 5
_MAX_WRITE = 1 << 17
_MAX_REQUEST = _MAX_WRITE + 4096
# For so long the kernel believes what it was told: clients of NFS do so for some seconds.
_VALID_S = 1
_WORKERS = 16
_DETACH = 2
_END_S = 2.0
_FORGET, _BATCH_FORGET, _INTERRUPT, _DESTROY = 2, 42, 36, 38
# The kernel does both; bytes of Python do not lie where direct access wants them.
_KERNEL_FLAGS = os.O_APPEND | os.O_DIRECT
_WANTED_MODE, _WANTED_SIZE, _WANTED_TIMES = 1 << 0, 1 << 3, 1 << 5
_NAMES = {
    1: "LOOKUP", 3: "GETATTR", 4: "SETATTR", 9: "MKDIR", 10: "UNLINK", 11: "RMDIR", 12: "RENAME",
    14: "OPEN", 15: "READ", 16: "WRITE", 17: "STATFS", 18: "RELEASE", 20: "FSYNC", 25: "FLUSH",
    39: "IOCTL", 26: "INIT", 27: "OPENDIR", 28: "READDIR", 29: "RELEASEDIR", 34: "ACCESS",
    35: "CREATE", 45: "RENAME",
}  # fmt: skip
# Bytes, and the end of what was open: no name is looked up, no attribute asked for. Clients of
# NFS know themselves whether a file is a terminal.
DATA = frozenset({"READ", "WRITE", "FLUSH", "RELEASE", "RELEASEDIR", "FSYNC", "INIT", "IOCTL"})


class SharedDisk:
    """The mounted folder; ``counts`` has (process, kind of request) of all that was asked."""

    def __init__(self, path: Path, backing: Path, delay_s: float) -> None:
        self.path = path
        self.delay_s = delay_s
        # By how much the clock of the server is ahead of ours.
        self.clock_offset_s = 0.0
        # How many more writes may pass by the cache: -1 is any number.
        self.direct_writes_left = -1
        self.counts: Counter[tuple[int, str]] = Counter()
        self.is_open = threading.Event()
        self.is_open.set()
        self._paths: dict[int, Path] = {1: backing}
        self._ids: dict[Path, int] = {backing: 1}
        self._lock = threading.Lock()
        self._workers = [threading.Thread(target=self._serve, daemon=True) for _ in range(_WORKERS)]
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)

    def mount(self, uid: int) -> None:
        """Mount it as a user's, and answer in threads; raises OSError."""
        options = f"fd={self._device},rootmode=40000,user_id={uid},group_id={uid},allow_other"
        libc = ctypes.CDLL(None, use_errno=True)
        place = os.fsencode(self.path)
        if libc.mount(b"server:/shared", place, b"fuse.shared", 0, options.encode()):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        for worker in self._workers:
            worker.start()

    def unmount(self) -> None:
        """Take it away; what still asks gets an error."""
        self.is_open.set()
        self.delay_s = 0.0
        ctypes.CDLL(None).umount2(os.fsencode(self.path), _DETACH)
        for worker in self._workers:
            worker.join(_END_S)
        # A number that is read from must not become that of another file.
        if not any(worker.is_alive() for worker in self._workers):
            os.close(self._device)

    def count_metadata(self) -> int:
        """Return how many requests were on names and attributes."""
        return sum(count for (_, kind), count in list(self.counts.items()) if kind not in DATA)

    def _serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, _MAX_REQUEST)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                return
            _, kind, unique, node, _, _, pid, _ = _IN.unpack_from(request)
            if kind in {_FORGET, _BATCH_FORGET, _INTERRUPT}:
                continue
            with self._lock:
                self.counts[pid, _NAMES.get(kind, str(kind))] += 1
            self.is_open.wait()
            time.sleep(self.delay_s)
            self._answer(kind, unique, node, request[_IN.size :])

    def _answer(self, kind: int, unique: int, node: int, body: bytes) -> None:
        handler = _HANDLERS.get(kind)
        data, number = b"", 0
        try:
            if handler is None:
                number = errno.ENOSYS
            else:
                data = handler(self, node, body)
        except OSError as error:
            number = error.errno or errno.EIO
        except KeyError:
            number = errno.ESTALE
        with suppress(OSError):  # whoever asked has been interrupted
            os.write(self._device, _OUT.pack(_OUT.size + len(data), -number, unique) + data)

    # ------------------------------------------------------------------------------- requests

    def _inside(self, node: int, name: bytes) -> Path:
        with self._lock:
            return self._paths[node] / os.fsdecode(name.rstrip(b"\0"))

    def _enter(self, path: Path) -> bytes:
        status = path.lstat()
        with self._lock:
            node = self._ids.setdefault(path, len(self._paths) + 1)
            self._paths[node] = path
        return _ENTRY.pack(node, 0, _VALID_S, _VALID_S, 0, 0) + _pack(status, self.clock_offset_s)

    def look_up(self, node: int, body: bytes) -> bytes:
        return self._enter(self._inside(node, body))

    def get_attributes(self, node: int, _body: bytes) -> bytes:
        return _ATTR_OUT.pack(_VALID_S, 0, 0) + _pack(
            self._paths[node].lstat(), self.clock_offset_s
        )

    def set_attributes(self, node: int, body: bytes) -> bytes:
        valid, _, _, size, _, atime, mtime, _, _, _, _, mode, *_ = _SETATTR.unpack_from(body)
        path = self._paths[node]
        if valid & _WANTED_MODE:
            path.chmod(stat.S_IMODE(mode))
        if valid & _WANTED_SIZE:
            os.truncate(path, size)
        if valid & _WANTED_TIMES:
            os.utime(path, (atime, mtime))
        return self.get_attributes(node, b"")

    def make_folder(self, node: int, body: bytes) -> bytes:
        mode, _ = struct.unpack_from("=II", body)
        path = self._inside(node, body[8:])
        path.mkdir()
        path.chmod(stat.S_IMODE(mode))
        return self._enter(path)

    def unlink(self, node: int, body: bytes) -> bytes:
        self._inside(node, body).unlink()
        return b""

    def remove_folder(self, node: int, body: bytes) -> bytes:
        self._inside(node, body).rmdir()
        return b""

    def rename(self, node: int, body: bytes) -> bytes:
        return self._rename(node, body, 8)

    def rename2(self, node: int, body: bytes) -> bytes:
        return self._rename(node, body, 16)

    def _rename(self, node: int, body: bytes, start: int) -> bytes:
        (target,) = struct.unpack_from("=Q", body)
        old, new = body[start:].split(b"\0")[:2]
        source, place = self._inside(node, old), self._inside(target, new)
        source.replace(place)
        with self._lock:
            self._paths = {
                one: place / path.relative_to(source) if path.is_relative_to(source) else path
                for one, path in self._paths.items()
            }
            self._ids = {path: one for one, path in self._paths.items()}
        return b""

    def open(self, node: int, body: bytes) -> bytes:
        (flags,) = struct.unpack_from("=I", body)
        flags &= ~(_KERNEL_FLAGS | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
        return _OPEN.pack(os.open(self._paths[node], flags | os.O_CLOEXEC), 0, 0)

    def create(self, node: int, body: bytes) -> bytes:
        flags, mode, _, _ = struct.unpack_from("=IIII", body)
        path = self._inside(node, body[16:])
        flags = flags & ~_KERNEL_FLAGS | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        os.fchmod(descriptor, stat.S_IMODE(mode))
        return self._enter(path) + _OPEN.pack(descriptor, 0, 0)

    def read(self, _node: int, body: bytes) -> bytes:
        descriptor, offset, size, *_ = _IO.unpack_from(body)
        return os.pread(descriptor, size, offset)

    def write(self, _node: int, body: bytes) -> bytes:
        descriptor, offset, size, _, _, flags, _ = _IO.unpack_from(body)
        if flags & os.O_DIRECT:
            if not self.direct_writes_left:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            self.direct_writes_left -= 1
        data = body[_IO.size : _IO.size + size]
        return struct.pack("=II", os.pwrite(descriptor, data, offset), 0)

    def release(self, _node: int, body: bytes) -> bytes:
        os.close(struct.unpack_from("=Q", body)[0])
        return b""

    def do_nothing(self, _node: int, _body: bytes) -> bytes:
        return b""

    def tell_room(self, _node: int, _body: bytes) -> bytes:
        return _STATFS.pack(1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 4096, 255, 4096, *[0] * 7)

    def open_folder(self, node: int, _body: bytes) -> bytes:
        return _OPEN.pack(os.open(self._paths[node], os.O_RDONLY | os.O_CLOEXEC), 0, 0)

    def read_folder(self, _node: int, body: bytes) -> bytes:
        descriptor, offset, size, *_ = _IO.unpack_from(body)
        out = b""
        with os.scandir(descriptor) as entries:
            kinds = {one.name: 4 if one.is_dir(follow_symlinks=False) else 8 for one in entries}
        for number, name in enumerate(sorted(kinds), 1):
            if number > offset:
                named = os.fsencode(name)
                entry = _DIRENT.pack(number, number, len(named), kinds[name]) + named
                entry += bytes(-len(entry) % 8)
                if len(out) + len(entry) > size:
                    break
                out += entry
        return out

    def begin(self, _node: int, body: bytes) -> bytes:
        major, minor, ahead, _ = struct.unpack_from("=IIII", body)
        minor = min(minor, 31)
        numbers = [major, minor, ahead, _BIG_WRITES, _WORKERS, _WORKERS, _MAX_WRITE, 1]
        return _INIT_OUT.pack(*numbers, *[0] * (2 + 8))


_HANDLERS: dict[int, Callable[[SharedDisk, int, bytes], bytes]] = {
    1: SharedDisk.look_up, 3: SharedDisk.get_attributes, 4: SharedDisk.set_attributes,
    9: SharedDisk.make_folder, 10: SharedDisk.unlink, 11: SharedDisk.remove_folder,
    12: SharedDisk.rename, 14: SharedDisk.open, 15: SharedDisk.read, 16: SharedDisk.write,
    17: SharedDisk.tell_room, 18: SharedDisk.release, 20: SharedDisk.do_nothing,
    25: SharedDisk.do_nothing, 26: SharedDisk.begin, 27: SharedDisk.open_folder,
    28: SharedDisk.read_folder, 29: SharedDisk.release, 35: SharedDisk.create,
    45: SharedDisk.rename2,
}  # fmt: skip


def _pack(status: os.stat_result, offset_s: float) -> bytes:
    times = (status.st_atime, status.st_mtime, status.st_ctime)
    seconds = [int(one + offset_s) for one in times]
    parts = [one % 10**9 for one in (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns)]
    owner = [status.st_mode, status.st_nlink, status.st_uid, status.st_gid]
    return _ATTR.pack(
        status.st_ino, status.st_size, status.st_blocks, *seconds, *parts, *owner, 0, 4096, 0
    )


@contextmanager
def shared_disk(folder: Path, delay_s: float = 0.0, uid: int = 0) -> Iterator[SharedDisk]:
    """Mount a served file system below ``folder``; skip the test where that is not allowed.

    Args:
        folder: Where the files and the mount point are made.
        delay_s: How long each request takes, in seconds.
        uid: Who has mounted it.
    """
    backing, place = folder / "backing", folder / "shared"
    backing.mkdir()
    place.mkdir()
    try:
        disk = SharedDisk(place, backing, delay_s)
        disk.mount(uid)
    except OSError as error:
        pytest.skip(f"no file system can be served here: {error}")
    try:
        yield disk
    finally:
        disk.unmount()
