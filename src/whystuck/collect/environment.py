"""The environment of a process."""

from __future__ import annotations

from pathlib import Path


def read_environment(pid: int) -> dict[str, str]:
    """Return the environment a process was started with; raises OSError when not allowed."""
    raw = Path(f"/proc/{pid}/environ").read_bytes()
    pairs = (item.partition("=") for item in raw.decode(errors="replace").split("\0") if item)
    return {name: value for name, _, value in pairs}
