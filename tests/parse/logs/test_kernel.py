"""Kernel logs of real machines: what is in them is found, with its device and process."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from whystuck.evidence.logs.lines import LogEvent
from whystuck.read.log_files import LogPath, read_logs

VARIABLE = "WHYSTUCK_TEST_DATA"


def find_logs() -> Path:
    named = os.environ.get(VARIABLE)
    folder = Path(named) if named else Path(__file__).parents[4] / "shared" / "data"
    if named:
        assert folder.is_dir(), f"{VARIABLE} names {folder}, which is not there"
    elif not (folder / "kernel_logs").is_dir():
        pytest.skip(f"{VARIABLE} is not set")
    # A link on the way is the caller's to follow: readers follow none.
    return (folder / "kernel_logs").resolve()


def read_events() -> dict[tuple[str, int], LogEvent]:
    root = find_logs()
    paths = [
        LogPath(path, str(path.relative_to(root)))
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "LICENSE"
    ]
    return {(event.artifact, event.row): event for event in read_logs(paths).table.logs.events}


def list_lines(pattern: str) -> list[tuple[str, int, re.Match[str]]]:
    root = find_logs()
    return [
        (str(path.relative_to(root)), row, match)
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "LICENSE"
        for row, line in enumerate(path.read_text(errors="replace").split("\n"), 1)
        if (match := re.search(pattern, line))
    ]


@pytest.mark.parametrize(
    ("pattern", "signature"),
    [
        (r"NVRM: Xid \(PCI:(?P<pci>[\w:]+)\): (?P<xid>\d+)(?:, pid=(?P<pid>\d+))?", r"xid\."),
        (r"(?P<comm>\S+)\[(?P<pid>\d+)\]: segfault at", r"segv\."),
        (r"Killed process (?P<pid>\d+)", r"oom\.kernel"),
        (r"oom-kill:constraint=CONSTRAINT", r"oom\.kernel"),
        (r"VFS: file-max limit \d+ reached", r"kernel\.file_max"),
        (r"nvidia-peermem .*ERROR detected invalid context", r"peermem\.ctx"),
        (r"detected NVSwitch (?:non-)?fatal error", r"fm\."),
    ],
)
def test_lines_of_real_kernel_logs_are_found(pattern: str, signature: str) -> None:
    events = read_events()
    lines = list_lines(pattern)
    kept = [(events[name, row], match) for name, row, match in lines if (name, row) in events]

    assert lines
    assert kept
    for event, match in kept:
        assert re.match(signature, event.signature)
        told = {name: value for name, value in match.groupdict().items() if value}
        assert {name: event.groups.get(name) for name in told} == told
        assert (event.rank, event.time is not None) == (-1, True)
    # Of many that are alike, the first are kept, and all are counted.
    found = sum(event.count for event in events.values() if re.match(signature, event.signature))
    assert found >= len(lines)


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    events = read_events()

    assert not [key for key in events if "lspci" in key[0] or "nvidia-smi" in key[0]]
