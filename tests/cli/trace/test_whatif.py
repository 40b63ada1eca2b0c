"""``whystuck trace whatif``: from files to answers, and traces with their path drawn in."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.tracing.data import find_traces, make_event
from tests.tracing.jobs import all_reduce

from whystuck.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def run_command(*arguments: str | Path) -> tuple[int, str, str]:
        code = main(["trace", "whatif", *(str(one) for one in arguments)])
        shown = capfd.readouterr()
        return code, shown.out, shown.err

    return run_command


def list_events(work: float, wait: float) -> list[dict[str, Any]]:
    return [
        make_event("user_annotation", "ProfilerStep#1", 0, 8),
        make_event("cuda_runtime", "cudaLaunchKernel", 1, 1, correlation=1),
        make_event("kernel", "gemm", 10, work, device=0, stream=7, correlation=1),
        make_event("cuda_runtime", "cudaLaunchKernel", 3, 1, correlation=2),
        all_reduce(10 + work, wait, 2, number=1, stream=7),
    ]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Two ranks; the second is late by 50 of 120 µs."""
    for rank, (work, wait) in enumerate([(50, 60), (100, 10)]):
        root = {
            "schemaVersion": 1,
            "baseTimeNanoseconds": 1_700_000_000_000_000_000,
            "distributedInfo": {"rank": rank, "world_size": 2},
            "traceEvents": list_events(work, wait),
            "traceName": "last",
        }
        (tmp_path / "job").mkdir(exist_ok=True)
        (tmp_path / "job" / f"rank{rank}.json").write_text(json.dumps(root))
    return tmp_path / "job"


def test_the_gain_of_a_choice_is_told(run: Run, job: Path) -> None:
    code, out, _ = run(job, "--rank", 1, "--class", "compute", "--faster", 50)

    assert code == 0
    assert "2 ranks, joined at 1 collective · 120 µs, 1 step" in out
    assert "replay without any change: 120 µs (+0.000%)" in out
    assert "on rank 1 100.0%" not in out  # one rank is on it: nothing to tell
    assert "50% faster   what" in out
    assert "-41.7% 50 µs   rank 1: compute" in out


def test_json_holds_all(run: Run, job: Path) -> None:
    code, out, _ = run(job, "--comm", "--faster", 100, "--format", "json")

    answer = json.loads(out)
    assert code == 0
    assert answer["levers"] == [
        {
            "lever": "comm",
            "faster": 1.0,
            "ranks": [],
            "wall_ns": 110_000,
            "gain_ns": 10_000,
            "gain_share": pytest.approx(1 / 12),
        }
    ]
    assert answer["replay"]["error"] == 0
    assert {row["rank"] for row in answer["critical_path"]} == {1}


def test_without_a_choice_levers_are_listed_by_gain(run: Run, job: Path, tmp_path: Path) -> None:
    target = tmp_path / "answer.txt"

    code, out, _ = run(job, "-o", target)

    assert (code, out) == (0, "")
    lines = target.read_text().splitlines()
    assert any(line.endswith("   kernel gemm") for line in lines)
    assert "10% faster" in lines[4]
    assert "without it" in lines[4]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--faster", "20"], "nothing is chosen"),
        (["--kernel", "("], "no regular expression"),
        (["--op", ""], "is empty"),
        (["--rank", "7"], "no trace of rank 7"),
        (["--faster", "0", "--comm"], "--faster"),
        (["--overlay", "x.json"], "there are 2"),
        (["--comm", "-o", "no/such/folder/x"], "cannot write"),
    ],
)
def test_what_makes_no_sense_is_refused(
    run: Run, job: Path, arguments: list[str], error: str
) -> None:
    code, out, err = run(job, *arguments)

    assert (code, out) == (2, "")
    assert error in err


def test_a_trace_without_events_has_nothing_to_gain(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text('{"schemaVersion": 1, "traceEvents": []}')

    code, out, _ = run(tmp_path / "empty.json")

    assert code == 0
    assert "no lever would make it faster" in out
    assert "critical path" not in out


def test_a_path_that_is_missing_is_refused(run: Run, tmp_path: Path) -> None:
    assert run(tmp_path / "none")[0] == 2


@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_an_overlay_keeps_what_was_there(run: Run, job: Path, tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"drawn.{suffix}"

    code, _, _ = run(job, "--rank", 1, "--overlay", target)

    data = target.read_bytes()
    drawn = json.loads(gzip.decompress(data) if suffix.endswith("gz") else data)
    source = json.loads((job / "rank1.json").read_text())
    assert code == 0
    old = drawn["traceEvents"][-len(source["traceEvents"]) :]
    assert old == source["traceEvents"]
    assert {key: drawn[key] for key in source if key != "traceEvents"} == {
        key: source[key] for key in source if key != "traceEvents"
    }
    parts = [e for e in drawn["traceEvents"] if e.get("cat") == "critical_path"]
    boxes = [e for e in parts if e["ph"] == "X"]
    assert [(e["ts"], e["dur"], e["args"]["kind"]) for e in boxes] == [
        (0.0, 1.0, "host"),
        (1.0, 9.0, "launch"),
        (10.0, 100.0, "compute"),
        (110.0, 10.0, "comm"),
    ]
    arrows = [(e["ph"], e["pid"], e["tid"]) for e in parts if e["ph"] != "X"]
    assert len(arrows) % 2 == 0


def test_an_overlay_of_a_real_trace_has_its_times(run: Run, tmp_path: Path) -> None:
    """This one has no base time: its times are those since 1970."""
    source = find_traces() / "hta_sampled_2rank" / "rank-0.json.gz"
    target = tmp_path / "drawn.json"

    code, _, _ = run(source, "--comm", "--overlay", target)

    drawn = json.loads(target.read_text())["traceEvents"]
    given = json.loads(gzip.decompress(source.read_bytes()))["traceEvents"]
    boxes = [e for e in drawn if e.get("cat") == "critical_path" and e["ph"] == "X"]
    (step,) = [e for e in given if e.get("name") == "ProfilerStep#551"]
    assert code == 0
    assert drawn[-len(given) :] == given
    assert boxes[0]["ts"] == step["ts"]
    assert sum(e["dur"] for e in boxes) == pytest.approx(step["dur"])
    assert {e["ph"] for e in drawn if e.get("cat") == "critical_path"} == {"X", "s", "f"}


@pytest.mark.parametrize("asked", [(), ("--table", "job_critical_path")])
def test_the_path_of_the_job_is_among_its_tables(
    job: Path, tmp_path: Path, asked: tuple[str, ...]
) -> None:
    code = main(["trace", "analyze", str(job), "--tables", str(tmp_path / "t"), *asked])

    assert code in (0, 1, 3)
    lines = (tmp_path / "t" / "job_critical_path.csv").read_text().splitlines()
    assert lines[0] == "rank,start_ns,end_ns,kind,name"
    assert lines[-1] == "1,110000,120000,comm,all_reduce 0"
