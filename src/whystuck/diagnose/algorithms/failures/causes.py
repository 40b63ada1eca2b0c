"""Which failures are causes and which only follow from the end of a peer."""

from __future__ import annotations

import re

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.config_errors import find_config_error
from whystuck.diagnose.algorithms.stacks.frames import is_in
from whystuck.evidence.live import ExitRecord, PythonException

_TIMEOUT = re.compile(
    r"Timed out waiting|wait timeout|Socket Timeout|[Ww]atchdog caught collective operation timeout"
    r"|Timeout waiting for|failed to pass monitoredBarrier|timeout caused pair closure"
    r"|Notify register times out|Getting socket times out"
    r"|Monitored Barrier encountered error running collective|DEADLINE_EXCEEDED: Barrier timed out",
)
_CASCADE = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|recvValue failed"
    r"|sendBytes failed|Connection was likely closed|[Cc]onnection refused|Connection aborted"
    r"|ncclRemoteError|remote process exited|Failed to recv|NCCL communicator was aborted"
    r"|Read error|writev|Bad file descriptor|Horovod has been shut down"
    r"|gloo/transport/|[Pp]air (?:is )?closed|successfully reached monitoredBarrier"
    # Launchers end the workers of loaders with their ranks, and a rank may notice that first.
    r"|DataLoader worker .{1,200} is killed by signal: (?:Terminated|Hangup|Interrupt)",
)
_CASCADE_TYPES = {
    "ActorDiedError",
    "ActorUnavailableError",
    "BrokenProcessPool",
    "CalledProcessError",
    "ChildFailedError",
    "ControllerError",
    "KeyboardInterrupt",
    "NodeDiedError",
    "ProcessExitedException",
    "ProcessRaisedException",
    "RayActorError",
    "RendezvousClosedError",
    "RendezvousGracefulExitError",
    "SignalException",
    "TrainingFailedError",
    "TuneError",
    "WorkerCrashedError",
    "WorkerGroupError",
}
# Errors of connections that torch makes; others may be to a server that is no peer.
_TORCH_TYPES = {"RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError"}
_PEER_PATHS = ("horovod/", "torch/distributed/", "/multiprocessing/")
# The codes whose rules tell of an exception, by what it says. The first that matches names it.
_KNOWN = tuple(
    (code, re.compile(pattern))
    for code, pattern in (
        (
            codes.REDUCER_ERROR,
            (
                r"Expected to have finished reduction in the prior iteration"
                # what Lightning says in its place, and Megatron of a reducer of its own
                r"|\bparameters that were not used in producing (?:the )?loss\b"
                r"|Communication call has not been issued for this bucket"
                r"|Expected to mark a variable ready only once"
                r"|DDP expects same model across all ranks"
                r"|in this process with (?:sizes|strides) .{0,200} appears not to match"
            ),
        ),
        (
            codes.HOST_OUT_OF_MEMORY,
            r"^ray\.exceptions\.OutOfMemoryError|node running low on memory",
        ),
        (
            codes.DEVICE_OUT_OF_MEMORY,
            (
                r"(?:CUDA|HIP|NPU|XPU|MLU|MUSA) out of memory|RESULT_ERROR_OUT_OF_DEVICE_MEMORY"
                r"|^(?:torch\.)?(?:cuda\.)?OutOfMemoryError"
            ),
        ),
        (
            codes.HARDWARE_ERROR,
            r"uncorrectable ECC error|[Mm]ulti-bit ECC error|RESULT_ERROR_DEVICE_LOST",
        ),
        (
            codes.HOST_OUT_OF_MEMORY,
            r"^MemoryError\b|DefaultCPUAllocator|std::bad_alloc|Cannot allocate memory",
        ),
        (
            codes.HOST_OUT_OF_MEMORY,
            (
                r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) (?:exited unexpectedly"
                r"|is killed by signal: (?!Terminated|Hangup|Interrupt))"
            ),
        ),
        (
            codes.P2P_BLOCKED,
            (
                r"peer access is not supported between|peer mapping resources exhausted"
                r"|PeerAccessUnsupported|PEER_ACCESS_UNSUPPORTED"
            ),
        ),
        (codes.DEVICE_FAULT, r"CUDA error: |HIP error: |CUBLAS_STATUS_|CUDNN_STATUS_|cuDNN error"),
        (codes.OP_MISMATCH, r"Detected mismatch between collectives on ranks"),
        (
            codes.RENDEZVOUS_FAILED,
            (
                r"Rendezvous\w*Error|DistStoreError|clients joined|retrieving ncclUniqueId"
                r"|while trying to connect to \(|connect to any network address of"
                r"|Ping failed, invalid value|connectFullMesh failed"
                r"|initializing process group in store based barrier"
            ),
        ),
        (
            codes.PEER_LOST,
            (
                r"[NH]CCL [Ee]rror|ncclRemoteError|ncclSystemError|ncclInternalError"
                # What torch_npu raises on ranks that wait; the lines behind it say for what. Other
                # codes are of the rank itself: a wrong argument, no memory, no such operation.
                r"|(?:HCCL function error: |OPS function error: Hccl).{0,300}?"
                r"error code is (?:[4679]|1[1-4]|19|2[01])\b"
                r"|DIST call hccl api failed|\bE[IJ]0\d{3}: "
            ),
        ),
    )
)
# Peers of different sizes or types: gloo notices on one of them, not on the guilty one.
_MISMATCH = re.compile(
    r"op\.preamble\.|Enforce|mismatch(?:(?!mismatch).)*?(?:bytes|size) from"
    r"|Received data size doesn't match",
    re.DOTALL,
)
_BYTES = re.compile(r"length <= op\.(?:nbytes|buf->size_)\. (\d{1,18}) vs (\d{1,18})")

CRASH_SIGNALS = {"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGTRAP", "SIGSYS"}
# Numbers on Linux; a table, because evidence may be read on another system.
_SIGNALS = {
    1: "SIGHUP",
    2: "SIGINT",
    3: "SIGQUIT",
    4: "SIGILL",
    5: "SIGTRAP",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "SIGTERM",
    24: "SIGXCPU",
    31: "SIGSYS",
}
# A shell reports the signal that ended a command as a code this much higher.
_SHELL_OFFSET = 128


def is_timeout(item: PythonException) -> bool:
    """Tell whether a collective or a connection ran into its time limit."""
    return bool(_TIMEOUT.search(item.message))


def is_cascade(item: PythonException) -> bool:
    """Tell whether an exception only says that a peer is gone or late."""
    short = item.type.rpartition(".")[2]
    if short in _CASCADE_TYPES or is_timeout(item):
        return True
    return bool(_CASCADE.search(item.message)) and not _is_to_others(item)


def _is_to_others(item: PythonException) -> bool:
    """Tell whether a connection that broke was not to a peer: torch had no part in it."""
    short = item.type.rpartition(".")[2]
    if short in _TORCH_TYPES or not item.frames:
        return False
    return not any(part in frame.file for frame in item.frames for part in _PEER_PATHS)


def write_exception(item: PythonException) -> str:
    """Write an exception as the last line of a traceback does, with the rest of its message."""
    return f"{item.type}: {item.message}" if item.message else item.type


_SET_UP = {"init_process_group", "_new_process_group_helper", "new_group", "rendezvous"}


def name_known(item: PythonException) -> str:
    """Return the code whose rule tells of an exception; empty where only its type does."""
    text = write_exception(item)
    if _is_store_timeout(item):
        return codes.RENDEZVOUS_FAILED
    for code, pattern in _KNOWN:
        if code == codes.DEVICE_FAULT and find_config_error(text, is_raised=True):
            return codes.CONFIG_ERROR
        if pattern.search(text):
            return code
    return codes.CONFIG_ERROR if find_config_error(text, is_raised=True) else ""


def _is_store_timeout(item: PythonException) -> bool:
    """Return whether a store of a file or of one process gave up while a group was set up.

    It says neither for what nor for whom it waited. In code of the job, it may be any key.
    """
    return item.message.strip() == "Wait timeout" and any(
        frame.function in _SET_UP and is_in(frame, "torch/distributed/") for frame in item.frames
    )


def is_size_complaint(item: PythonException) -> bool:
    """Tell whether an exception is a transport that got fewer or more bytes than it expected."""
    return bool(_MISMATCH.search(item.message))


def find_byte_counts(text: str) -> tuple[int, int] | None:
    """Find the bytes that gloo received and those that it expected; None when it does not tell."""
    match = _BYTES.search(text)
    return (int(match[1]), int(match[2])) if match else None


def name_signal(ended: ExitRecord) -> str:
    """Return the name of the signal that ended a process, or an empty string."""
    if ended.signal:
        return _SIGNALS.get(ended.signal, f"signal {ended.signal}")
    if ended.code is not None and ended.code > _SHELL_OFFSET:
        return _SIGNALS.get(ended.code - _SHELL_OFFSET, "")
    return ""


def name_fatal(reason: str) -> str:
    """Return the signal that a fatal error of faulthandler stands for."""
    for words, name in _FATALS.items():
        if words in reason:
            return name
    return reason or "fatal error"


_FATALS = {
    "Segmentation fault": "SIGSEGV",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
    "Floating": "SIGFPE",
    "Aborted": "SIGABRT",
}
