"""C210: what is wrong with the environment, and that lines which only look like it are left."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.logs.config_logs import (
    ADDRESS_IN_USE,
    GLOO_CUT,
    first,
    join,
    table,
    tell,
    trace,
)

from whystuck.diagnose.algorithms.failures.config_errors import find_config_error, name_nccl_version
from whystuck.diagnose.engine import diagnose
from whystuck.evidence.finding import Verdict
from whystuck.evidence.logs.lines import LogEvent, LogFile, Logs
from whystuck.evidence.model import Evidence

NO_ENV = (
    "ValueError: Error initializing torch.distributed using env:// rendezvous: environment "
    "variable RANK expected, but not set"
)
USAGE = "usage: train.py [-h] --lr LR mode\ntrain.py: error: {}\n"
NCCL = "n0:4100:4160 [0] {} NCCL WARN {}\n"
SHM = "Error: failed to extend /dev/shm/nccl-aBc to 33030532 bytes, error: No space left (28)"
TORCH_SHM = (
    "RuntimeError: unable to allocate shared memory(shm) for file </torch_22540_2898035680_12>: "
    "No space left on device (28)"
)
VERSIONS = "Mismatched NCCL version detected : rank 1 version 22703 rank 0 version 22602"
CASES = [
    (trace("ModuleNotFoundError: No module named 'flash_attn.ops'", "t.py:9"), "module", "pip"),
    (
        trace("ImportError: cannot import name 'GPT' from 'megatron.core'", "t.py:9"),
        "library-version",
        "pip show megatron",
    ),
    (
        trace("ImportError: libcudart.so.12: cannot open shared object file: No such file", "t:9"),
        "library",
        "ldconfig",
    ),
    (USAGE.format("unrecognized arguments: --local-rank=0"), "argument", "--help"),
    (USAGE.format("the following arguments are required: --lr"), "argument", "--help"),
    ("/usr/bin/python3: can't open file '/app/x.py': [Errno 2] No such file\n", "script", "ls -l"),
    ("/bin/bash: line 1: torchrun: command not found\n", "command", "command -v"),
    (trace(ADDRESS_IN_USE, "t.py:3"), "port", "ss -ltnp | grep 29654"),
    (trace(NO_ENV, "t.py:3"), "environment", "export RANK"),
    (NCCL.format("misc/shmutils.cc:87", SHM), "shared-memory", "df -h /dev/shm"),
    (trace(TORCH_SHM, "t.py:3", rank=1), "shared-memory", "--shm-size"),
    (trace("OSError: [Errno 24] Too many open files", "t.py:3", rank=1), "limits", "ulimit -n"),
    (trace("RuntimeError: can't start new thread", "t.py:3", rank=1), "limits", "ulimit -u"),
    (trace("RuntimeError: No CUDA GPUs are available", "t.py:3"), "device", "nvidia-smi -L"),
    (
        trace("torch.AcceleratorError: CUDA error: invalid device ordinal", "t.py:3", rank=0),
        "device",
        "LOCAL_RANK",
    ),
    (
        trace("RuntimeError: The NVIDIA driver on your system is too old (found 11040)", "t.py:3"),
        "driver",
        "torch.version.cuda",
    ),
    (trace("AssertionError: Torch not compiled with CUDA enabled", "t.py:3"), "build", "torch"),
    (
        NCCL.format("bootstrap.cc:48", "Bootstrap : no socket interface found"),
        "interface",
        "NCCL_SOCKET_IFNAME",
    ),
    (
        trace("RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use", "t.py:3"),
        "fork",
        "spawn",
    ),
]


@pytest.mark.parametrize(("text", "kind", "remedy"), CASES, ids=lambda value: str(value)[:24])
def test_mistake_is_told_with_what_to_paste(
    tmp_path: Path, text: str, kind: str, remedy: str
) -> None:
    report = tell(tmp_path, {"train.log": text})
    finding = report.findings[0]

    assert (finding.code, finding.details["kind"]) == ("C210", kind)
    assert report.verdict is Verdict.CRASHED
    assert not finding.culprits.ranks
    assert any(remedy in text for text in finding.remedies)


def test_releases_that_refuse_each_other_differ(tmp_path: Path) -> None:
    report = tell(tmp_path, {"train.log": NCCL.format("bootstrap.cc:402", VERSIONS)})
    finding = report.findings[0]

    assert (finding.code, finding.severity, finding.culprits.ranks) == ("N417", "error", [])
    assert finding.details["versions"] == {"2.27.3": ["rank 1"], "2.26.2": ["rank 0"]}
    assert any("nccl.version()" in text for text in finding.remedies)


@pytest.mark.parametrize(
    "line",
    [
        "WARNING could not import flash_attn (No module named 'flash_attn'), using eager attention",
        "INFO apex: ModuleNotFoundError: No module named 'apex', continuing without",
        "metrics: [Errno 98] Address already in use, trying the next port",
        "n0:1:2 [0] NCCL INFO NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file",
        "n0:1:2 [0] NCCL INFO TUNER/Plugin: Could not find: libnccl-tuner.so.",
        "wandb: Permission denied: '/root/.netrc', going on without",
        "pool: can't start new thread, using 8",
    ],
)
def test_mistake_that_was_survived_is_left_out(tmp_path: Path, line: str) -> None:
    text = f"{line}\nstep 1 loss 2.0\n" + trace("KeyError: 'x'", "data.py:5", rank=1)
    report = tell(tmp_path, {"train.log": text + trace(GLOO_CUT, rank=0)})

    assert [item.code for item in report.findings if item.severity != "note"] == ["C204"]


def test_store_timeouts_of_others_follow_from_it(tmp_path: Path) -> None:
    late = "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 "
    logs = {f"rank_{rank}.log": join(rank, f"{late}clients joined.") for rank in (0, 1, 3)}
    logs["rank_2.log"] = trace("ModuleNotFoundError: No module named 'x'", "train.py:2", rank=2)
    finding = first(tmp_path, logs)

    assert (finding.code, finding.culprits.ranks) == ("C210", [2])


def test_what_only_one_host_has_names_the_host(tmp_path: Path) -> None:
    driver = "Failed to initialize NVML: Driver/library version mismatch\n"
    logs = {
        "n0/rank_0.log": trace(GLOO_CUT, rank=0),
        "n1/rank_1.log": driver + trace("RuntimeError: No CUDA GPUs are available", rank=1),
    }
    finding = first(tmp_path, logs)

    assert (finding.code, finding.details["kind"]) == ("C210", "driver")
    assert (finding.culprits.ranks, finding.culprits.nodes) == ([], ["n1"])


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: '/cfg/a.yaml'", "file"),
        ("PermissionError: [Errno 13] Permission denied: '/data/x'", "permission"),
    ],
)
def test_file_is_configuration_for_all_and_data_for_one(
    tmp_path: Path, error: str, kind: str
) -> None:
    everywhere = "".join(trace(error, "train.py:2", rank=rank) for rank in range(2))
    alone = trace(error, "train.py:2", rank=1) + trace(GLOO_CUT, rank=0) + trace(GLOO_CUT, rank=2)
    common = first(tmp_path / "a", {"train.log": everywhere})
    single = first(tmp_path / "b", {"train.log": alone})

    if kind == "file":
        assert (single.code, single.culprits.ranks) == ("C204", [1])
    assert (common.code, common.details["kind"]) == ("C210", kind)
    assert common.details["words"]["file"] in common.summary


def test_table_of_the_launcher_blames_no_rank(tmp_path: Path) -> None:
    text = USAGE.format("unrecognized arguments: --x") * 2 + table((0, 2), (1, -15))
    report = tell(tmp_path, {"train.log": text})

    assert [item.code for item in report.findings] == ["C210"]
    assert "--x" in report.findings[0].summary


def test_line_of_ones_own_signature_is_told_as_the_table_says() -> None:
    event = LogEvent(
        signature="site.licence",
        role="cause",
        code="C210",
        kind="licence",
        artifact="train.log",
        row=3,
        text="licence server: no seat left",
        meaning="No seat of the licence is left.",
        action="ask the desk",
    )
    logs = Logs(files=(LogFile("train.log", kind="merged"),), events=(event,))
    finding = diagnose(Evidence(logs=logs)).findings[0]

    assert (finding.code, finding.details["kind"]) == ("C210", "licence")
    assert finding.summary == "No seat of the licence is left"
    assert finding.remedies[0] == "ask the desk"


def test_text_without_the_error_at_its_head_needs_an_exception() -> None:
    text = "skipping: [Errno 24] Too many open files"

    assert find_config_error(text) is None
    assert find_config_error(text, is_raised=True) is not None


@pytest.mark.parametrize(
    ("code", "name"), [(22703, "2.27.3"), (2708, "2.7.8"), (21805, "2.18.5"), (23004, "2.30.4")]
)
def test_number_of_nccl_is_written_as_a_version(code: int, name: str) -> None:
    assert name_nccl_version(code) == name


def test_crash_of_another_program_on_the_host_is_none_of_the_job(tmp_path: Path) -> None:
    segfault = (
        "python[7302]: segfault at 0 ip 00007fb6 sp 00007ffe error 4 in libc.so.6[167ad8,7fb6]"
    )
    logs = {
        "n0/kern.log": f"Nov 21 19:19:47 n0 kernel: {segfault}\n",
        "n0/train.log": trace("ModuleNotFoundError: No module named 'x'", "train.py:2") * 2,
    }
    finding = first(tmp_path, logs)

    assert finding.code == "C210"
