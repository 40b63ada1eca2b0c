"""`whystuck trace diff` with traces of real jobs."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.tracing.diff.jobs import profile_job

from whystuck.cli import main

STEPS = 48
# Steps of two kinds in turn, so that both see the same load of the machine.
SOURCE = """
layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
data = torch.randn(32, 64)
large = torch.randn(900, 900)  # much more than what a busy machine adds to a step

def step(number):
    layers(data).sum().backward()
    if number % 2:
        torch.mm(large, large)
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The trace of a job every second step of which has an op more."""
    path = profile_job(tmp_path_factory.mktemp("traces") / "job.json", SOURCE, STEPS)
    trace: dict[str, Any] = json.loads(path.read_bytes())
    return trace


# The first step that is traced comes after three that are not.
MORE, PLAIN = range(0, STEPS, 2), range(1, STEPS, 2)


def write_steps(path: Path, trace: dict[str, Any], chosen: Iterable[int], rank: int = 0) -> Path:
    """Write a trace of some of the steps only, with what they hold."""
    places = set(chosen)
    steps = [one for one in trace["traceEvents"] if one["name"].startswith("ProfilerStep#")]
    spans = [
        (one["ts"], one["ts"] + one["dur"])
        for place, one in enumerate(sorted(steps, key=lambda one: one["ts"]))
        if place in places
    ]
    kept = [
        one
        for one in trace["traceEvents"]
        if one["ph"] == "M" or any(start <= one["ts"] < end for start, end in spans)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    info = {"rank": rank, "world_size": 2}
    path.write_text(json.dumps(trace | {"traceEvents": kept, "distributedInfo": info}))
    return path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["trace", "diff", *words, "--all-steps", "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


def test_an_op_more_is_found_in_a_real_job(
    traced: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = write_steps(tmp_path / "a.json", traced, PLAIN)
    b = write_steps(tmp_path / "b.json", traced, MORE)

    code, report = run(capsys, str(a), str(b), "--tables", str(tmp_path / "tables"))

    assert code == 1
    assert report["verdict"] == "slow"
    (finding,) = report["findings"]
    assert (finding["code"], finding["severity"]) == ("P509", "error")
    first = finding["details"]["changes"][0]
    assert (first["name"], first["kind"]) == ("aten::mm", "op")
    assert first["delta_ms"] > 0
    with (tmp_path / "tables" / "diff_ops.csv").open() as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert rows["aten::mm"]["status"] == "changed"
    assert rows["aten::mm"]["counts_change"] == "increased"
    assert float(rows["aten::mm"]["diff_count"]) == 1
    assert rows["aten::linear"]["counts_change"] == "unchanged"


def test_steps_of_one_real_job_are_not_told_apart(
    traced: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alarms = 0
    for seed in range(10):
        chosen = random.Random(seed).sample(PLAIN, 12)
        a = write_steps(tmp_path / f"{seed}a.json", traced, chosen)
        b = write_steps(tmp_path / f"{seed}b.json", traced, set(PLAIN) - set(chosen))
        code, report = run(capsys, str(a), str(b))
        # 3 says that it cannot tell, as when the machine is busy with something else.
        assert code in {0, 1, 3}
        alarms += code == 1
        for finding in report["findings"]:
            assert finding["details"]["added"] == []
            assert finding["details"]["removed"] == []

    # One in 20 may be. All are halves of the same steps, so that on a busy machine several are at
    # once: 3 of 10 were seen.
    assert alarms <= 5


def test_text_is_short_and_says_how_sure_it_is(
    traced: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_steps(tmp_path / "a.json", traced, PLAIN)

    code = main(["trace", "diff", str(path), str(path)])

    told = capsys.readouterr().out
    assert code == 0
    assert told.startswith("healthy: no regression: a step takes")
    assert len(told.splitlines()) == 1


def test_folders_of_ranks_are_compared(
    traced: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in "ab":
        for rank in range(2):
            place = tmp_path / name / f"rank{rank}.json"
            write_steps(place, traced, PLAIN[rank::2], rank)

    code, report = run(capsys, str(tmp_path / "a"), str(tmp_path / "b"))

    assert code == 0
    assert report["coverage"] == {"ranks_expected": 2, "ranks_seen": 2, "sources": ["traces"]}


def test_a_threshold_and_fail_on_choose_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for name, us in (("a.json", 1000), ("b.json", 1200)):
        event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1}
        shape = event | {"ts": 10, "dur": us, "args": {}}
        paths.append(str(tmp_path / name))
        Path(paths[-1]).write_text(
            json.dumps({"schemaVersion": 1, "traceEvents": [shape], "distributedInfo": {"rank": 0}})
        )

    assert run(capsys, *paths)[0] == 0
    assert run(capsys, *paths, "--fail-on", "warning")[0] == 1
    assert run(capsys, *paths, "--fail-on", "warning", "--threshold", "25")[0] == 0
    assert run(capsys, *paths, "--fail-on", "never")[0] == 0
    assert main(["trace", "diff", *paths, "--format", "text"]) == 0
    assert "significance is unknown" in " ".join(capsys.readouterr().out.split())


def test_a_large_difference_that_may_be_chance_ends_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = []
    for name, us in (("a.json", 1000), ("b.json", 1920)):
        event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1}
        trace = {"traceEvents": [event | {"ts": 10, "dur": us, "args": {}}]}
        paths.append(str(tmp_path / name))
        Path(paths[-1]).write_text(json.dumps(trace | {"distributedInfo": {"rank": 0}}))

    code, report = run(capsys, *paths)

    assert (code, report["verdict"]) == (3, "inconclusive")
    assert report["findings"][0]["confidence"] == "possible"
    assert run(capsys, *paths, "--fail-on", "warning")[0] == 1


def test_a_missing_path_and_a_file_that_is_no_trace_end_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{}")

    assert main(["trace", "diff", str(tmp_path / "none"), str(bad)]) == 2
    assert main(["trace", "diff", str(bad), str(bad)]) == 2
    assert "hint:" in capsys.readouterr().err


def test_nothing_comparable_ends_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty.json"
    empty.write_text(
        json.dumps({"schemaVersion": 1, "traceEvents": [], "distributedInfo": {"rank": 0}})
    )

    code, report = run(capsys, str(empty), str(empty))

    assert code == 3
    assert report["verdict"] == "inconclusive"
