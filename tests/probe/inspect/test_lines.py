"""The file of an inspected rank: its cap, a full disk, and many threads."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from whystuck.probe.inspect.lines import Lines


def test_file_when_it_is_full_then_the_last_line_says_so(tmp_path: Path) -> None:
    path = tmp_path / "inspect"
    lines = Lines(str(path), max_bytes=2000)
    for number in range(100):
        lines.put({"kind": "in", "number": number})
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert kept[-1] == {"kind": "full", "limit_bytes": 2000}
    assert [line["number"] for line in kept[:-1]] == list(range(len(kept) - 1))
    assert 1500 < path.stat().st_size <= 2000
    lines.put({"kind": "in"})
    assert path.stat().st_size <= 2000
    # a process that goes on with a full file adds nothing
    again = Lines(str(path), max_bytes=2000)
    again.put({"kind": "in"})
    assert len(path.read_text().splitlines()) == len(kept)


def test_file_when_the_disk_is_full_then_nothing_is_raised() -> None:
    Lines("/dev/full").put({"kind": "in"})


def test_file_when_threads_write_then_no_line_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "inspect"
    lines = Lines(str(path))

    def write(thread: int) -> None:
        for number in range(300):
            lines.put({"kind": "in", "thread": thread, "text": "x" * number})

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(line["thread"] for line in kept) == [t for t in range(4) for _ in range(300)]


def test_file_when_a_child_was_forked_then_it_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "inspect"
    lines = Lines(str(path))
    lines._owner = os.getpid() + 1  # as in the child
    lines.put({"kind": "in"})
    assert path.read_text() == ""
