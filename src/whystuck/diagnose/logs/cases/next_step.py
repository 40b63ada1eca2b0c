"""The one command that would decide where logs do not: for what, and on which rank or host."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from whystuck.diagnose.algorithms.failures.causes import name_signal
from whystuck.diagnose.logs.cases.parts import list_ranks, name_job
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.ranks import name_ranks

# The names that Kubernetes gives to pods of jobs.
_POD = re.compile(r"-(?:worker|master|launcher|chief|ps)-\d+$|-[0-9]+-[a-z0-9]{5}$")
_ENDS = ("c10d.teardown", "elastic.abort", "elastic.")
NEXT_RUN = (
    "export TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1   # with NCCL, for the next "
    "run: its dumps tell who is missing"
)
_NEXT_RUN_GLOO = (
    "export TORCH_DISTRIBUTED_DEBUG=DETAIL TORCH_CPP_LOG_LEVEL=INFO   # for the next run: each "
    "rank then says in which call it is"
)


def choose_command(view: LogView, silent: Sequence[int]) -> str:
    """Choose what to do where ranks waited and nothing tells why.

    Args:
        view: The logs.
        silent: The ranks of which there is no word.
    """
    has_ended = bool(view.exits or view.exceptions or any(view.list_signatures(*_ENDS)))
    if silent and has_ended:
        return (
            f"whystuck logs LOG...   # with the {_logs(silent)} of {name_ranks(silent)}"
            f"{_place(view, silent)}: nothing is known of {_them(silent)}"
        )
    if silent:
        pids = {rank: pid for file in view.files for rank, pid in file.pid_by_rank.items()}
        first = next((rank for rank in silent if rank in pids), silent[0])
        return (
            f"py-spy dump --pid {pids.get(first, 'PID')}   # of {name_ranks([first])}"
            f"{_place(view, [first])}: where it is; nothing is known of {name_ranks(silent)}"
        )
    if not _has_nccl(view):
        return _NEXT_RUN_GLOO
    if has_ended:
        return NEXT_RUN
    return "ncclras -v   # on any host, while the job hangs: which ranks are behind, and in what"


def choose_host_command(view: LogView, ranks: Sequence[int]) -> str:
    """Choose what to do where ranks lost a peer and nothing tells why it went."""
    silent = sorted(view.ranks - view.told_ranks - set(ranks))
    nodes = _list_nodes(view, silent or ranks)
    where = " and ".join(nodes[:4]) if nodes else "each host"
    who = f", where {name_ranks(silent)} ran" if silent and nodes else ""
    return f"dmesg -T | tail -50   # on {where}{who}: whether the kernel ended a process"


def choose_next(view: LogView) -> str:
    """Choose the one command that would decide where no finding is sure; empty where none would.

    What takes a look at one host goes before what needs another log, and that before a new run.
    """
    looks = (
        _look_for_killer,
        _ask_scheduler,
        _read_silent_end,
        _dump_other_stacks,
        _read_device_log,
        _ask_nccl,
    )
    return next((told for look in looks if (told := look(view))), "")


def _look_for_killer(view: LogView) -> str:
    """Ask the kernel who ended a process by SIGKILL, as it says so where memory ran out."""
    ends = [one for one in view.exits if name_signal(one) == "SIGKILL"]
    ends = [one for one in ends if not one.after_launcher_kill]
    if not ends or any(view.list_signatures("oom.kernel")):
        return ""
    nodes = sorted({one.node for one in ends} - {""})
    pods = [node for node in nodes if _POD.search(node)]
    ranks = sorted({one.rank for one in ends} - {-1})
    who = name_ranks(ranks[:4]) if ranks else "the process"
    if pods:
        return f"kubectl describe pod {pods[0]}   # its Last State tells why {who} was killed"
    pid = next((f" {one.pid}" for one in ends if one.pid), "")
    where = f"on {' and '.join(nodes[:4])}" if nodes else f"on the host of {who}"
    return f"dmesg -T | grep -i 'killed process{pid}'   # {where}: whether the kernel ended {who}"


def _ask_scheduler(view: LogView) -> str:
    """Ask the batch system, where only it says that the job ended."""
    told = any(view.list_signatures("slurm."))
    job = name_job(view)
    if not told or job == "JOB":
        return ""
    return (
        f"sacct -j {job} --format=JobID,State,ExitCode,DerivedExitCode,MaxRSS,NodeList   # who or "
        "what ended the job"
    )


def _read_silent_end(view: LogView) -> str:
    """Ask for the output of a rank that ended with a code and without a word."""
    left = sorted(view.ended_ranks - view.raised_ranks)
    if not left:
        return ""
    pids = {one.rank: one.pid for one in view.exits if one.rank in left and one.pid}
    pid = f" (process {pids[left[0]]})" if len(left) == 1 and left[0] in pids else ""
    return (
        f"whystuck logs LOG...   # with the {_logs(left)} of {name_ranks(left)}{pid}"
        f"{_place(view, left)}: it ended with an error, and its traceback is not here; torchrun "
        "keeps it with `--log-dir DIR --tee 3`"
    )


def _dump_other_stacks(view: LogView) -> str:
    """Ask for the stacks of the ranks that nobody has looked at, where some stacks are there."""
    seen = {one.rank for one in view.evidence.stacks if not one.worker}
    left = sorted(view.ranks - seen)
    if not seen or not left:
        return ""
    return (
        f"py-spy dump --pid PID   # of {name_ranks(left[:8])}{_place(view, left)}: their stacks "
        "are missing beside those that are here"
    )


def _read_device_log(view: LogView) -> str:
    """Ask for the log of the device where ranks only say that a wait for it ended badly."""
    waits = list(view.list_signatures("npu.wait"))
    if not waits:
        return ""
    ranks = list_ranks(waits)
    who = f"{name_ranks(ranks[:8])}{_place(view, ranks)}" if ranks else "each rank that says so"
    return f"grep -rn ERROR ~/ascend/log   # of {who}: what failed before the wait"


def _ask_nccl(view: LogView) -> str:
    """Ask NCCL to say which call failed, where it only said that one did."""
    if not any(view.list_signatures("nccl.own_error")):
        return ""
    return (
        "export NCCL_DEBUG=INFO   # for the next run: the line of NCCL above the error names the "
        "call that failed, and on which device"
    )


def dump_native(view: LogView, ranks: Sequence[int]) -> str:
    """Ask for the stacks of a process whose threads hang outside of Python."""
    pids = {rank: pid for file in view.files for rank, pid in file.pid_by_rank.items()}
    pid = pids.get(ranks[0], "PID") if ranks else "PID"
    who = f"{name_ranks(ranks)}{_place(view, ranks)}" if ranks else "that process"
    return (
        f"gdb -p {pid} -batch -ex 'thread apply all bt'   # of {who}: what its watchdog hangs in, "
        "a call of the driver or the GIL"
    )


def _has_nccl(view: LogView) -> bool:
    return any(view.list_signatures("c10d.watchdog_timeout", "c10d.pg_status", "nccl."))


def _place(view: LogView, ranks: Iterable[int]) -> str:
    nodes = _list_nodes(view, ranks)
    return f" on {' and '.join(nodes[:4])}" if nodes else ""


def _list_nodes(view: LogView, ranks: Iterable[int]) -> list[str]:
    return sorted({view.node_by_rank[rank] for rank in ranks if rank in view.node_by_rank})


def _logs(ranks: Sequence[int]) -> str:
    return "log" if len(ranks) == 1 else "logs"


def _them(ranks: Sequence[int]) -> str:
    return "it" if len(ranks) == 1 else "them"
