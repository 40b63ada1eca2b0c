"""Whose a failure is that no rank signed: of the process that its launcher does not end."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.logs.jobs import first

from whystuck.diagnose import codes

FAULT = (
    "Memory access fault by GPU node-5 (Agent handle: 0x55d7) on address 0x7e1b4ac00000. Reason: "
    "Page not present or supervisor privilege.\n"
)
KERNEL = (
    "[884112.730119] amdgpu 0000:6d:00.0: amdgpu: [gfxhub0] no-retry page fault (src_id:0)\n"
    "[884112.730131] amdgpu 0000:6d:00.0: amdgpu: {words} python pid {pid} thread a pid {pid}\n"
)


def close(*pids: int, agent: int = 3301) -> str:
    """Write what a launcher says of the processes that it ends."""
    return "".join(
        f"W1109 12:55:06.018000 {agent} torch/distributed/elastic/multiprocessing/api.py:897] "
        f"Sending process {pid} closing signal SIGTERM\n"
        for pid in pids
    )


OTHERS = (3336, 3337, 3338, 3340, 3341)


@pytest.mark.parametrize("words", [" for process", " in process", "Process"])
def test_the_kernel_and_the_launcher_name_one_process(tmp_path: Path, words: str) -> None:
    kernel = KERNEL.format(words=words, pid=3339)
    found = first(tmp_path, {"paste.txt": FAULT + close(*OTHERS) + f"\ndmesg:\n{kernel}"})

    assert (found.code, found.culprits.ranks) == (codes.DEVICE_FAULT, [3])


def test_the_launcher_alone_names_it(tmp_path: Path) -> None:
    found = first(tmp_path, {"paste.txt": FAULT + close(*OTHERS)})

    assert (found.code, found.culprits.ranks) == (codes.DEVICE_FAULT, [3])


@pytest.mark.parametrize(
    "text",
    [
        close(3336, 3337, 3338, 3339),  # none is left out between them
        close(3336, 3339),  # too few
        close(3336, 3338, 3340, 3341),  # two are left out
        close(*OTHERS) + close(71, 72, 74, agent=60),  # two launchers
        close(*OTHERS) + KERNEL.format(words=" for process", pid=999),  # another program
        close(*OTHERS) + "[rank12]: step 3\n",  # ranks of other hosts
    ],
)
def test_nobody_is_blamed_where_it_does_not_decide(tmp_path: Path, text: str) -> None:
    assert first(tmp_path, {"paste.txt": FAULT + text}).culprits.ranks == []


def test_a_silent_device_of_hccl_is_named_by_its_host(tmp_path: Path) -> None:
    line = (
        "Cluster Exception Location[IP/ID]:[10.0.0.{n}/5], Arrival Time:[Fri Nov  6 16:11:31 2026],"
        " Discoverer:[10.0.0.9/4], ExceptionType:[Heartbeat Lost Occurred], Possible Reason:1.\n"
    )
    wait = (
        "EI0002: [PID: 53] 2026-11-06-16:41:03.118.004 The wait execution of the Notify times out\n"
    )
    found = first(tmp_path, {"a.log": wait + line.format(n=2)})
    assert (found.code, found.culprits.nodes) == (codes.PEER_LOST, ["10.0.0.2"])
    both = first(tmp_path, {"a.log": wait + line.format(n=2) + line.format(n=3)})
    assert both.culprits.nodes == []
