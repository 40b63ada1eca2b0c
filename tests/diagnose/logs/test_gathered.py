"""What tools gather of the kernels of many hosts, pasted below the log of a job."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.logs.jobs import first, tell, timeout

from whystuck.diagnose import codes
from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.parse.logs.lines.lines import parse_line

WAITS = "".join(timeout(rank, at="03:27:44.8") for rank in range(5))
LOST = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', GPU has fallen off the bus."
SILENT = "nfs: server stor-2 not responding, still trying"


@pytest.mark.parametrize(
    "prefix",
    [
        "gpu-05: [Sat Nov 21 03:17:41 2026] ",
        "gpu-05: [884112.730119] ",
        "gpu-05: [  912.730119] ",
        "10.0.0.5: [Sat Nov 21 03:17:41 2026] ",
        "rack5-gpu: [Sat Nov 21 03:17:41 2026] ",
    ],
)
def test_the_host_before_the_line_of_a_kernel_is_read(prefix: str) -> None:
    line = parse_line(f"{prefix}{LOST}".encode())

    assert (line.node, line.text, line.is_kernel) == (prefix.partition(":")[0], LOST, True)


@pytest.mark.parametrize(
    "text",
    ["note: [Sat] it broke", "step 5: [1.25] loss", "train: [epoch 3] done", "gpu-05: [12] ok"],
)
def test_lookalike_names_no_host(text: str) -> None:
    line = parse_line(text.encode())

    assert (line.node, line.rank, line.is_kernel) == ("", UNKNOWN_RANK, False)


def test_the_host_of_a_device_that_was_lost_is_blamed(tmp_path: Path) -> None:
    kernels = f"gpu-03: \ngpu-05: [Sat Nov 21 03:17:41 2026] {LOST}\n"
    found = first(tmp_path, {"paste.txt": f"{WAITS}\npdsh dmesg:\n\n{kernels}"})

    assert (found.code, found.culprits.nodes, found.culprits.ranks) == (
        codes.HARDWARE_ERROR,
        ["gpu-05"],
        [],
    )


def test_a_server_that_is_silent_to_several_hosts_blames_none_of_them(tmp_path: Path) -> None:
    kernels = "".join(f"a{n}: [Fri Nov 13 20:17:40 2026] {SILENT}\n" for n in (31, 32))
    hung = "a32: [Fri Nov 13 20:18:40 2026] INFO: task python:207 blocked for more than 122 seconds"
    found = first(tmp_path, {"paste.txt": f"epoch 3 done\n{kernels}{hung}\n"})

    assert (found.code, found.culprits.nodes) == (codes.STORAGE_STALLED, [])
    assert "stor-2" in found.summary


PS = " {pid} {state}   {wait:<30} 03:11:40 python train.py a.yaml\n"


def test_processes_that_all_wait_for_files_blame_nobody(tmp_path: Path) -> None:
    rows = "".join(PS.format(pid=pid, state="Dl", wait="rpc_wait_bit_killable") for pid in (71, 72))
    found = first(tmp_path, {"paste.txt": f"saving checkpoint\n{rows}"})

    assert (found.code, found.confidence) == (codes.STORAGE_STALLED, "possible")
    assert (found.culprits.ranks, found.culprits.nodes) == ([], [])


def test_processes_that_sleep_tell_nothing(tmp_path: Path) -> None:
    rows = "".join(PS.format(pid=pid, state="Sl", wait="futex_wait_queue") for pid in (71, 72))
    report = tell(tmp_path, {"paste.txt": f"saving checkpoint\n{rows}"})

    assert codes.STORAGE_STALLED not in {one.code for one in report.findings}
