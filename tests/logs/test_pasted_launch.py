"""What keeps a job from its start, or ranks from each other, in words of launchers and of CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_pasted_near import blamed_of
from tests.logs.test_told import first_of, say

LINE = "-" * 74
SSH = "ssh: connect to host {0} port 22: {1}"
ORTE = """\
ORTE was unable to reliably start one or more daemons.
This usually is caused by:

* not finding the required libraries and/or binaries on
  one or more nodes.""".splitlines()
PRTE = "PRTE was unable to reliably start one or more daemons."
DIED = "A daemon (pid 2345) died unexpectedly with status 255 while attempting"
ROUTE = """\
ORTE does not know how to route a message to the specified daemon
located on the indicated node:

  my node:   n01
  target node:  n03""".splitlines()
EXECUTABLE = """\
mpirun was unable to launch the specified application as it could not access
or execute an executable:

Executable: ./train.sh
Node: n03

while attempting to start process rank 8.""".splitlines()
HYDRA = "[mpiexec@n01] check_exit_codes (../i_exec.c:117): unable to run proxy on n03 (pid 991, exit code 65280)"  # noqa: E501
PROXY = '[proxy:0:1@n03] HYDU_sock_connect (../sock.c:145): unable to connect from "n03" to "n01" (Connection refused)'  # noqa: E501


@pytest.mark.parametrize(
    "lines",
    [
        [SSH.format("n03", "Connection refused"), LINE, *ORTE, LINE],
        [SSH.format("n03", "No route to host"), LINE, PRTE],
        [SSH.format("n03", "Connection timed out"), DIED],
        ["ssh: Could not resolve hostname n03: Name or service not known", LINE, *ORTE],
        [
            "n03: Permission denied (publickey,password).",
            "pdsh@n01: n03: ssh exited with exit code 255",
        ],
        ["n03: bash: line 1: prted: command not found", LINE, PRTE],
        ["n03: Host key verification failed.", LINE, *ORTE],
        [LINE, *ROUTE, LINE],
        [LINE, *EXECUTABLE, LINE],
        [HYDRA],
    ],
)
@pytest.mark.parametrize("prefix", ["", "2026-03-04T10:12:32.5Z stderr F "])
def test_host_on_which_nothing_could_be_started_is_named(
    tmp_path: Path, lines: list[str], prefix: str
) -> None:
    report = say(tmp_path, *(prefix + line for line in ("starting 16 ranks", *lines)))

    assert first_of(report).code == "C210"
    assert blamed_of(report) == (set(), {"n03"})


def test_host_that_cannot_come_back_to_the_launcher_is_named(tmp_path: Path) -> None:
    assert first_of(say(tmp_path, PROXY)).culprits.nodes == ["n03"]


@pytest.mark.parametrize("lines", [[LINE, *ORTE], [PRTE], [DIED]])
def test_start_that_failed_somewhere_blames_no_host(tmp_path: Path, lines: list[str]) -> None:
    report = say(tmp_path, *lines)

    assert first_of(report).code == "C210"
    assert blamed_of(report) == (set(), set())


def test_too_few_slots_are_a_mistake_of_the_command(tmp_path: Path) -> None:
    line = "There are not enough slots available in the system to satisfy the 16"
    report = say(tmp_path, LINE, line, "slots that were requested by the application:")

    assert first_of(report).code == "C210"


@pytest.mark.parametrize(
    "lines",
    [
        [SSH.format("github.com", "Connection timed out"), "[rank0]: step 9 loss 2.0"],
        ["INFO ssh to n03 works", "orted: started on n03"],
        ["NOTE: PRTE starts one or more daemons on each node", "[rank0]: step 9 loss 2.0"],
        ["git@github.com: Permission denied (publickey).", "[rank0]: step 9 loss 2.0"],
    ],
)
def test_connection_that_no_launcher_asked_for_is_no_trouble(
    tmp_path: Path, lines: list[str]
) -> None:
    report = say(tmp_path, *lines)

    assert all(one.code not in {"C210", "H121"} for one in report.findings)
    assert blamed_of(report) == (set(), set())


# ------------------------------------------------------------------------------ peer access

TRACE = [
    "[rank{0}]: Traceback (most recent call last):",
    '[rank{0}]:   File "/w/train.py", line 40, in main',
    "[rank{0}]:     y = x.to('cuda:1')",
]
REFUSED = "CUDA error: peer access is not supported between these two devices"
WARN = "n1:77:80 [{0}] include/alloc.h:51 NCCL WARN Cuda failure 'peer access is not supported between these two devices'"  # noqa: E501


@pytest.mark.parametrize(
    "lines",
    [
        [*(line.format(3) for line in TRACE), f"[rank3]: RuntimeError: {REFUSED}"],
        [*(line.format(3) for line in TRACE), f"[rank3]: torch.AcceleratorError: {REFUSED}"],
        [WARN.format(3)],
        ["[rank3]: RuntimeError: CUDA error: peer mapping resources exhausted"],
        ["[rank1]: CUDA runtime API error: cudaErrorPeerAccessUnsupported"],
    ],
)
def test_devices_that_do_not_reach_each_other_are_told(tmp_path: Path, lines: list[str]) -> None:
    report = say(tmp_path, "[rank0]: step 1 loss 2.0", *lines)

    assert first_of(report).code == "N422"
    assert blamed_of(report)[0] == set()


@pytest.mark.parametrize(
    "line",
    [
        "INFO peer access is enabled between GPU 0 and GPU 1",
        "WARNING peer access is not supported, copies go through the host",
    ],
)
def test_peer_access_that_works_or_is_done_without_ends_nothing(tmp_path: Path, line: str) -> None:
    report = say(tmp_path, line, *(f"[rank0]: step {step} loss 2.0" for step in range(9)))

    assert blamed_of(report) == (set(), set())
    assert all(one.severity == "note" for one in report.findings)
