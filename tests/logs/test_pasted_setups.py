"""What is wrong with one host only, which its ranks or its cards say."""

from __future__ import annotations

from pathlib import Path

from tests.logs.test_told import first_of, say

DRIVER = (
    "[rank{0}]: RuntimeError: The NVIDIA driver on your system is too old (found version 11040). "
    "Please update your GPU driver"
)
PAIR = (
    "g2:71:90 [3] misc/ibvwrap.cc:482 NCCL WARN Call to ibv_modify_qp failed with {0}, on dev "
    "mlx5_3:1, curr state INIT, next state RTR, local GID index 3, local GID {1}, remote GID "
    "::ffff:10.3.9.21"
)
HANG = "HW Exception by GPU node-2 (Agent handle: 0x55d0b7a3c1f0) reason :GPU Hang"
ENDED = (
    "E0127 19:02:31.442000 511 torch/distributed/elastic/multiprocessing/api.py:869] failed "
    "(exitcode: -6) local_rank: 2 (pid: 537) of binary: /opt/py/bin/python"
)
KERNEL = [
    f"[70112.55{k}811] amdgpu 0000:46:00.0: amdgpu: {text}"
    for k, text in enumerate(
        (
            "[gfxhub0] no-retry page fault (src_id:0 ring:24 vmid:8 pasid:32773)",
            "Failed to evict process queues",
            "GPU reset begin!",
            "GPU reset succeeded, trying to resume",
        )
    )
]


def test_the_rank_whose_driver_is_too_old_is_named(tmp_path: Path) -> None:
    found = first_of(say(tmp_path, "[rank0]: waits for the others", DRIVER.format(1)))
    assert (found.code, found.culprits.ranks) == ("C210", [1])


def test_a_driver_that_is_too_old_for_all_ranks_is_nobodys(tmp_path: Path) -> None:
    found = first_of(say(tmp_path, DRIVER.format(0), DRIVER.format(1)))
    assert (found.code, found.culprits.ranks) == ("C210", [])


def test_a_card_without_the_address_that_nccl_uses_is_a_setting(tmp_path: Path) -> None:
    found = first_of(say(tmp_path, PAIR.format("22 Invalid argument", "::")))
    assert (found.code, found.details["kind"]) == ("C210", "gid")


def test_a_card_that_does_not_reach_another_one_is_no_setting(tmp_path: Path) -> None:
    line = PAIR.format("110 Connection timed out", "::ffff:10.3.8.4")
    found = say(tmp_path, line).findings
    assert "gid" not in {one.details.get("kind") for one in found}


def test_a_device_that_hung_is_told_beside_more_lines_of_the_kernel(tmp_path: Path) -> None:
    for rest in ([], KERNEL[:1], KERNEL):
        found = first_of(say(tmp_path, HANG, ENDED, *rest))
        assert (found.code, found.culprits.ranks) == ("C212", [2])
