"""A file system in user space with one file, whose server answers everything but reads.

It speaks the protocol of `/dev/fuse` itself (`linux/fuse.h`), so that no library is needed; mounting
needs root. Reads of the kernel wait in state D when it reads ahead by itself, else in state S.
"""

import ctypes
import errno
import os
import signal
import stat
import struct
import sys
from pathlib import Path

FILE_NAME = b"shard-000.bin"
FILE_BYTES = 1 << 20
ROOT_NODE, FILE_NODE = 1, 2
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, RELEASE = 1, 2, 3, 14, 15, 17, 18
FLUSH, INIT, OPENDIR, READDIR, RELEASEDIR, INTERRUPT = 25, 26, 27, 28, 29, 36
REQUEST_BYTES = 1 << 18
HEADER = struct.Struct("=IIQQIIII")
REPLY = struct.Struct("=IiQ")
ATTRIBUTES = struct.Struct("=QQQQQQIIIIIIIIII")
VERSION = (7, 31)
ASYNC_READ = 1
KEEP_CACHE = 2
MNT_DETACH = 2
PR_SET_PDEATHSIG = 1


def mount(folder: Path) -> int:
    """Mount at a folder; return the descriptor that requests come from."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    done = libc.mount(b"silent", bytes(folder), b"fuse.silent", 0, options.encode())
    if done != 0:
        code = ctypes.get_errno()
        os.close(device)
        raise OSError(code, os.strerror(code), str(folder))
    return device


def unmount(folder: Path) -> None:
    libc.umount2(bytes(folder), MNT_DETACH)


def serve(device: int, *, reads_ahead: bool) -> None:
    """Answer until the file system is unmounted."""
    while True:
        try:
            request = os.read(device, REQUEST_BYTES)
        except OSError as error:
            if error.errno in {errno.ENODEV, errno.EBADF}:
                return
            continue
        _, opcode, unique, node, *_ = HEADER.unpack_from(request)
        if opcode not in {READ, FORGET, INTERRUPT}:
            code, payload = answer(opcode, node, request[HEADER.size :], ASYNC_READ * reads_ahead)
            os.write(device, REPLY.pack(REPLY.size + len(payload), -code, unique) + payload)


def answer(opcode: int, node: int, body: bytes, flags: int) -> tuple[int, bytes]:
    if opcode == INIT:
        return 0, struct.pack("=IIIIHHIIHH32x", *VERSION, 65536, flags, 16, 12, 65536, 1, 32, 0)
    if opcode == LOOKUP:
        if body.rstrip(b"\0") != FILE_NAME:
            return errno.ENOENT, b""
        return 0, struct.pack("=QQQQII", FILE_NODE, 0, 3600, 3600, 0, 0) + attributes(FILE_NODE)
    if opcode == GETATTR:
        return 0, struct.pack("=QII", 3600, 0, 0) + attributes(node)
    if opcode in {OPEN, OPENDIR}:
        return 0, struct.pack("=QII", 1, KEEP_CACHE, 0)
    if opcode == STATFS:
        return 0, bytes(80)
    if opcode in {READDIR, RELEASE, RELEASEDIR, FLUSH}:
        return 0, b""
    return errno.ENOSYS, b""


def attributes(node: int) -> bytes:
    is_file = node == FILE_NODE
    mode = stat.S_IFREG | 0o644 if is_file else stat.S_IFDIR | 0o755
    size = FILE_BYTES if is_file else 0
    owner = os.getuid(), os.getgid()
    return ATTRIBUTES.pack(node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, *owner, 0, 4096, 0)


libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Mount at the folder of the command line, say so, and serve until the parent ends."""
    folder = Path(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    try:
        device = mount(folder)
        print("mounted", flush=True)
        serve(device, reads_ahead=sys.argv[2:] == ["deep"])
    finally:
        unmount(folder)


if __name__ == "__main__":
    main()
