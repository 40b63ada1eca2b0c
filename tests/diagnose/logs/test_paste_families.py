"""Families of pastes: whose a line is, and which of two causes came first; beside look-alikes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest
from tests.logs.test_told import say

from whystuck.evidence.finding import Finding


class Told(NamedTuple):
    """A paste, and what is to be said of it."""

    name: str
    lines: tuple[str, ...]
    code: str
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    words: str = ""


def _wait(rank: int, op: str = "ALLREDUCE", seq: int = 900) -> str:
    return (
        f"[rank{rank}]:[E1104 02:48:16.758434843 ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog "
        f"caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=1, "
        "NumelOut=1, Timeout(ms)=600000) ran for 600062 milliseconds before timing out."
    )


def lack(rank: int, *ops: str) -> str:
    """Write what Horovod prints of the ops that a rank lacks."""
    return f"[1,0]<stderr>:{rank}: [{', '.join(f'allreduce.{op}' for op in ops)}]"


def _section(
    rank: int, *lines: str, path: str = "logs/none_a/attempt_0/{}/stdout.log"
) -> list[str]:
    return [f"==> {path.format(rank)} <==", *lines, ""]


def show_bar(name: str, share: int) -> str:
    """Write a bar of a download."""
    return f"{name}: {share:3}%|##    | 545M/4.92G [04:11<33:02, 2.21MB/s]"


_MASTER = "gpt-master-0:66:310 [0] NCCL INFO [Service thread] Connection closed by localRank 0"
_POD_LIST = (
    "$ kubectl get pods",
    "gpt-master-0    0/1   Error     0     7h",
    "gpt-worker-1    0/1   Error     0     7h",
)
_DESCRIBED = ("$ kubectl describe pod gpt-worker-1", "Name:             gpt-worker-1")
_EVICTED = (
    "Status:           Failed",
    "Reason:           Evicted",
    "Message:          The node was low on resource: memory. Container torch was using 90Gi.",
)
_OOM = (
    "    Last State:     Terminated",
    "      Reason:       OOMKilled",
    "      Exit Code:    137",
)
SEL = " 3a3 | 02/27/2025 | 03:24:59 | {} | {} | Asserted"
_ORTE = (
    "ORTE has lost communication with a remote daemon.",
    "  HNP daemon   : [[40118,0],0] on node n1",
    "  Remote daemon: [[40118,0],6] on node n7",
    "therefore will terminate the job.",
)
_SEGV = (
    "[n3:11870] *** Process received signal ***",
    "[n3:11870] Signal: Segmentation fault (11)",
    "[n3:11870] Failing at address: 0x8",
)
TRACE = (
    "Traceback (most recent call last):",
    '  File "/srv/reader.py", line 120, in __next__',
    "    sparse = self.vocab[col]",
    "KeyError: 'cat_19'",
)
_GLOO = "RuntimeError: [/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.4]:1742"
_XID = (
    "[Wed Sep 10 02:07:11 2025] NVRM: Xid (PCI:0000:bd:00): 119, pid=51106, name=python, Timeout "
    "after 6s of waiting for RPC response from GPU6 GSP!"
)
NPU = (
    "RuntimeError: NPU out of memory. Tried to allocate 7.50 GiB (NPU 6; 60.97 GiB total capacity; "
    "55.12 GiB already allocated)"
)
_STORE = (
    "[rank{0}]:[W610 22:05:33.833607237 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl("
    "fd=4, addr=[h2]:5586{0}, remote=[h1]:29400): Broken pipe"
)
MESH = (
    "[rank{}]: RuntimeError: Gloo connectFullMesh failed with [/gloo/transport/tcp/pair.cc:144] "
    "timed out connecting: SO_ERROR: Connection refused, remote=[{}]:39190, local=[{}]:48822, rank="
)
FLUSH = (
    "[2025-05-19 04:03:1{0},223] [WARNING] [stage3.py:2139:step] {0} pytorch allocator cache "
    "flushes since last step. this happens when there is high memory pressure"
)


_STATUS = (
    "[rank3]:[E1011 02:11:41.003117820 ProcessGroupNCCL.cpp:1785] [PG ID 1 PG GUID 1(metrics) "
    "Rank 3] Exception (either an error or timeout) detected by watchdog at work: 12, last "
    "enqueued NCCL work: 12, last completed NCCL work: 11."
)


def label(label: str, *lines: str) -> tuple[str, ...]:
    """Put a label before lines."""
    return tuple(label + line for line in lines)


def _workers(head: str) -> tuple[str, ...]:
    names = [head.format(number) for number in (0, 1, 2, 3)] * 3
    steps = [f"{name}it {step} qps 8{step}1" for step, name in enumerate(names)]
    return (
        *steps,
        *label(head.format(2), *TRACE),
        *(head.format(n) + _GLOO for n in (0, 1, 3)),
    )


_CASES = (
    # Pods that are described, beside the log of another pod.
    Told("evicted", (_MASTER, *_POD_LIST, *_DESCRIBED, *_EVICTED), "C207", (), ("gpt-worker-1",)),
    Told("evicted-cut", (_MASTER, *_EVICTED), "C207"),
    Told(
        "evicted-command",
        (_MASTER, "$ kubectl -n ml describe pod gpt-worker-1 | tail -30", *_EVICTED),
        "C207",
        (),
        ("gpt-worker-1",),
    ),
    Told(
        "sidecar",
        (_MASTER, "$ kubectl describe pod gpt-worker-1 | grep -A9 daemon", *_OOM),
        "C202",
        (),
        ("gpt-worker-1",),
    ),
    # Clouds that take machines back.
    Told(
        "spot-drain",
        (
            "INF Requesting instance drain kind=SPOT_ITN node-name=ip-10-2-9-12.ec2.internal",
            "[rank2]: " + _GLOO,
        ),
        "C207",
        (),
        ("ip-10-2-9-12.ec2.internal",),
    ),
    Told(
        "spot-karpenter",
        ("3m   Warning   SpotInterrupted   node/gpu-b7   Spot interrupted", "[rank0]: " + _GLOO),
        "C207",
        (),
        ("gpu-b7",),
    ),
    # A controller's log, beside what the launcher and others there say.
    Told(
        "sel",
        (*_ORTE, *_SEGV, "$ ssh n7 ipmitool sel elist", SEL.format("DIMM", "Uncorrectable ECC")),
        "C208",
        (),
        ("n7",),
    ),
    Told(
        "sel-cpu",
        ("$ ssh n7 ipmitool sel list", SEL.format("Processor #0xeb", "IERR")),
        "C208",
        (),
        ("n7",),
    ),
    Told("lost-node", (*_ORTE, *_SEGV), "C208", (), ("n7",)),
    # Files that tail prints, with the ranks of their names.
    Told(
        "files-folders",
        (*_section(1, "[rank1]: " + _GLOO), *_section(3, *TRACE)),
        "C204",
        (3,),
    ),
    Told(
        "files-names",
        (
            *_section(0, _GLOO, path="out.rank{}.log"),
            *_section(2, *TRACE, path="out.rank{}.log"),
        ),
        "C204",
        (2,),
    ),
    Told(
        "debugger",
        (
            "[rank0]: RuntimeError: [Rank 0]: Ranks 5 failed to pass monitoredBarrier in 900000 ms",
            *_section(5, "> /app/step.py(21)fit()", "-> x = f()", "(Pdb) "),
        ),
        "H101",
        (5,),
        words="prompt of a debugger in fit (step.py:21)",
    ),
    Told(
        "debugger-ipdb",
        (*map(_wait, (0, 1, 3)), *_section(2, "ipdb> ", path="r/rank_{}.txt")),
        "H101",
        (2,),
        words="prompt of a debugger",
    ),
    # Horovod: who lacks the ops of the others left them.
    Told(
        "horovod",
        (
            "[1,0]<stderr>:Missing ranks:",
            *(lack(rank, "metrics") for rank in (0, 1, 2)),
            lack(3, "fc.bias", "fc.weight"),
        ),
        "H101",
        (3,),
    ),
    # torchfrtrace and the watchdogs tell of one wait.
    Told(
        "frtrace",
        (
            "Not all ranks joining collective, sequence number: 900",
            "missing ranks: {3}",
            "expected ranks: {0, 1, 2, 3}",
            _wait(0),
            _wait(3, seq=12),
            _STATUS,
        ),
        "H101",
        (3,),
    ),
    # Downloads beside a first collective.
    Told(
        "download-bar",
        (label("1: ", show_bar("model-00003-of-00004.safetensors", 13))[0], *map(_wait, (0, 2, 3))),
        "H117",
        (1,),
    ),
    Told(
        "download-other-done",
        (
            "[rank1]: " + show_bar("weights.bin", 12),
            "[rank0]: " + show_bar("weights.bin", 100),
            *map(_wait, (0, 2, 3)),
        ),
        "H117",
        (1,),
    ),
    Told(
        "download-again",
        (
            "[rank2]: 'Read timed out. (read timeout=10)' thrown while requesting GET https://h/x",
            *map(_wait, (0, 1)),
        ),
        "H117",
        (2,),
    ),
    # Workers that are numbered by their programs.
    Told("workers", _workers("[2025-01-09 02:00:00] w{:02} "), "C204", (2,)),
    Told("workers-bare", _workers("worker{}: "), "C204", (2,)),
    Told("seats", _workers("[n1:r{}] "), "C204", (2,)),
    Told("seats-slash", _workers("[node-b/rank{}] "), "C204", (2,)),
    # Processes and devices of ranks.
    Told(
        "ps-local",
        (
            *(f" 5110{n} Dl   os_acq    python train.py --local-rank {n}" for n in (4, 5, 6)),
            "root@dgx07:~# dmesg -T",
            _XID,
        ),
        "C208",
        (6,),
        ("dgx07",),
    ),
    Told(
        "npu",
        (
            *TRACE[:3],
            NPU,
            "[ERROR] 2025-04-10-02:58:16 (PID:21406, Device:6, RankID:14) ERR99999 UNKNOWN",
            "[ERROR] 2025-04-10-03:28:17 (PID:21400, Device:0, RankID:8) ERR02200 DIST call bad",
        ),
        "C206",
        (14,),
    ),
    # Devices that compute wrong.
    Told(
        "megatron-sdc",
        (
            "ERROR:rerun_state_machine:Possible persistent error! Rank 85, node b10, device 5, i",
            "srun: error: b19: tasks 0-7: Exited with exit code 16",
        ),
        "C208",
        (85,),
        ("b10",),
    ),
    Told("sdc-said", ("silent data corruption confirmed on GPU 3 of rank 7",), "C208", (7,)),
    # Why a write failed stands below.
    Told(
        "quota",
        (
            "0: Traceback (most recent call last):",
            '0:   File "/e/site-packages/torch/serialization.py", line 886, in _save',
            "0: RuntimeError: PytorchStreamWriter failed writing file data/412: file write failed",
            "0: During handling of the above exception, another exception occurred:",
            "0: OSError: [Errno 122] Disk quota exceeded",
            *map(_wait, (1, 2)),
        ),
        "C204",
        (0,),
        words="quota exceeded",
    ),
    # A store that went away, and addresses that lead nowhere.
    Told("store", (_STORE.format(8), _STORE.format(9)), "C209", words="lost the store on h1"),
    Told(
        "loopback",
        (
            MESH.format(0, "127.0.1.1", "192.168.1.20") + "0",
            "lab@rex:~$ getent ahosts $(hostname) | head -1",
            "127.0.1.1       STREAM rex",
        ),
        "H121",
        (),
        ("rex",),
        "loopback",
    ),
    Told(
        "loopback-unknown",
        (MESH.format(0, "127.0.1.1", "192.168.1.20") + "0",),
        "H121",
        words="a host gave the others its loopback address",
    ),
    Told("flushes", tuple(FLUSH.format(n) for n in (5, 6, 7)), "S311", words="5 to 7 times"),
    Told(
        "kernel-raises-nothing",
        (
            "[Wed Jun 18 02:42:57 2025] LNetError: 2089:0:(o2iblnd_cb.c:344:kib()) Timed out tx",
            _wait(1),
        ),
        "C211",
    ),
)


@pytest.mark.parametrize("told", _CASES, ids=[one.name for one in _CASES])
def test_cause_and_culprit_are_told(tmp_path: Path, told: Told) -> None:
    finding = find_first(tmp_path, *told.lines)

    assert finding.code == told.code, finding.summary
    assert tuple(finding.culprits.ranks) == told.ranks, finding.summary
    assert set(told.nodes) <= set(finding.culprits.nodes), finding.summary
    assert "gpt-master-0" not in finding.culprits.nodes
    assert told.words in finding.summary


def find_first(folder: Path, *lines: str) -> Finding:
    """Diagnose lines, and return the first finding."""
    report = say(folder, *lines)
    return report.findings[0]
