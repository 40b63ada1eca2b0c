"""A job between network namespaces, one of whose links becomes slow.

On gloo alone: the devices of others have links of their own.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.namespaces import Hosts, find_lack
from tests.launch.running import run_whystuck

pytestmark = [pytest.mark.slow]

JOB = Path(__file__).parents[2] / "bench/slow_job.py"
ONSET, STEPS = 30, 90


@pytest.fixture(scope="module")
def lack() -> str:
    return find_lack()


@pytest.fixture
def hosts(lack: str) -> Iterator[Hosts]:
    if lack:
        pytest.skip(lack)
    with Hosts(4) as made:
        yield made


def run(hosts: Hosts, folder: Path, kind: str, side: str) -> tuple[str, dict[str, Any] | None]:
    """Run a job in which what leaves, or comes to, host 2 becomes slow; return what is said."""
    note = folder / "onset"
    spec = {
        "kind": kind, "culprit": 2, "onset": ONSET, "extra_s": 0.08, "steps": STEPS, "step_s": 0.12,
        "seed": 1, "width": 512, "note": str(note),
    }  # fmt: skip
    is_over = threading.Event()

    def limit() -> None:
        while not note.exists():
            if is_over.wait(0.01):
                return
        if side:
            hosts.limit(2, side, 100)

    limiter = threading.Thread(target=limit)
    limiter.start()
    try:
        command = hosts.launch([sys.executable, str(JOB), json.dumps(spec)])
        done = run_whystuck(
            "run", "--no-agent", "--evidence", "ev", "--", *command, cwd=folder, timeout_s=300
        )
    finally:
        is_over.set()
        limiter.join()
    assert done.returncode == 0, done.stderr.decode()
    reports = sorted((folder / "ev").glob("incidents/*/report.json"))
    report = json.loads(reports[-1].read_text()) if reports else None
    return done.stderr.decode(), report


@pytest.mark.parametrize(("kind", "side"), [("link", "out"), ("link-stages", "in")])
def test_link_that_becomes_slow_is_told_and_no_rank(
    hosts: Hosts, tmp_path: Path, kind: str, side: str
) -> None:
    errors, report = run(hosts, tmp_path, kind, side)

    assert report is not None, errors
    finding = report["findings"][0]
    assert (finding["code"], report["verdict"]) == ("S303", "slow"), errors
    assert finding["culprits"]["ranks"] == []
    details = finding["details"]
    assert (details["kind"], details["interface"]) == ("link", "link0")
    assert details["from" if side == "out" else "to"] == 2
    assert 2 in details["ends"]
    assert "(S303)" in errors
    assert "S301" not in errors


def test_rank_that_becomes_slow_on_its_host_is_told_and_no_link(
    hosts: Hosts, tmp_path: Path
) -> None:
    errors, report = run(hosts, tmp_path, "forward", "")

    assert report is not None, errors
    finding = report["findings"][0]
    assert (finding["code"], finding["culprits"]["ranks"]) == ("S301", [2])
    assert "S303" not in errors
