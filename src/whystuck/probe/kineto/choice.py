"""Whether Kineto of a process is left to us, and what it can trace there."""

from __future__ import annotations

import os

from .agent_discovery import DAEMON_ENV, SOCKET_DIR_ENV

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Any

FOLDER_ENV = "WHYSTUCK_AGENT_DIR"
# Whoever sets one of these has a profiler of his own in mind, and there can be one only.
THEIRS = (DAEMON_ENV, "CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")


def is_left_to_us(environment: Any) -> bool:
    """Tell whether nobody but us leads Kineto, as far as variables tell."""
    folder = environment.get(FOLDER_ENV, "")
    if not folder or any(name in environment for name in THEIRS):
        return False
    # A child has the one that its parent got from us.
    return bool(environment.get(SOCKET_DIR_ENV, folder) == folder)


def find_device(torch: Any) -> Any:
    """Return the module of the device that Kineto can trace here; None when there is none.

    Only files are looked at. To ask torch would initialise the device.
    """
    version = torch.version
    has_cuda = bool(version.cuda) and os.path.exists("/dev/nvidiactl")
    if has_cuda or (bool(getattr(version, "hip", None)) and os.path.exists("/dev/kfd")):
        return torch.cuda
    if bool(getattr(version, "xpu", None)) and os.path.isdir("/dev/dri"):
        return torch.xpu
    return None
