"""The sockets of the probe answer their user and root, even where others can reach them."""

from __future__ import annotations

import os
import pdb  # noqa: T100 - what a breakpoint gives
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from whystuck.probe import files
from whystuck.probe.inspect import calls
from whystuck.probe.serving import visitors

CONNECT = """
import os, socket, sys
uid = int(sys.argv[1])
client = socket.socket(socket.AF_UNIX)
os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
client.settimeout(60)
client.connect(sys.argv[2])
print("connected", flush=True)
told = b""
try:
    client.sendall(b"p 6 * 7\\nc\\n")
    while more := client.recv(100):
        told += more
except ConnectionError:
    pass
print(b"42" in told)
"""
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that somebody has opened to all."""
    tmp_path.chmod(0o711)
    return tmp_path


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.chdir(folder)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("probe")
        made.listen()
        (folder / "probe").chmod(0o666)
        yield made


def connect_as(uid: int, path: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CONNECT, str(uid), path]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)


@as_root
@pytest.mark.parametrize("uid", [0, 65534])
def test_only_our_user_and_root_are_taken(server: socket.socket, folder: Path, uid: int) -> None:
    with connect_as(uid, "probe", folder):
        taken = visitors.accept(server)

        assert (taken is not None) == (uid == 0)
        if taken:
            taken.close()


@as_root
def test_a_breakpoint_lets_no_other_user_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a debugger that runs whatever a visitor says
    monkeypatch.chdir(folder)
    monkeypatch.setattr(files, "path_of", lambda kind: kind)
    monkeypatch.setattr(os, "unlink", lambda path: None)

    def say(_text: str) -> None:
        (folder / "pdb").chmod(0o666)
        for uid in (65534, 0):  # the other one comes first
            child = connect_as(uid, "pdb", folder)
            assert child.stdout is not None
            assert child.stdout.readline() == "connected\n"
            children.append(child)

    children: list[subprocess.Popen[str]] = []

    class Op:
        rank = 0

    calls._serve(pdb.Pdb, sys._getframe(), Op(), say)  # type: ignore[arg-type]

    answers = [child.communicate(timeout=60)[0].strip() for child in children]
    assert answers == ["False", "True"]
