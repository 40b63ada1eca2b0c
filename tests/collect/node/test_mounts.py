from __future__ import annotations

import os

import pytest

from whystuck.collect.node.mounts import (
    Mount,
    Mounts,
    count_nfs_answers,
    find_families,
    is_file_wait,
    parse_mount,
)

ROOT = "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw"
DATA = r"42 27 0:39 / /mnt/all\040data rw,relatime - nfs4 server:/export rw,vers=4.2"
CODE = "43 27 0:40 / /mnt/all rw - fuse.sshfs sshfs rw"
STATS = """\
device /dev/vda mounted on / with fstype ext4
device server:/export mounted on /mnt/data with fstype nfs4 statvers=1.1
\tage:\t100
\txprt:\ttcp 0 0 1 0 0 130 120 0 130 0 2 0 0
\txprt:\ttcp 0 0 1 0 0 30 20 0 130 0 2 0 0
device server:/other mounted on /mnt/other with fstype nfs4 statvers=1.1
\txprt:\ttcp 0 0 1 0 0 7 7 0 7 0 2 0 0
"""


class _Made(Mounts):
    def __init__(self, *lines: str) -> None:
        super().__init__(0)
        self.__dict__["all"] = tuple(mount for line in lines if (mount := parse_mount(line)))


def test_mountinfo_is_read_with_its_escapes() -> None:
    assert parse_mount(DATA) == Mount("/mnt/all data", "nfs4", "server:/export", "0:39")
    assert parse_mount(ROOT) == Mount("/", "ext4", "/dev/vda", "254:0")
    assert parse_mount("no mount") is None


def test_path_lies_on_the_longest_and_last_mount_above_it() -> None:
    mounts = _Made(ROOT, DATA, CODE)
    assert mounts.find("/mnt/all data/x") == parse_mount(DATA)
    assert mounts.find("/mnt/all/x") == parse_mount(CODE)
    assert mounts.find("/mnt/allx") == parse_mount(ROOT)
    assert mounts.find("pipe:[7]") is None


def test_path_that_a_link_led_elsewhere_lies_on_the_only_mount_of_that_type() -> None:
    mounts = _Made(ROOT, DATA, CODE)
    assert mounts.find("/home/link/x", ("nfs",)) == parse_mount(DATA)
    assert mounts.find("", ("fuse",)) == parse_mount(CODE)
    assert _Made(ROOT, DATA, DATA).find("/home/link/x", ("nfs",)) is None


@pytest.mark.parametrize(
    ("wchan", "families"),
    [
        ("request_wait_answer", ("fuse", "virtiofs")),
        ("rpc_wait_bit_killable", ("nfs",)),
        ("fuse_dev_do_read", ()),
        ("futex_wait_queue", ()),
    ],
)
def test_kernel_function_tells_the_type_of_file_system(
    wchan: str, families: tuple[str, ...]
) -> None:
    assert find_families(wchan) == families
    assert is_file_wait(wchan) is bool(families)


def test_disk_wait_is_a_file_wait_of_no_type() -> None:
    assert is_file_wait("folio_wait_bit_common")
    assert not is_file_wait("pipe_read")
    assert not is_file_wait("")


def test_answers_of_an_nfs_mount_are_those_of_all_its_connections() -> None:
    assert count_nfs_answers(STATS, "/mnt/data") == 140
    assert count_nfs_answers(STATS, "/mnt/none") == -1


def test_mounts_of_a_live_process_have_a_root() -> None:
    mounts = Mounts(os.getpid())
    root = mounts.find("/")
    assert root is not None
    assert root.point == "/"
    assert not root.is_remote or root.fs_type in {"9p", "nfs", "nfs4", "fuse", "virtiofs"}
    assert Mounts(2**22 + 1).all == ()
