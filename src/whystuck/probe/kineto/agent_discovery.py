"""Whether torch itself asks an agent of ours for work in this process."""

from __future__ import annotations

import os

SOCKET_DIR_ENV = "KINETO_IPC_SOCKET_DIR"
# torch counts its steps for that only where this is not empty.
DAEMON_ENV = "KINETO_USE_DAEMON"
# How often Kineto is to poll, in its own format; our agents put it into their folders.
CONFIG_FILE = "kineto.conf"


def find_agent() -> str:
    """Return the folder of that agent, empty when there is none."""
    folder = os.environ.get(SOCKET_DIR_ENV, "")
    if not folder or not os.environ.get(DAEMON_ENV):
        return ""
    return folder if os.path.isfile(os.path.join(folder, CONFIG_FILE)) else ""
