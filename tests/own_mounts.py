"""Mounts of one process of pytest that other processes of pytest do not see.

``whystuck check`` asks every mount of a file server. A server that a test has frozen would fail
the checks of a test that runs beside it.
"""

from __future__ import annotations

import ctypes

_CLONE_NEWNS = 0x20000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000


def hide_mounts() -> None:
    """Give this process and its children a mount namespace; do nothing where that needs root."""
    libc = ctypes.CDLL(None)
    if libc.unshare(_CLONE_NEWNS) == 0:
        libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None)
