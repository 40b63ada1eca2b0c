"""Gives a job the backend that is like NCCL, and its device.

Jobs run this text; ``LIKE`` is the library that `building` has made. It becomes the module
`nccl_like`.
"""

import importlib.util
import sys
import types
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

LIKE: str
DEVICE = "privateuseone"


class Event:
    """An event of the stream: what is computed has waited for the ops before it."""

    def record(self, stream: object = None) -> None:
        """Do nothing."""

    def query(self) -> bool:
        """Return that it is over."""
        return True


def load() -> Any:
    """Load the library, and tell torch of the backend and of the device."""
    spec: Any = importlib.util.spec_from_file_location("nccl_like", globals()["LIKE"])
    made = importlib.util.module_from_spec(spec)
    sys.modules[made.__name__] = made
    spec.loader.exec_module(made)
    device: Any = types.ModuleType(f"torch.{DEVICE}")
    device.is_available = device.is_initialized = lambda: True
    device._is_in_bad_fork = lambda: False
    device._lazy_init = lambda: None
    device.manual_seed_all = lambda seed: None
    device.device_count, device.current_device = (lambda: 1), (lambda: 0)
    device.set_device = lambda device: None
    device.synchronize = made.synchronize
    device.current_stream, device.Event = (lambda device=None: None), Event
    torch.utils.rename_privateuse1_backend(DEVICE)
    torch._register_device_module(DEVICE, device)
    dist.Backend.register_backend("nccl_like", make, devices=[DEVICE])
    for name in ("_dump_fr_trace", "_dump_fr_trace_json"):
        name_ops(name)
    return made


def name_ops(name: str) -> None:
    """Let a recorder name the ops of gloo, which moves the data, as those of NCCL."""
    c10d: Any = sys.modules["torch._C._distributed_c10d"]
    original = getattr(c10d, name, None)
    if original is not None:
        setattr(c10d, name, lambda *args: original(*args).replace(b"gloo:", b"nccl:"))


def make(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    """Make a backend; gloo moves its data, one op after the other, as in a stream."""
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_default_device()]
    options._threads, options._timeout = 1, timeout
    return like.make(dist.ProcessGroupGloo(store, rank, size, options), rank, size)


like = load()
