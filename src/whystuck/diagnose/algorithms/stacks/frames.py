"""Whose code a frame is: the user's, or that of Python, torch or another library."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence

from whystuck.evidence.finding import Place
from whystuck.evidence.ops.collectives import Frame

_LIBRARY_PATH = re.compile(
    r"/site-packages/|/dist-packages/|/lib(?:64)?/python\d(?:\.\d+)?/|/whystuck/probe/|^<"
    r"|/bin/(?:torchrun|accelerate|deepspeed|composer|ray)$"
    # What the compiler has written: named by their hash, and mostly in a folder named after it.
    r"|/torchinductor_[^/]+/|/c[a-z2-7]{51}\.py$"
    r"|\.so(?:\.\d+)*$|^native$|/_whystuck|/torch/(?:distributed|nn|autograd|utils|_dynamo|_inductor|optim)/"
)
# The sources of the interpreter and of the C library, as gdb names them.
_INTERPRETER = re.compile(
    r"^(?:\./|.*/)?(?:Python|Objects|Modules|Parser|Programs)/[\w/]+\.[ch]$"
    r"|^\.{1,2}/(?:sysdeps|nptl|posix|misc|io|libio|socket|malloc)/[\w/.-]+\.[ch]$"
)
# py-spy shortens paths in its text form to the part below the import root.
_SHORT_LIBRARY = re.compile(
    r"^(?:torch|torchvision|numpy|transformers|accelerate|deepspeed|pytorch_lightning|wandb|mlflow"
    r"|boto3|botocore|s3fs|gcsfs|fsspec|aiohttp|aiobotocore|httpx|httpcore|requests|urllib3|tqdm"
    r"|pyarrow|huggingface_hub)/"
)


def is_user_frame(frame: Frame) -> bool:
    """Tell whether a frame is the user's own code."""
    file = frame.file
    if not file or _LIBRARY_PATH.search(file):
        return False
    if file.endswith((".c", ".h")) and _INTERPRETER.match(file):
        return False
    if not file.startswith("/"):
        if _SHORT_LIBRARY.match(file):
            return False
        top = file.split("/", maxsplit=1)[0].strip().removesuffix(".py")
        return top not in sys.stdlib_module_names
    return True


def select_user_frames(frames: Iterable[Frame]) -> tuple[Frame, ...]:
    """Keep the user's frames, innermost first; the outermost others when there are none."""
    kept = list(frames)
    users = tuple(frame for frame in kept if is_user_frame(frame))
    if users:
        return users
    others = [
        frame
        for frame in kept
        if frame.file[:1] not in ("", "<")
        and not is_in(frame, "torch/", "/whystuck/probe/")
        and not _INTERPRETER.match(frame.file)
    ]
    return tuple(others[-1:])


def find_user_frame(frames: Iterable[Frame]) -> Frame | None:
    """Find the innermost frame of the user's code."""
    return next((frame for frame in frames if is_user_frame(frame)), None)


def name_function(frame: Frame) -> str:
    """Return the function without the class that newer Pythons put before it."""
    return frame.function.rpartition(".")[2]


def describe_place(frame: Frame | Place) -> str:
    """Write a place for a sentence: function, and file without its folders."""
    return f"{frame.function} ({frame.file.rpartition('/')[2]}:{frame.line})"


def make_places(rank: int, frames: Sequence[Frame], limit: int = 3) -> list[Place]:
    """Turn the innermost user frames of a stack into places of a rank."""
    chosen = select_user_frames(frames)[:limit]
    return [Place(rank, frame.file, frame.line, frame.function) for frame in chosen]


def is_in(frame: Frame, *parts: str) -> bool:
    """Tell whether the file of a frame has one of these parts in its path."""
    return any(part in frame.file for part in parts)
