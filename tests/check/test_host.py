"""Limits, cgroups, memory, clock and kernel log: good ones pass, injected faults are named."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.check.checking import find, judge, run_check, write_tree
from tests.guarded.strangers import STRANGER
from tests.shared_disk import shared_disk

from whystuck.check.check import Context
from whystuck.check.host.cgroup import Cgroup
from whystuck.check.host.clock import Clock, read_kernel_clock
from whystuck.check.host.facts import Facts
from whystuck.check.host.kernel_log import KernelLog, judge_lines
from whystuck.check.host.limits import Limits
from whystuck.check.host.memory import Memory
from whystuck.check.policy import read_policy
from whystuck.evidence.finding import Severity, Verdict
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult, Outcome
from whystuck.parse.logs.signatures import load_signatures

CONTEXT = Context(policy=read_policy(), node="n0")
MEMINFO = "MemTotal: 16000000 kB\nMemFree: 100 kB\nMemAvailable: {} kB\n"


# ---------------------------------------------------------------------------------------- limits


@contextmanager
def limit(kind: int, soft: int) -> Iterator[None]:
    """Lower a soft limit of this process, which checks inherit."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def test_good_limits_pass() -> None:
    with limit(resource.RLIMIT_NOFILE, 16384):
        (result,) = run_check(Limits())

    assert result.outcome is Outcome.OK
    assert result.facts["open files"].startswith("16384")


@pytest.mark.parametrize(
    ("soft", "severity"), [(300, Severity.WARNING), (1024, Severity.NOTE), (2000, Severity.NOTE)]
)
def test_few_open_files_are_told(soft: int, severity: Severity) -> None:
    with limit(resource.RLIMIT_NOFILE, soft):
        finding = find(run_check(Limits()), "N404")

    assert finding.severity is severity
    assert finding.measures["limit"] == soft
    assert finding.remedies[0].startswith("ulimit -n ")


@pytest.mark.parametrize(
    ("kind", "value", "said", "remedy"),
    [
        (resource.RLIMIT_FSIZE, 1 << 30, "the limit of file size (GB) is 1, below 16", "-f"),
        (resource.RLIMIT_CPU, 7200, "the limit of CPU time (hours) is 2, below 24", "-t"),
    ],
)
def test_small_files_and_little_time_are_told(
    kind: int, value: int, said: str, remedy: str
) -> None:
    with limit(kind, value):
        finding = find(run_check(Limits()), "N404")

    assert finding.summary.startswith(said)
    assert finding.remedies[0].startswith(f"ulimit {remedy} unlimited")


def test_a_small_stack_is_told() -> None:
    with limit(resource.RLIMIT_STACK, 256 << 10):
        finding = find(run_check(Limits()), "N404")

    assert finding.summary == "the limit of stack (kB) is 256, below 1024"


def test_a_small_address_space_is_told() -> None:
    with limit(resource.RLIMIT_AS, 20 << 30):
        finding = find(run_check(Limits()), "N404")

    assert "address space (GB) is 20, below 64" in finding.summary


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, as the kernel limits no root")
def test_few_processes_of_a_user_are_told() -> None:
    os.seteuid(STRANGER)
    try:
        with limit(resource.RLIMIT_NPROC, 200):
            finding = find(run_check(Limits()), "N404")
    finally:
        os.seteuid(0)

    assert finding.summary == "the limit of processes is 200, below 4096"
    assert finding.remedies[0].startswith("ulimit -u ")


def test_locked_memory_counts_where_there_is_infiniband(tmp_path: Path) -> None:
    root = write_tree(tmp_path, {"sys/class/infiniband/mlx5_0/node_type": "1: CA"})
    with limit(resource.RLIMIT_MEMLOCK, 64 << 10):
        finding = find(run_check(Limits(), root=root), "N404")
        (plain,) = run_check(Limits())

    assert "locked memory" in finding.summary
    assert not [one for one in plain.problems if "locked" in one.text]


# ---------------------------------------------------------------------------------------- cgroup

MEMORY = Path("/sys/fs/cgroup/memory")


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[str]:
    """A cgroup of version 1 with a limit; skips the test where none can be made."""
    name = f"whystuck-test-{os.getpid()}"
    folder = MEMORY / name
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error.strerror}")
    try:
        yield name
    finally:
        folder.rmdir()


def test_a_real_group_with_little_memory_is_tight(tmp_path: Path) -> None:
    code = (
        "import sys, os\n"
        "open(sys.argv[1], 'w').write(str(os.getpid()))\n"
        "from tests.check.checking import run_check, find\n"
        "from whystuck.check.host.cgroup import Cgroup\n"
        "finding = find(run_check(Cgroup()), 'N405')\n"
        "print(finding.summary)\n"
        "print(finding.remedies[0])\n"
    )
    with memory_group(400 << 20) as name:
        told = subprocess.run(
            [sys.executable, "-c", code, str(MEMORY / name / "cgroup.procs")],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    assert told.returncode == 0, told.stderr
    assert f"the memory limit of cgroup /{name} leaves" in told.stdout
    assert "MB of 400 MB, below 1024 MB" in told.stdout
    assert "--mem" in told.stdout


def make_group(root: Path, files: dict[str, str]) -> Path:
    """A cgroup of version 2 as the kernel shows it."""
    group = "sys/fs/cgroup/job"
    tree = {f"{group}/{name}": text for name, text in files.items()}
    return write_tree(root, {"proc/self/cgroup": "0::/job\n", **tree})


def test_a_group_with_room_passes(tmp_path: Path) -> None:
    files = {
        "memory.max": str(64 << 30),
        "memory.current": str(2 << 30),
        "memory.stat": "inactive_file 0\n",
        "memory.events": "oom 0\noom_kill 0\n",
        "cpu.max": "800000 100000",
        "cpu.stat": "nr_periods 1000\nnr_throttled 3\n",
        "pids.max": "max",
    }
    (result,) = run_check(Cgroup(), root=make_group(tmp_path, files))

    assert result.outcome is Outcome.OK
    assert result.facts["memory limit"] == "68.7 GB, 66.6 GB free"


def test_file_cache_counts_as_free(tmp_path: Path) -> None:
    files = {
        "memory.max": str(8 << 30),
        "memory.current": str(8 << 30),
        "memory.stat": f"inactive_file {6 << 30}\n",
    }
    (result,) = run_check(Cgroup(), root=make_group(tmp_path, files))

    assert result.outcome is Outcome.OK


def test_kills_in_a_tight_group_are_told(tmp_path: Path) -> None:
    files = {
        "memory.max": str(4 << 30),
        "memory.current": str(4 << 30),
        "memory.events": "oom 2\noom_kill 2\n",
    }
    finding = find(run_check(Cgroup(), root=make_group(tmp_path, files)), "N405")

    assert finding.because[1].text == "the kernel has ended 2 processes in it so far"


def test_a_small_quota_and_throttling_are_told(tmp_path: Path) -> None:
    files = {"cpu.max": "50000 100000", "cpu.stat": "nr_periods 1000\nnr_throttled 400\n"}
    (result,) = run_check(Cgroup(), root=make_group(tmp_path, files))

    texts = [problem.text for problem in result.problems]
    assert texts == [
        "cgroup /job grants 0.5 CPUs, below 1",
        (
            "the CPU quota of cgroup /job stopped its processes in 40% of all periods so far, "
            "more than 10%"
        ),
    ]


def test_few_processes_are_told(tmp_path: Path) -> None:
    files = {"pids.max": "512", "pids.current": "100"}
    finding = find(run_check(Cgroup(), root=make_group(tmp_path, files)), "N405")

    assert finding.summary == "cgroup /job allows 412 more processes and threads, below 1024"


# ---------------------------------------------------------------------------------------- memory


def test_enough_memory_passes(tmp_path: Path) -> None:
    root = write_tree(tmp_path, {"proc/meminfo": MEMINFO.format(8_000_000)})
    (result,) = run_check(Memory(), root=root)

    assert result.outcome is Outcome.OK
    assert result.facts["memory"] == "8.2 of 16.4 GB available"


@pytest.mark.parametrize(
    ("free_kb", "severity"), [(1_000_000, Severity.WARNING), (100_000, Severity.ERROR)]
)
def test_little_memory_is_told(tmp_path: Path, free_kb: int, severity: Severity) -> None:
    root = write_tree(tmp_path, {"proc/meminfo": MEMINFO.format(free_kb)})
    finding = find(run_check(Memory(), root=root), "N426")

    assert finding.severity is severity
    assert "below 2048 MB" in finding.summary


def test_pressure_on_memory_is_told(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO.format(8_000_000),
        "proc/pressure/memory": "some avg10=34.50 avg60=9.00 avg300=1.00 total=1\nfull avg10=0\n",
    }
    finding = find(run_check(Memory(), root=write_tree(tmp_path, files)), "N426")

    assert finding.measures["pressure_percent"] == 34.5


# ----------------------------------------------------------------------------------------- clock


def offset_of(results: list[CheckResult]) -> list[CheckProblem]:
    return [one for result in results for one in result.problems if one.subject != "kernel"]


def test_a_good_clock_passes(tmp_path: Path) -> None:
    results = run_check(Clock(), tmp_path)

    assert offset_of(results) == []
    assert abs(results[0].figures["offset_ms"]) < 1000


def test_the_kernel_tells_of_its_clock() -> None:
    told = read_kernel_clock()

    assert told is not None
    assert told[1] >= 0


@pytest.mark.parametrize(
    ("offset_s", "severity", "way"),
    [(10.0, Severity.WARNING, "behind"), (-10.0, Severity.WARNING, "ahead of"),
     (4000.0, Severity.ERROR, "behind")],
)  # fmt: skip
def test_a_clock_that_is_off_that_of_the_file_server_is_told(
    tmp_path: Path, offset_s: float, severity: Severity, way: str
) -> None:
    # GIVEN a file server whose clock is off from ours
    with shared_disk(tmp_path) as disk:
        disk.clock_offset_s = offset_s
        finding = find([replace_problems(one) for one in run_check(Clock(), disk.path)], "N406")

    assert finding.severity is severity
    assert f" s {way} that of the file system of {disk.path}" in finding.summary
    # The kernel remembers the attributes of the server in whole seconds, or nearly so.
    assert finding.measures["offset_ms"] == pytest.approx(offset_s * 1e3, abs=1500)


def replace_problems(result: CheckResult) -> CheckResult:
    """Leave out what the kernel of this machine tells."""
    from msgspec.structs import replace

    return replace(result, problems=tuple(offset_of([result])))


@pytest.mark.skipif(shutil.which("faketime") is None, reason="there is no faketime")
def test_a_clock_set_by_faketime_is_told(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from tests.check.checking import run_check\n"
        "from whystuck.check.host.clock import Clock\n"
        "for one in run_check(Clock(), Path(sys.argv[1]))[0].problems: print(one.text)\n"
    )
    told = subprocess.run(
        ["faketime", "-f", "+90s", sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    assert "s ahead of that of the file system" in told.stdout


# ------------------------------------------------------------------------------------ kernel log


def line(text: str, age_s: float = 60.0) -> bytes:
    stamp = datetime.fromtimestamp(time.time() - age_s, UTC).isoformat()
    return f"{stamp} n0 kernel: {text}\n".encode()


XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."
DISK = "Buffer I/O error on dev dm-0, logical block 1308098575, lost async page write"


def judged(*lines: bytes) -> list[CheckProblem]:
    return judge_lines(b"".join(lines), time.time(), CONTEXT)[0]


def test_a_quiet_kernel_log_passes() -> None:
    assert (
        judged(line("usb 1-1: new high-speed USB device"), line("eth0: link becomes ready")) == []
    )


def test_a_fatal_xid_is_an_error_with_the_line_and_advice() -> None:
    (problem,) = judged(line("quiet"), line(XID), line(XID))

    assert (problem.code, problem.severity) == ("N425", "error")
    assert "2 times" in problem.text
    assert XID in problem.because[0]
    assert problem.remedies


def test_an_error_of_a_disk_is_told() -> None:
    (problem,) = judged(line(DISK))

    assert problem.details["signature"] == "disk.io_error"


def test_lines_of_programs_and_old_lines_are_not_judged() -> None:
    crash = "python[123]: segfault at 0 ip 0 sp 0 error 4 in libc.so.6"

    assert judged(line(crash), line(XID, age_s=2 * 86400)) == []


@pytest.mark.parametrize("number", [13, 31, 43, 45])
def test_xids_that_programs_cause_are_not_judged(number: int) -> None:
    assert judged(line(f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=1234, name=python")) == []


# A process calls itself by up to 15 characters; files, and cgroups in a user's hands, have more.
FORGED = [
    "NVRM: Xid ():79[123]: segfault at 0 ip 00 sp 00 error 4 in python3.11[5+2]",
    "python3[123]: segfault at 0 ip 00 sp 00 error 4 in GPU has fallen off the bus[5+2]",
    "netlink: 'EDAC MC0 UE': attribute type 1 has an invalid length.",
    "overlayfs: failed to resolve 'GPU has fallen off the bus': -2",
    "EDAC MC0 UE(123): Attempt to set a LOCK_MAND lock via flock(2).",
    "EDAC MC0: 1 UE invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "a: EDAC MC0: UE: page allocation failure: order:10, mode:0xcc0(GFP_KERNEL)",
    "traps: EDAC MC0: 1 UE[12] trap invalid opcode ip:1 sp:2 error:0 in a[1+2]",
    "CPU: 3 PID: 123 Comm: EDAC MC0: 1 UE Not tainted 6.1.0 #1",
    "INFO: task EDAC MC0: 1 UE:1234 blocked for more than 120 seconds.",
    "[   1234]  1000  1234     5000      100    61440        0             0 EDAC MC0: 1 UE",
    "oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=/u/GPU has fallen off the bus,task=a,pid=1",
]  # fmt: skip


@pytest.mark.parametrize("text", FORGED)
def test_names_of_processes_and_files_are_no_fatal_error_of_hardware(text: str) -> None:
    for problem in judged(line(text)):
        assert (problem.severity, problem.confidence) == ("warning", "possible"), problem


def test_a_name_makes_no_old_error_a_new_one() -> None:
    old, forged = line(XID, age_s=2 * 86400), line("a: 'GPU has fallen off the bus'")

    assert [one.severity for one in judged(old, forged)] == ["warning"]


def test_every_fatal_error_of_hardware_is_an_error() -> None:
    fatal = [
        one for one in load_signatures()
        if one.log_source == "kernel" and one.severity == "fatal" and one.is_hardware == "yes"
    ]  # fmt: skip

    assert len(fatal) > 10
    for signature in fatal:
        (problem,) = judged(line(signature.example))
        assert problem.severity == "error", signature.example


def test_the_log_of_this_kernel_can_be_read_or_the_check_is_skipped() -> None:
    (result,) = run_check(KernelLog())

    assert result.outcome is not Outcome.INCOMPLETE
    assert result.outcome is not Outcome.SKIPPED or "needs root" in result.reason


# ----------------------------------------------------------------------------------------- facts


def test_facts_name_devices_and_drivers(tmp_path: Path) -> None:
    device = {"vendor": "0x10de\n", "class": "0x030200\n"}
    files = {
        f"sys/bus/pci/devices/0000:{bus}:00.0/{name}": text
        for bus in ("3b", "5e")
        for name, text in device.items()
    }
    files["proc/driver/nvidia/version"] = "NVRM version: NVIDIA UNIX x86_64  550.54.15  Tue\n"
    (result,) = run_check(Facts(), root=write_tree(tmp_path, files))

    assert result.facts["devices on PCI"] == "2 of NVIDIA"
    assert result.facts["NVIDIA driver"] == "550.54.15"
    assert result.facts["system"].startswith("Linux ")
    assert judge([result]).verdict is Verdict.HEALTHY
