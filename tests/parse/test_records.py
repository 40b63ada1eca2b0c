from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from whystuck.parse import records
from whystuck.parse.errors import ParseError


def test_records_become_tables() -> None:
    samples = b'{"samples": [{"taken_ns": 5, "pid": 7, "state": "S", "cpu_s": 1.5, "new": 1}]}'
    (look,) = records.parse_processes(samples, rank=1, worker=True, artifact="a")
    assert (look.rank, look.pid, look.state, look.worker) == (1, 7, "S", True)

    beat = records.parse_beat(b'{"groups": {"0": [0, 1]}, "age_s": 2}', rank=1, artifact="a")
    assert beat.groups == (("0", (0, 1)),)

    waits, counts = records.parse_peers(
        b'{"waits": [{"kind": "recv", "peer": 2, "group": "0", "tag": 7, "count": 3, "site": '
        b'[{"name": "f", "filename": "/a.py", "line": 3}]}], '
        b'"counts": [{"kind": "send", "peer": 1, "group": "0", "count": 2}]}',
        rank=1,
        artifact="a",
    )
    assert (waits[0].rank, waits[0].kind, waits[0].peer, waits[0].count) == (1, "recv", 2, 3)
    assert (waits[0].row, waits[0].site[0].line, waits[0].sure) == (0, 3, True)
    assert (counts[0].kind, counts[0].peer, counts[0].count) == ("send", 1, 2)

    (manager,) = records.parse_skipped(
        b'{"pid": 7, "failures": [{"group": "0", "count": 0}, {"group": "1", "members": [1, 3], '
        b'"count": 2, "site": [{"name": "f", "filename": "/a.py", "line": 3}], "calls": '
        b'[{"op": "all_reduce", "count": 2, "first_step": 4, "site": []}]}]}',
        rank=1,
        artifact="a",
    )
    assert (manager.rank, manager.group, manager.members) == (1, "1", frozenset({1, 3}))
    assert (manager.count, manager.row, manager.site[0].line) == (2, 1, 3)
    assert (manager.calls[0].op, manager.calls[0].count, manager.calls[0].first_step) == (
        "all_reduce",
        2,
        4,
    )

    raised = records.parse_exception(
        b'{"type": "ValueError", "frames": [{"name": "f", "filename": "/a.py", "line": 3}]}',
        rank=1,
        artifact="a",
    )
    assert raised.frames[0].line == 3

    ended = records.parse_exit(b'{"signal": 9}', rank=1, artifact="a")
    assert (ended.code, ended.signal) == (None, 9)

    assert records.parse_incident(b'{"kind": "exit", "world_size": 4}').world_size == 4
    assert records.parse_job(b'{"exit_code": 1}').exit_code == 1
    assert records.parse_gaps(b'[{"rank": 1, "what": "x", "reason": "y"}]')[0].what == "x"
    assert records.parse_source_index(b'{"files": {"/a.py": "a.py"}}') == {"/a.py": "a.py"}


@pytest.mark.parametrize("data", [b"", b"[", b"[1]", b"\xff\xfe", b'"text"'])
@pytest.mark.parametrize("parse", [records.parse_incident, records.parse_job, records.parse_gaps])
def test_other_bytes_are_parse_errors(parse: Callable[[bytes], Any], data: bytes) -> None:
    with pytest.raises(ParseError):
        parse(data)


def test_errors_of_threads_say_which_thread_it_was() -> None:
    frames = [{"name": "produce", "filename": "/job/train.py", "line": 11}]
    error = {"type": "ValueError", "message": "bad", "thread": "loader", "is_main_thread": False}
    data = msgspec.json.encode({"errors": [error | {"frames": frames}] * 40})
    read = records.parse_thread_errors(data, rank=2, artifact="thread-errors.json")
    assert (read[0].thread, read[0].is_main_thread, read[0].frames[0].line) == ("loader", False, 11)
    assert len(read) < 40


def test_exception_of_a_data_loader_worker_is_the_one_it_raised() -> None:
    message = (
        "Caught OSError in DataLoader worker process 1.\n"
        "Original Traceback (most recent call last):\n"
        '  File "/job/images.py", line 10, in parse\n'
        "    raise OSError('truncated shard 7')\n"
        "OSError: truncated shard 7\n"
    )
    frames = [{"name": "main", "filename": "/job/train.py", "line": 3}]
    data = msgspec.json.encode({"type": "OSError", "message": message, "frames": frames})
    read = records.parse_exception(data, rank=2, artifact="exception.json")
    assert (read.type, read.message.strip()) == ("OSError", "truncated shard 7")
    assert [(frame.file, frame.line) for frame in read.frames] == [
        ("/job/images.py", 10),
        ("/job/train.py", 3),
    ]
