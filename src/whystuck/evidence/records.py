"""The JSON artifacts of an evidence folder: what collectors write and parsers read.

Each structure is one file. Unknown keys are ignored, missing ones take their default, so that
folders of older and newer versions stay readable.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

INCIDENT_FILE = "incident.json"
JOB_FILE = "job.json"
PROC_FILE = "proc.json"
BEAT_FILE = "beat.json"
PEERS_FILE = "peers.json"
SKIPPED_FILE = "skipped.json"
EXIT_FILE = "exit.json"
EXCEPTION_FILE = "exception.json"
THREAD_ERRORS_FILE = "thread-errors.json"
LEAVING_FILE = "leaving.json"
FATAL_FILE = "fatal.txt"
FAULTHANDLER_FILE = "faulthandler.txt"
# A short trace of Kineto with stacks, where nothing else could take them.
PROFILER_STACKS_FILE = "profiler-stacks.json"
FR_PICKLE_FILE = "fr.pickle"
FR_JSON_FILE = "fr.json"
# Further dumps of a rank. Their names sort after the first one, which is read where it is there.
FR_GLOO_FILE = "fr_gloo.pickle"
FR_TORCH_FILE = "fr_torch.pickle"
# The ring of all ops of a rank; what the launcher's earlier attempts left has their number.
OP_LOG_FILE = "ops.ring.gz"
OLD_OP_LOG_FILE = "ops-attempt-{attempt}.ring.gz"
MARKS_FILE = "marks.ring.gz"
OLD_MARKS_FILE = "marks-attempt-{attempt}.ring.gz"
# Those of the whole run: states one after the other, each of what was new.
MARK_HISTORY_FILE = "marks-{number:06d}.ring"
# What ranks and the command itself print. The last attempt of the launcher has the plain name; a
# second process that claims the same rank has a log of its own.
LOG_FILE = "log.txt"
OLD_LOG_FILE = "log-attempt-{attempt}.txt"
TWIN_LOG_FILE = "log-pid-{pid}.txt"
LAUNCHER_LOG_FILE = "launcher.txt"
INSPECT_FILE = "inspect.jsonl"
# A dump of the device of a rank, and what cuda-gdb says of it.
GPU_CORE_FILE = "gpu.cudacore"
GPU_KERNELS_FILE = "gpu-kernels.txt"
EXECUTED_FILE = "executed.lines.gz"
SWITCH_FILE = "switch.json"
GAPS_FILE = "gaps.json"
SOURCES_DIR = "sources"
SOURCES_INDEX_FILE = "index.json"
STACKS_GLOB = "stacks-*.json"
WORKER_DIR_PREFIX = "worker-"
RANK_DIR_PREFIX = "rank-"


class SignalRecord(msgspec.Struct, kw_only=True):
    """The first signal that came to ``whystuck run`` itself; ``outside_signal`` is 0 without one.

    No rank had made progress for ``idle_s`` when it came, and ``is_moving`` is whether that is no
    longer than usual; both are null when no rank was watched.
    """

    outside_signal: int = 0
    outside_ns: int = 0
    sender_pid: int = 0
    sender: str = ""
    is_typed: bool = False
    idle_s: float | None = None
    is_moving: bool | None = None


class JobRecord(SignalRecord, kw_only=True):
    """``job.json``: what was started, where, with which versions, and how it ended.

    ``id`` is the name that the scheduler or the launcher gave the job, empty when it has none.
    ``killed_ns`` is when whystuck itself ended the job because it was stuck, 0 when it did not.
    ``restarts`` is how often the command, or its ranks by the launcher, had been started again.
    """

    schema_version: int = 1
    id: str = ""
    command: list[str] = []
    cwd: str = ""
    node: str = ""
    nodes: list[str] = []
    started_ns: int = 0
    ended_ns: int | None = None
    exit_code: int | None = None
    whystuck_version: str = ""
    python_version: str = ""
    torch_version: str = ""
    killed_ns: int = 0
    restarts: int = 0


def count_restarts(number: int) -> str:
    """Return a number of restarts in words."""
    return "1 restart" if number == 1 else f"{number} restarts"


class IncidentRecord(SignalRecord, kw_only=True):
    """``incident.json``: why evidence was taken, and what the watcher knew.

    ``verdict`` is that of the last report, ``job`` what was known of the job then. ``is_past`` is
    for who reads it as the answer of a whole run: the job went on after it, and ended well.
    """

    schema_version: int = 1
    kind: str = "stall"
    opened_ns: int = 0
    world_size: int = 0
    stalled_s: float = 0.0
    limit_s: float = 0.0
    longest_gap_s: float = 0.0
    closed_after_s: float | None = None
    command_exit: int | None = None
    cwd: str = ""
    round: int = -1
    attempt: int = 0
    verdict: str = ""
    job: JobRecord | None = None
    is_past: bool = False


@dataclass(frozen=True)
class Connection:
    """An established TCP connection of a process, ends as ``address:port``.

    ``is_resending`` says that the kernel sends bytes again because the other end does not
    acknowledge them.
    """

    local: str = ""
    remote: str = ""
    unsent_bytes: int = 0
    unread_bytes: int = 0
    is_resending: bool = False


@dataclass(frozen=True)
class FileWait:
    """A thread that the kernel keeps in an operation on a file, at one moment.

    ``state`` and ``wchan`` are those of the thread; ``call`` is the system call and ``path`` the
    file it is about, empty when unknown. ``switches`` counts how often the thread was taken off a
    processor: it stays the same while the thread does not run at all. ``mount``, ``fs_type`` and
    ``mount_source`` tell where the file lies; ``is_remote`` is true when a server or a program
    answers for it. ``done`` grows while that file system answers anybody, -1 when unknown.
    """

    thread_id: int = 0
    thread_name: str = ""
    is_main: bool = False
    state: str = "?"
    wchan: str = ""
    call: str = ""
    path: str = ""
    switches: int = 0
    mount: str = ""
    fs_type: str = ""
    mount_source: str = ""
    is_remote: bool = False
    done: int = -1


@dataclass(frozen=True, kw_only=True)
class ProcSample:
    """One look at /proc for one process.

    ``state`` is the letter of /proc/PID/stat (R, S, D, T, Z); ``cpu_s``, ``read_bytes`` and
    ``write_bytes`` grow over the life of the process and include all its threads.
    ``children_cpu_s`` is what its descendants have used, ended ones included; ``switches`` counts
    how often its main thread was taken off a processor; -1 when unknown.
    """

    taken_ns: int
    pid: int
    name: str = ""
    state: str = "?"
    wchan: str = ""
    cpu_s: float = 0.0
    read_bytes: int = 0
    write_bytes: int = 0
    num_threads: int = 0
    command: tuple[str, ...] = ()
    connections: tuple[Connection, ...] = ()
    file_waits: tuple[FileWait, ...] = ()
    children_cpu_s: float = -1.0
    switches: int = -1


class ProcRecord(msgspec.Struct, kw_only=True):
    """``proc.json``: all looks at one process, oldest first."""

    samples: list[ProcSample] = []


class BeatRecord(msgspec.Struct, kw_only=True):
    """``beat.json``: the last heartbeat. ``groups`` maps group name to member ranks.

    ``group_calls`` is how many groups the rank has begun to make, as all have to; -1 when unknown.
    ``begun_groups`` has the members of the last ones as ranges, such as ``0-2,5``, by the names
    that torch gives in the order of the calls.
    """

    pid: int = 0
    age_s: float = 0.0
    stale: bool = False
    answered_without_gil: bool = False
    optimizer_steps: int = 0
    enqueued: int = 0
    completed: int = 0
    p2p_sent: int = 0
    p2p_received: int = 0
    groups: dict[str, list[int]] = {}
    group_calls: int = -1
    begun_groups: dict[str, str] = {}


class SwitchRecord(msgspec.Struct, kw_only=True):
    """``switch.json``: what a rank was asked to record last, and after which optimizer step."""

    rank: int = -1
    generation: int = 0
    step: int = 0
    comm: str = "off"
    marks: str = "off"
    """`mixed` where some kinds of marks are on."""
    kinds: dict[str, str] = {}
    """By kind of marks."""
    inspect: str = "off"
    error: str = ""
    disarmed: dict[str, str] = {}
    """Parts that the probe has disarmed for their cost, and why; see ``collect/disarmed.py``."""


@dataclass(frozen=True, kw_only=True)
class ExitEntry:
    """``exit.json``: how the process of a rank ended: by ``code`` or ``signal``, never both.

    ``ended_ns`` is the wall clock of the observer. ``after_launcher_kill`` is true when the
    launcher was already taking the job down. ``failed_ns`` is when the rank said that it raises, or
    ends with a code, before anybody had ended; 0 when it did not. It was held for a look then:
    ``ended_ns`` tells no order.
    """

    pid: int = 0
    code: int | None = None
    signal: int | None = None
    ended_ns: int = 0
    after_launcher_kill: bool = False
    source: str = "pidfd"
    failed_ns: int = 0


class SourceIndex(msgspec.Struct, kw_only=True):
    """``sources/index.json``: path in the job -> file name beside this index."""

    files: dict[str, str] = {}
