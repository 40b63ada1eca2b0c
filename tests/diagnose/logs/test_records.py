"""Records of loggers that write JSON, each with all lines of a traceback in one text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.diagnose.logs.jobs import first, tell

from whystuck.diagnose import codes

TRACE = (
    "Traceback (most recent call last):\n"
    '  File "/app/train.py", line 190, in main\n'
    "    save(model)\n"
    '  File "/app/files.py", line 12, in save\n'
    "    file.write(data)\n"
    "ValueError: shard 7 of the checkpoint is empty"
)
CUT = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer "
    "[10.0.0.3]:381"
)


def _record(key: str, rank: int, second: int, text: str) -> str:
    at = f"2025-04-04T02:10:{second:02}Z"
    return json.dumps({"ts": at, "rank": rank, key: text}) + "\n"


@pytest.mark.parametrize("key", ["msg", "message", "log"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_traceback_in_one_record_is_that_of_its_rank(
    tmp_path: Path, key: str, order: tuple[int, int]
) -> None:
    records = [
        _record(key, 2, 5, TRACE),
        "".join(_record(key, rank, 9, CUT) for rank in (0, 1, 3)),
    ]
    found = first(tmp_path, {"job.log": "".join(records[place] for place in order)})

    assert (found.code, found.culprits.ranks) == (codes.PYTHON_EXCEPTION, [2])
    assert found.where[0].line == 12


def test_a_record_of_many_lines_is_no_traceback(tmp_path: Path) -> None:
    text = "config:\n  lr: 0.1\n  errors: raise\nValueError: is what a bad value raises"
    lines = "".join(_record("msg", rank, 1, text) for rank in range(4))
    assert tell(tmp_path, {"job.log": lines}).findings == []
