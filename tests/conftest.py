"""Which tests may run side by side, and the signals that they begin with."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

# Tests that start jobs or agents look at what runs on this machine: those of one folder run one
# after the other, and those of folders that look at the same things too.
_SIDE_BY_SIDE = {"diagnose", "logs", "parse", "report", "test_project", "tracing"}
_TOGETHER = {"cli": "agent", "collect": "launch"}
_ROOT = Path(__file__).parent

# Whoever starts the tests in the background, or under nohup, has them ignore signals that they send
# to jobs of theirs, which would ignore them, too.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        is_interrupt = _number == signal.SIGINT
        signal.signal(_number, signal.default_int_handler if is_interrupt else signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test the group that one process runs, where there are several."""
    for item in items:
        folder = item.path.relative_to(_ROOT).parts[0]
        group = str(item.path) if folder in _SIDE_BY_SIDE else _TOGETHER.get(folder, folder)
        item.add_marker(pytest.mark.xdist_group(group))
