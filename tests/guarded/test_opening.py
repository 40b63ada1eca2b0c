"""Paths are opened below a folder, and files in it, whatever somebody lays there."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.guarded.strangers import STRANGER, needs_root

from whystuck.guarded.folders import (
    evict_others,
    find_file,
    folder_at,
    list_names,
    open_file,
    put_file,
    read_file,
    remove_same,
)
from whystuck.guarded.opening import GuardError, can_open_below, open_below
from whystuck.guarded.processes import Pinned

pytestmark = pytest.mark.skipif(not can_open_below(), reason="this kernel has no openat2")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "root" / "deep").mkdir(parents=True)
    (tmp_path / "root" / "deep" / "file").write_text("inside")
    (tmp_path / "outside").write_text("outside")
    descriptor = os.open(tmp_path / "root", os.O_PATH)
    yield descriptor
    os.close(descriptor)


def read(root: int, path: str, *, follows_links: bool = False) -> str:
    with os.fdopen(open_below(root, path, os.O_RDONLY, follows_links=follows_links)) as file:
        return file.read()


@pytest.mark.parametrize("path", ["deep/file", "/deep/file", "//deep/./file"])
def test_path_below_a_root_is_opened(root: int, path: str) -> None:
    assert read(root, path) == "inside"


@pytest.mark.parametrize("path", ["../outside", "/../outside", "deep/../../outside", "a\0b", ".."])
def test_path_that_leads_out_is_refused(root: int, path: str) -> None:
    with pytest.raises(GuardError):
        read(root, path)


@pytest.mark.parametrize("target", ["/outside", "../outside", "/etc/hostname", "deep/file"])
def test_links_are_refused_and_stay_below_where_they_are_followed(
    root: int, tmp_path: Path, target: str
) -> None:
    (tmp_path / "root" / "link").symlink_to(target)
    (tmp_path / "root" / "way").symlink_to("deep")
    for path in ("link", "way/file"):
        with pytest.raises(GuardError, match="link") as refusal:
            read(root, path)
        assert refusal.value.errno == errno.ELOOP
    if target == "deep/file":
        assert read(root, "link", follows_links=True) == "inside"
    else:
        with pytest.raises(FileNotFoundError):
            read(root, "link", follows_links=True)


def test_links_of_proc_lead_nowhere() -> None:
    root = os.open("/", os.O_PATH)
    try:
        for path in ("/proc/self/root/etc", f"/proc/{os.getpid()}/root/etc", "/proc/self/fd/0"):
            with pytest.raises(GuardError):
                open_below(root, path, os.O_RDONLY, follows_links=path.startswith("/proc/self"))
    finally:
        os.close(root)


def test_folder_that_is_renamed_all_the_time_never_leads_out(root: int, tmp_path: Path) -> None:
    top = tmp_path / "root"
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "file").write_text("outside")
    ends = threading.Event()

    def swap() -> None:
        while not ends.is_set():
            (top / "deep").rename(top / "away")
            (top / "deep").symlink_to(tmp_path / "evil")
            (top / "deep").unlink()
            (top / "away").rename(top / "deep")

    swapper = threading.Thread(target=swap)
    swapper.start()
    seen = set()
    try:
        for _ in range(3000):
            try:
                seen.add(read(root, "deep/file"))
            except OSError as error:
                seen.add(type(error).__name__)
    finally:
        ends.set()
        swapper.join()
    assert "outside" not in seen


@pytest.mark.parametrize("trap", ["link", "pipe", "folder", "none", "slash"])
def test_what_is_no_plain_file_is_not_read(tmp_path: Path, trap: str) -> None:
    (tmp_path / "real").write_text("real")
    path = tmp_path / "file"
    if trap == "link":
        path.symlink_to("real")
    elif trap == "pipe":
        os.mkfifo(path)
    elif trap == "folder":
        path.mkdir()
    name = "./real" if trap == "slash" else "file"
    with folder_at(tmp_path) as folder:
        if trap != "slash":
            assert find_file(folder, name) is None
        with pytest.raises(OSError):  # noqa: PT011 - of many kinds
            open_file(folder, name)


def test_reading_is_bounded_and_folders_of_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("0123456789")
    with folder_at(tmp_path, uid=os.getuid()) as folder:
        assert read_file(folder, "file", 4)[0] == b"0123"
        assert read_file(folder, "file", 40)[0] == b"0123456789"
        os.link(tmp_path / "file", tmp_path / "second")
        with pytest.raises(GuardError, match="another name"):
            read_file(folder, "file", 4, uid=os.getuid())
        with pytest.raises(GuardError, match="belongs to"):
            read_file(folder, "file", 4, uid=os.getuid() + 1)
        assert sorted(list_names(folder, 10)) == ["file", "second"]
        assert len(list_names(folder, 1)) == 1
    with pytest.raises(GuardError, match="belongs to"), folder_at(tmp_path, uid=os.getuid() + 1):
        pass
    tmp_path.chmod(0o750)
    with pytest.raises(GuardError, match="open to"), folder_at(tmp_path, is_private=True):
        pass
    (tmp_path.parent / "link").symlink_to(tmp_path)
    with pytest.raises(NotADirectoryError), folder_at(tmp_path.parent / "link"):
        pass


def test_file_is_removed_only_if_it_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("1")
    with folder_at(tmp_path) as folder:
        before = path.lstat()
        (tmp_path / "new").write_text("2")
        (tmp_path / "new").rename(path)
        assert not remove_same(folder, "file", before)
        assert path.read_text() == "2"
        assert remove_same(folder, "file", path.lstat())
        assert not remove_same(folder, "file", before)


def test_file_takes_the_place_of_a_link_and_not_of_its_target(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("target")
    (tmp_path / "file").symlink_to("target")
    with folder_at(tmp_path) as folder:
        put_file(folder, "file", b"new")
        (tmp_path / "folder").mkdir()
        with pytest.raises(IsADirectoryError):
            put_file(folder, "folder", b"new")
    assert (tmp_path / "target").read_text() == "target"
    assert (tmp_path / "file").read_text() == "new"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["file", "folder", "target"]


@needs_root
def test_files_of_others_are_taken_out_of_the_way(tmp_path: Path) -> None:
    for name in ("theirs", "ours"):
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    for name in ("theirs", "folder"):
        os.chown(tmp_path / name, STRANGER, STRANGER)
    evict_others(tmp_path, ["theirs", "ours", "folder", "none"])
    left = {one.name for one in tmp_path.iterdir()}
    assert "ours" in left
    assert not left & {"theirs", "folder"}


def test_process_that_has_ended_is_no_other_one() -> None:
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    with Pinned(child) as process:
        assert process.read_owner().uid == os.getuid()
        assert process.has_our_root()
        assert process.read_numbers()[0] == child
        os.kill(child, 9)
        os.waitpid(child, 0)
        for look in (process.read_owner, process.open_root, process.read_numbers):
            with pytest.raises(OSError):  # noqa: PT011 - of many kinds
                look()
    with pytest.raises(ProcessLookupError):
        Pinned(child)
