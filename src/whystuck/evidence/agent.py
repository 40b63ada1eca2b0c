"""What an agent tells of the processes of its node, and of the traces that were asked for.

These cross the RPC of the agent as JSON: unknown keys are ignored, missing ones take their default.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

AGENT_FILE = "agent.json"
"""In the folder of an agent: who serves it, an `AgentRecord`."""
FABRIC_SOCKET = "dynolog"
"""In the folder of an agent: where Kineto's clients send; the name is theirs."""
CLIENT_PREFIX = "dynoconfigclient"
"""How names of the sockets of Kineto's clients begin."""
KINETO_CONFIG_FILE = "kineto.conf"
"""In the folder of an agent: how often the processes that are led there ask, as Kineto reads it."""
KINETO_CONFIG_TEXT = "ON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n"
RPC_SOCKET = "rpc"
"""In the folder of an agent: where commands of this user connect."""
DYNO_PORT = 1778


class ProcessKind(StrEnum):
    """What a process that knows Kineto is to its job."""

    RANK = "rank"
    PROCESS = "process"
    """One with torch and without a rank: a job of one process, or a notebook."""
    LAUNCHER = "launcher"
    HELPER = "helper"
    """One below a rank, such as a worker of a data loader."""


class AgentRecord(msgspec.Struct, kw_only=True):
    """``agent.json``: a running agent; ``job_dir`` is that of its job, empty for a whole node."""

    pid: int = 0
    node: str = ""
    folder: str = ""
    port: int = 0
    is_abstract: bool = False
    job_dir: str = ""
    version: str = ""
    started_ns: int = 0
    metrics_port: int = 0


class ProcessEntry(msgspec.Struct, kw_only=True, frozen=True):
    """One process that has asked this agent for work.

    ``pid`` is the host's number, ``told_pids`` are its own and its ancestors' as it sees them,
    ``job_number`` is what Kineto sent (``SLURM_JOB_ID``, or 0), ``job`` the name of the job. A rank
    or size of -1 is unknown, as are ``steps``: optimizer steps that it had made at the
    time ``steps_ns``. Where ``can_answer`` is false its socket was removed, and no order reaches it
    any more. ``uid`` is whose it was when it asked, as the kernel tells; -1 is unknown.
    """

    pid: int
    told_pids: tuple[int, ...] = ()
    job_number: int = 0
    job: str = ""
    node: str = ""
    kind: ProcessKind = ProcessKind.PROCESS
    rank: int = -1
    local_rank: int = -1
    world_size: int = -1
    command: str = ""
    steps: int = -1
    is_busy: bool = False
    first_seen_ns: int = 0
    seen_ns: int = 0
    can_answer: bool = True
    steps_ns: int = 0
    uid: int = -1


class TraceRequest(msgspec.Struct, kw_only=True, frozen=True):
    """A trace that somebody wants; ``iterations`` of 0 means ``duration_ms``.

    ``ranks``, ``pids`` and ``job`` choose processes, and empty means all. A pid matches a process
    or its ancestor. ``start_time_ms`` is wall-clock time since the epoch, 0 for at once.
    ``start_iteration`` of -1 means the next; a ``roundup`` above 1 lets all ranks begin at the next
    multiple of it. ``output`` is where collected files go, ``log_file`` where Kineto is to write
    (dyno's option). ``stop_s`` is when a request that nobody has answered is given up. Files are
    ``packed`` by gzip when they are collected.
    """

    id: str = ""
    iterations: int = 0
    duration_ms: int = 500
    warmup_ms: int = 0
    start_time_ms: int = 0
    start_iteration: int = -1
    roundup: int = 1
    ranks: tuple[int, ...] = ()
    pids: tuple[int, ...] = ()
    job: str = ""
    process_limit: int = 1000
    shapes: bool = False
    stacks: bool = False
    memory: bool = False
    flops: bool = False
    modules: bool = False
    output: str = ""
    log_file: str = ""
    stop_s: float = 120.0
    packed: bool = True


class TraceState(StrEnum):
    """How far the trace of one process is; those of `ENDED` are final."""

    PENDING = "pending"
    WARM_UP = "warm-up"
    COLLECTING = "collecting"
    WRITING = "writing"
    WRITTEN = "written"
    CANCELLED = "cancelled"
    DIED = "died"
    REFUSED = "refused"
    BUSY = "busy"
    EXPIRED = "expired"
    FAILED = "failed"


ENDED = frozenset(
    {
        TraceState.WRITTEN,
        TraceState.CANCELLED,
        TraceState.DIED,
        TraceState.REFUSED,
        TraceState.BUSY,
        TraceState.EXPIRED,
        TraceState.FAILED,
    }
)


class TraceProgress(msgspec.Struct, kw_only=True, frozen=True):
    """The trace of one process for one request.

    ``reason`` says why it is in its state, in one sentence, where the state does not say it all.
    ``file`` is where the trace lies in the end: a path of that node or a URL.
    """

    request_id: str
    pid: int
    rank: int = -1
    node: str = ""
    state: TraceState = TraceState.PENDING
    reason: str = ""
    file: str = ""
    file_bytes: int = 0
    requested_ns: int = 0
    collecting_ns: int = 0
    ended_ns: int = 0
