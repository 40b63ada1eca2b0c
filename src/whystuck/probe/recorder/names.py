"""The names of the recorder's variables, which differ between releases of torch.

The supervisor sets the names that torch 2.9 to 2.14 reads, because torch warns about a name that
it calls old, and only here is it known which torch the job has.
"""

from __future__ import annotations

import os
import sys

SET_BY_US_ENV = "WHYSTUCK_FR"

# (what the supervisor sets, the other name, the first torch that reads the newer of the two)
_BUFFER_SIZE = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", (2, 8))
_CPP_STACK = ("TORCH_FR_CPP_STACK", "TORCH_NCCL_TRACE_CPP_STACK", (2, 8))
_TEMP_FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", (2, 9))
_ON_TIMEOUT = ("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_FR_DUMP_ON_TIMEOUT", (2, 15))
_WAIT = ("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC", (2, 15))
_TIMING = ("TORCH_NCCL_ENABLE_TIMING", "NCCL_ENABLE_TIMING", (2, 0))
_ATTEMPT = "attempt-"
_NAMES = (_BUFFER_SIZE, _CPP_STACK, _TEMP_FILE, _ON_TIMEOUT, _WAIT, _TIMING)


def use_names_of_this_torch() -> None:
    """Move what the supervisor set to the names that this torch reads.

    The dumps of a launcher's second attempt get names of their own.
    """
    version = _version()
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt != "0" and any(one is _TEMP_FILE for one in _ours()):
        folder, name = os.path.split(os.environ[_TEMP_FILE[0]])
        if not name.startswith(_ATTEMPT):
            os.environ[_TEMP_FILE[0]] = os.path.join(folder, f"{_ATTEMPT}{attempt}_{name}")
    for name, other, since in _ours():
        # The newer name of a pair begins with TORCH_FR where there is one.
        newer, older = (other, name) if other.startswith("TORCH_FR") else (name, other)
        right = newer if version >= since else older
        if right != name and right not in os.environ:
            os.environ[right] = os.environ.pop(name)


def is_recorder_off() -> bool:
    """Return whether torch's recorder holds nothing, and so counts nothing, in this process."""
    return any(os.environ.get(name) == "0" for name in _BUFFER_SIZE[:2])


def give_way() -> None:
    """Take back what the script itself has set under its other name since.

    Torch would prefer the newer name, and that is ours. Called before a group is made, which is
    when torch reads them.
    """
    for name, other, _ in _ours():
        if other in os.environ:
            os.environ.pop(name, None)


def _ours() -> list[tuple[str, str, tuple[int, int]]]:
    names = os.environ.get(SET_BY_US_ENV, "").split(",")
    return [one for one in _NAMES if one[0] in names and one[0] in os.environ]


def _version() -> tuple[int, int]:
    text = str(getattr(sys.modules.get("torch"), "__version__", ""))
    major, minor = text.split("+", maxsplit=1)[0].split(".")[:2]
    return int(major), int(minor)
