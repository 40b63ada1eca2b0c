"""Failures of devices hours apart, and names of hosts that few lines have."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

WAIT = (
    "{0} | [rank{1}]:[E303 00:06:00.000093381 ProcessGroupNCCL.cpp:616] [Rank {1}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=88210, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
    "Timeout(ms)=600000) ran for 600013 milliseconds before timing out."
)
STEP = (
    "{0} | [2025-03-02 23:55:34] iteration 4410/ 120000 | lm loss: 2.419102E+00 | loss scale: 1.0"
)
FAULT = (
    "{0}: [{1} 2025] NVRM: Xid (PCI:0000:53:00): {2}, pid=1711, name=python, Ch 0000000c, intr "
    "00000000. MMU Fault: ENGINE GRAPHICS GPC2 GPCCLIENT_T1_3 faulted @ 0x7f22_8c000000."
)
LOST = (
    "{0}: [Sun Mar  2 23:56:02 2025] NVRM: Xid (PCI:0000:b9:00): 79, pid='<unknown>', "
    "name=<unknown>, GPU has fallen off the bus."
)
HOSTS = ["ip-10-1-4-40", "ip-10-1-5-12"]
JOB = [
    *(STEP.format(HOSTS[0]) for _ in range(3)),
    *(WAIT.format(host, rank) for host, rank in zip(HOSTS * 2, (0, 8, 1, 9), strict=True)),
]


def test_device_that_failed_when_the_job_did_goes_before_one_of_hours_ago(tmp_path: Path) -> None:
    old = FAULT.format(HOSTS[0], "Sun Mar  2 17:20:44", 31)

    finding = first_of(say(tmp_path, *JOB, old, LOST.format(HOSTS[1])))

    assert (finding.code, finding.culprits.nodes) == ("C208", [HOSTS[1]])


def test_fault_of_a_kernel_whose_clock_may_be_of_another_zone_is_told(tmp_path: Path) -> None:
    old = FAULT.format(HOSTS[0], "Sun Mar  2 17:20:44", 31)

    assert first_of(say(tmp_path, *JOB, old)).code == "C212"


FALLBACK = (
    "{0}[W917 05:00:33.118800231 ProcessGroupGloo.cpp:757] Warning: Unable to resolve hostname to "
    "a (local) address. Using the loopback address as fallback."
)
UNMET = (
    "{0}[rank{1}]: RuntimeError: Gloo connectFullMesh failed with "
    "[../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error"
)
ENDS = [f"srun: error: c1{one}: task {one}: Exited with exit code 1" for one in range(3)]


def test_host_that_offers_its_loopback_address_is_named(tmp_path: Path) -> None:
    lines = [FALLBACK.format("c12: "), *(UNMET.format(f"c1{one}: ", one) for one in (1, 0, 2))]

    finding = first_of(say(tmp_path, "It fails since we added c12.", *lines, *ENDS))

    assert (finding.code, finding.culprits.nodes) == ("H121", ["c12"])
    assert finding.details["kind"] == "loopback"


@pytest.mark.parametrize("labels", [("c10: ", "c11: ", "c12: "), ("",)], ids=["all", "unknown"])
def test_loopback_address_that_all_or_nobody_offers_names_no_host(
    tmp_path: Path, labels: tuple[str, ...]
) -> None:
    lines = [UNMET.format(f"c1{one}: ", one) for one in (1, 0, 2)]

    finding = first_of(say(tmp_path, *map(FALLBACK.format, labels), *lines, *ENDS))

    assert (finding.code, finding.culprits.nodes) == ("H121", [])
