"""Prometheus' own checker."""

from __future__ import annotations

import shutil
import subprocess

import pytest


def promtool(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run promtool, or skip the test where it is not."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed; Debian's package `prometheus` has it")
    return subprocess.run(
        [found, *arguments], input=text, text=True, capture_output=True, check=False
    )
