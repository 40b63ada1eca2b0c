"""What a main thread is doing, told from its frames alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from whystuck.diagnose.algorithms.stacks.frames import (
    find_user_frame,
    is_in,
    is_user_frame,
    name_function,
)
from whystuck.evidence.live import ThreadStack
from whystuck.evidence.ops.collectives import Frame

_DISTRIBUTED = "torch/distributed/"
_NOT_COLLECTIVE = ("torch/distributed/elastic/", "torch/distributed/checkpoint/filesystem")
_INNERMOST = 3
_SAVE_PARTS = ("torch/serialization.py", "torch/distributed/checkpoint/", "safetensors/")
_SAVE_WORDS = ("save", "checkpoint", "ckpt", "dump_state")
# As words: `upload_checkpoint` and `download_checkpoint` load nothing.
_LOAD_WORDS = re.compile(r"(?:^|_)(?:load|restore|resume)")
_EVALUATION_WORDS = ("eval", "valid", "infer", "predict", "generate")
_WORKER_WAITS = {"_try_get_data", "_get_data"}
_TRANSFERS = {"send", "recv", "send_object_list", "recv_object_list"}
_TRANSFER_FILE = re.compile(r"(?:^|[/\\])p2p(?:_\w{1,20})?\.py$")
_TRANSFER_NAME = re.compile(r"(?:^|_)i?(?:send|recv|communicate)(?:_|$)")
_COMPILER_PARTS = ("torch/_inductor/", "torch/_dynamo/convert_frame", "/triton/compiler/")
# What runs the code that was compiled lies beside the compiler.
_COMPILED_PARTS = (
    "torch/_inductor/output_code.py",
    "torch/_inductor/utils.py",
    "torch/_inductor/cudagraph_trees.py",
    "torch/_inductor/runtime/",
)
_COMPILED_CALLS = {"__call__", "current_callable", "run"}
_BACKWARD_PARTS = ("torch/_tensor.py", "torch/autograd/__init__.py")
# What hands a call on to C++, and what takes its arguments apart: the call itself is below.
_HANDED_ON = ("torch/_ops.py", "torch/_library/", "torch/utils/_pytree.py")
_FUNCTIONAL = "torch/distributed/_functional_collectives.py"
_C10D = "torch/distributed/distributed_c10d.py"
# Waits for what runs on a device, and there mostly for its collectives.
_DEVICE_WAITS = {"synchronize", "wait", "wait_event", "wait_stream"}
_DEVICE_PARTS = ("torch/cuda/", "torch/xpu/", "torch/npu/", "torch_npu/npu/", "torch/accelerator/")
# Calls that read a value from the device, and so wait for all that is queued there.
_DEVICE_READS = re.compile(r"\.(?:item|tolist|cpu|numpy|nonzero|synchronize)\(")
_DEVICE_READERS = (
    "torch/nn/utils/clip_grad.py",
    "torch/amp/grad_scaler.py",
    "torch/_tensor.py",
    "torch/_tensor_str.py",
)
# Calls that wait in C++ have no frame of their own: the innermost one is their caller's line.
_WAITING_LINE = re.compile(
    r"(?<!\bos)\.wait\(|_c10d_functional\.wait_tensor|store\.(?:get|compare_set)\("
)
# Communication in C++, as gdb and py-spy with native frames name it, and its kernels.
_NATIVE_WAIT = re.compile(
    r"p?nccl(?:All|Reduce|Broadcast|Send|Recv|Group|Kernel|DevKernel|Dev)|c10d::\w|gloo::\w|Hccl[A-Z]"
)
# Waits for what runs on a device; a summary of many stacks may tell the kernel that runs there.
_NATIVE_SYNC = re.compile(r"(?:cu|cuda|hip)(?:Stream|Event|Device|Ctx)Synchronize|aclrtSynchronize")
_KERNEL_RUNS = " pending"
_START_WORDS = {"init_process_group", "_store_based_barrier", "new_group", "rendezvous"}


class Doing(Enum):
    """Classes of places that a main thread can be in."""

    UNKNOWN = "unknown"
    COLLECTIVE = "in a collective"
    BACKWARD = "in backward"
    JOINING = "setting up process groups"
    TEARDOWN = "in destroy_process_group"
    EXITING = "leaving the interpreter"
    INPUT_WORKER = "waiting for a data-loader worker"
    INPUT_MAIN = "loading data in the main process"
    USER = "in user code"


# What a thread waits in for another one of its process.
_THREAD_WAITS = (
    "/threading.py",
    "/queue.py",
    "/concurrent/futures/_base.py",
    "/asyncio/base_events.py",
)


@dataclass(frozen=True)
class Position:
    """Where a main thread is: the class of the place, and the frames, innermost first."""

    doing: Doing
    frames: tuple[Frame, ...] = ()

    @property
    def user(self) -> Frame | None:
        """The innermost frame of the user's code."""
        return find_user_frame(self.frames)


_LOOKING_PARTS = (
    "whystuck/probe/oplog/",
    "whystuck/probe/inspect/",
    "whystuck/probe/calling/wanted.py",
    # Where it lay before: the probe of a job may be of another release.
    "whystuck/probe/wanted.py",
)


def locate(frames: Sequence[Frame], line: str = "") -> Position:
    """Tell what a main thread with these frames, innermost first, is doing.

    Args:
        frames: The frames of the thread.
        line: The text of the line of the innermost frame; empty when it is not known.

    Returns:
        The place.
    """
    stack = tuple(frames)
    # What looks at an op on the way into it is not what the rank does.
    first = next((i for i, frame in enumerate(stack) if not is_in(frame, *_LOOKING_PARTS)), 0)
    doing = _classify(stack[first:])
    if doing is Doing.USER and _WAITING_LINE.search(line):
        doing = Doing.COLLECTIVE
    return Position(doing, stack[first:])


def _classify(frames: tuple[Frame, ...]) -> Doing:
    if not frames:
        return Doing.UNKNOWN
    names = [name_function(frame) for frame in frames]
    if "destroy_process_group" in names:
        return Doing.TEARDOWN
    if _is_exiting(frames, names):
        return Doing.EXITING
    return _classify_input(frames, names) or _classify_wait(frames, names)


def _classify_wait(frames: tuple[Frame, ...], names: list[str]) -> Doing:
    if _waits_natively(tuple(_select_native(frames))):
        return Doing.COLLECTIVE
    if _is_handed_on(frames) or is_device_wait(frames) or is_cut_transfer(frames):
        return Doing.COLLECTIVE
    is_inside = is_in(frames[0], _DISTRIBUTED) or any(
        is_in(frame, "torch/distributed/distributed_c10d.py") for frame in frames[:_INNERMOST]
    )
    if is_inside and not is_in(frames[0], *_NOT_COLLECTIVE):
        return Doing.JOINING if _START_WORDS.intersection(names) else Doing.COLLECTIVE
    if is_in(frames[0], "torch/nn/parallel/distributed.py"):
        return Doing.COLLECTIVE
    is_backward = names[0] == "_engine_run_backward" or (
        names[0] == "backward" and is_in(frames[0], *_BACKWARD_PARTS)
    )
    return Doing.BACKWARD if is_backward else Doing.USER


def is_device_wait(frames: Sequence[Frame]) -> bool:
    """Return whether a stack waits for what runs on its device, in a call of torch for that."""
    first = next(iter(frames), None)
    is_wait = first is not None and name_function(first) in _DEVICE_WAITS
    return first is not None and is_wait and is_in(first, *_DEVICE_PARTS)


def _waits_natively(frames: tuple[Frame, ...]) -> bool:
    """Tell whether the inner frames, in C++, wait for others, or for what runs on the device."""
    if any(_NATIVE_WAIT.match(frame.function) for frame in frames):
        return True
    is_told = any(frame.function.endswith(_KERNEL_RUNS) for frame in frames)
    return not is_told and any(_NATIVE_SYNC.match(frame.function) for frame in frames)


def _select_native(frames: tuple[Frame, ...]) -> Iterator[Frame]:
    """Yield the inner frames that are no Python."""
    for frame in frames:
        if frame.file.endswith(".py"):
            return
        yield frame


def _is_handed_on(frames: tuple[Frame, ...]) -> bool:
    """Tell whether a functional collective, or the wait for one, is in its part in C++."""
    caller = next((frame for frame in frames if not is_in(frame, *_HANDED_ON)), None)
    return caller is not None and is_in(caller, _FUNCTIONAL)


def _is_exiting(frames: tuple[Frame, ...], names: list[str]) -> bool:
    if names[-1] == "_shutdown" and is_in(frames[-1], "threading.py"):
        return True
    # A callback of atexit has no module below it.
    return "<module>" not in names and not any(name in names for name in _ENTRIES)


# Entry points of threads and child processes, which have no module frame below them either; and
# what stands for outer frames that were cut off.
_ENTRIES = ("_bootstrap", "spawn_main", "_main", "_run_code", "main", "<cut>")


def _classify_input(frames: tuple[Frame, ...], names: list[str]) -> Doing | None:
    for frame, name in zip(frames, names, strict=True):
        if is_in(frame, "torch/utils/data/dataloader.py") and name in _WORKER_WAITS:
            return Doing.INPUT_WORKER
        if is_in(frame, "torch/utils/data/_utils/fetch.py"):
            return Doing.INPUT_MAIN
        if is_user_frame(frame) and not any(
            is_in(outer, "torch/utils/data/_utils/fetch.py") for outer in frames
        ):
            return None
    return None


def is_compiling(frames: Sequence[Frame]) -> bool:
    """Tell whether a stack is inside torch's compiler, which may wait for processes of its own."""
    return any(
        is_in(frame, *_COMPILER_PARTS)
        and not is_in(frame, *_COMPILED_PARTS)
        and name_function(frame) not in _COMPILED_CALLS
        for frame in frames
    )


def is_transferring(frames: Sequence[Frame]) -> bool:
    """Tell whether a stack is inside a send or a receive."""
    return is_cut_transfer(frames) or any(
        is_in(frame, "torch/distributed/distributed_c10d.py") and name_function(frame) in _TRANSFERS
        for frame in frames[:_INNERMOST]
    )


def is_cut_transfer(frames: Sequence[Frame]) -> bool:
    """Tell whether a stack is cut at a send or a receive of a library for pipelines.

    `recv_backward (colossalai/pipeline/p2p.py:607)`: the calls of torch below it are left out.
    """
    first = next(iter(frames), None)
    is_there = first is not None and _TRANSFER_FILE.search(first.file) is not None
    return (
        first is not None and is_there and _TRANSFER_NAME.search(name_function(first)) is not None
    )


def is_in_c10d(frames: Sequence[Frame]) -> bool:
    """Return whether the inner frames of a stack, below those of a user, are a call of c10d."""
    for frame in frames:
        if is_user_frame(frame):
            return False
        if is_in(frame, _C10D):
            return name_function(frame) not in _TRANSFERS
    return False


def name_call(frames: Sequence[Frame]) -> str:
    """Return the name of the call of torch's that a waiting stack is in, as its user knows it."""
    inner: list[Frame] = []
    for frame in frames:
        if is_user_frame(frame):
            break
        inner.append(frame)
    names = [name_function(frame) for frame in inner if is_in(frame, _C10D, _FUNCTIONAL)]
    known = [name for name in names if name[:1] not in "_<" and name != "wrapper"]
    if known:
        return known[-1]
    if inner and name_function(inner[0]) == "_engine_run_backward":
        return "backward"
    return name_function(inner[0]) if inner else "wait"


def may_wait_for_device(frames: Sequence[Frame], line: str) -> bool:
    """Return whether a stack may be in a call that waits for what runs on its device.

    Args:
        frames: The frames of the thread, innermost first.
        line: The text of the line of the innermost frame; empty when it is not known.
    """
    return bool(frames) and (
        is_in(frames[0], *_DEVICE_READERS) or _DEVICE_READS.search(line) is not None
    )


def is_held(frames: Sequence[Frame]) -> bool:
    """Tell whether the probe holds a main thread, so that its exception can be looked into."""
    return any(
        is_in(frame, "whystuck/probe/exit/exceptions.py", "whystuck/probe/exceptions.py")
        for frame in frames
    )


def is_saving(frames: Sequence[Frame]) -> bool:
    """Tell whether a stack is inside the saving of a checkpoint."""
    return bool(_name_checkpoint_calls(frames)) and not is_loading(frames)


def is_gathering_state(frames: Sequence[Frame]) -> bool:
    """Return whether a stack is inside a call for the state of a sharded model, or a save of it."""
    if is_loading(frames):
        return False
    calls = (frame for frame in frames if not is_user_frame(frame))
    return is_saving(frames) or any("state_dict" in name_function(frame) for frame in calls)


def is_loading(frames: Sequence[Frame]) -> bool:
    """Tell whether a stack is inside the loading of a checkpoint, or of what ``torch.save`` wrote.

    Loads and saves share files and words: the innermost call that tells which it is decides.
    """
    for name in _name_checkpoint_calls(frames):
        if "save" in name:
            return False
        if _LOAD_WORDS.search(name):
            return True
    return False


def _name_checkpoint_calls(frames: Sequence[Frame]) -> list[str]:
    """Return the names, in small letters, of the calls that have to do with checkpoints."""
    names = [(frame, name_function(frame).lower()) for frame in frames]
    return [
        name
        for frame, name in names
        if is_in(frame, *_SAVE_PARTS) or any(word in name for word in _SAVE_WORDS)
    ]


def is_in_module(frames: Sequence[Frame]) -> bool:
    """Tell whether a stack is inside the forward of a module."""
    return any(name_function(frame) == "_call_impl" for frame in frames)


def is_evaluating(frames: Sequence[Frame]) -> bool:
    """Tell whether a stack is inside the forward of a module, or a function named after it."""
    names = [name_function(frame) for frame in frames]
    return "_call_impl" in names or any(
        word in name.lower()
        for name, frame in zip(names, frames, strict=True)
        if is_user_frame(frame)
        for word in _EVALUATION_WORDS
    )


def is_in_idle_loop(frames: Sequence[Frame]) -> bool:
    """Return whether an event loop of asyncio waits for events, and runs no coroutine.

    A coroutine that is suspended has no frames on the stack of its thread.
    """
    inner = next((i for i, frame in enumerate(frames) if is_user_frame(frame)), len(frames))
    names = [name_function(frame) for frame in frames[:inner]]
    if "_run_once" not in names or not is_in(frames[names.index("_run_once")], "/asyncio/"):
        return False
    return "select" in names[: names.index("_run_once")]


def is_waiting_for_threads(position: Position) -> bool:
    """Tell whether a main thread waits for other threads of its process, in code of the user."""
    frames = position.frames
    return position.doing is Doing.USER and bool(frames) and is_in(frames[0], *_THREAD_WAITS)


def is_thread_in_call(thread: ThreadStack) -> bool:
    """Tell whether a thread that the job has started is in a collective, send or receive."""
    is_own = not thread.is_main and any(
        frame.file.endswith("threading.py") and name_function(frame) == "run"
        for frame in thread.frames
    )
    return is_own and locate(thread.frames).doing is Doing.COLLECTIVE
