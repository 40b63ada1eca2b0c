"""What `checks.json` in evidence tells: findings of their own, which never explain a stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.test_kept_evidence import Run
from tests.read.test_tree import write

from whystuck.evidence.finding import Report, Severity, Verdict
from whystuck.pipeline import diagnose_paths
from whystuck.report import render_all

SHM = {
    "code": "N403",
    "severity": "warning",
    "text": "/dev/shm has 12 MB free of 64 MB, below 512 MB",
    "subject": "/dev/shm",
    "because": ["it is mounted so"],
    "measures": {"free_mb": 12, "threshold_mb": 512},
}
LOST = {
    "code": "N411",
    "severity": "error",
    "text": "device 3 is lost: GPU is lost",
    "subject": "3",
    "details": {"device": 3},
}


def make_result(name: str = "shm", *problems: dict[str, Any], **fields: Any) -> dict[str, Any]:
    severities = [problem["severity"] for problem in problems]
    outcome = "failed" if "error" in severities else "warning" if severities else "ok"
    return {"name": name, "outcome": outcome, "took_s": 0.1, "problems": problems} | fields


def make_record(*results: dict[str, Any], node: str = "n1") -> str:
    return json.dumps({"node": node, "taken_ns": 5, "results": results})


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


def test_a_problem_becomes_a_finding_with_node_figure_and_place(tmp_path: Path) -> None:
    write(tmp_path / "n1/checks.json", make_record(make_result("shm", SHM), make_result("disk")))

    report = diagnose_paths([tmp_path])

    (finding,) = report.findings
    assert (finding.code, finding.severity) == ("N403", Severity.WARNING)
    assert finding.culprits.nodes == ["n1"]
    assert finding.measures["free_mb"] == 12
    assert finding.because[0].artifact == "n1/checks.json"
    assert "--shm-size" in finding.remedies[0] or finding.remedies
    assert report.verdict is Verdict.UNFIT
    assert [row.name for row in report.checks] == ["shm", "disk"]
    assert render_all(report)


def test_checks_alone_that_all_pass_are_healthy(tmp_path: Path) -> None:
    place = write(tmp_path / "checks.json", make_record(make_result("disk"), make_result("dns")))

    assert diagnose_paths([place]).verdict is Verdict.HEALTHY


def test_a_check_that_is_incomplete_is_a_gap_and_clears_nothing(tmp_path: Path) -> None:
    late = make_result("nic", outcome="incomplete", reason="no answer in 5 s")
    write(tmp_path / "checks.json", make_record(make_result("disk"), late))

    report = diagnose_paths([tmp_path])

    assert report.verdict is Verdict.INCONCLUSIVE
    (gap,) = report.gaps
    assert (gap.what, gap.reason) == ("result of check nic on n1", "no answer in 5 s")


@pytest.mark.parametrize("problem", [SHM, LOST])
def test_beside_what_stopped_the_job_a_check_comes_second(
    tmp_path: Path, problem: dict[str, Any]
) -> None:
    # GIVEN a job that hangs for a rank that is missing, on a node that a check had words for
    Run(tmp_path).incident(0)
    write(tmp_path / "rounds/0/n1/checks.json", make_record(make_result("shm", problem)))

    report = diagnose_paths([tmp_path])

    assert report.verdict is Verdict.STUCK
    assert report.findings[0].code.startswith("H1")
    assert report.findings[0].culprits.ranks == [2]
    told = report.findings[-1]
    assert (told.code, told.culprits.ranks, told.culprits.nodes) == (problem["code"], [], ["n1"])
    assert told.severity.value == problem["severity"]


@pytest.mark.parametrize(("problem", "verdict"), [(SHM, "inconclusive"), (LOST, "unfit")])
def test_a_warning_alone_does_not_say_why_a_job_hangs(
    tmp_path: Path, problem: dict[str, Any], verdict: str
) -> None:
    # GIVEN a stall of which nothing else is known
    folder = tmp_path / "incidents/000"
    record = {"kind": "stall", "world_size": 4, "stalled_s": 30, "round": 0}
    write(folder / "incident.json", json.dumps(record))
    write(folder / "n1/rank-0/proc.json", json.dumps({"samples": []}))
    write(tmp_path / "rounds/0/n1/checks.json", make_record(make_result("shm", problem)))

    report = diagnose_paths([tmp_path])

    assert report.verdict.value == verdict
    assert report.findings[0].code == problem["code"]


def test_a_job_shows_only_checks_that_have_something_to_tell(tmp_path: Path) -> None:
    Run(tmp_path).incident(0)
    record = make_record(make_result("disk"), make_result("shm", SHM), make_result("dns"))
    write(tmp_path / "rounds/0/n1/checks.json", record)

    assert [row.name for row in diagnose_paths([tmp_path]).checks] == ["shm"]


def test_checks_of_another_round_are_not_read(tmp_path: Path) -> None:
    Run(tmp_path, 0).incident(0)
    Run(tmp_path, 1, start_s=500).incident(1)
    write(tmp_path / "rounds/0/n1/checks.json", make_record(make_result("shm", SHM)))

    assert "N403" not in codes(diagnose_paths([tmp_path]))


def test_what_all_nodes_tell_of_one_of_them_is_told_once(tmp_path: Path) -> None:
    pair = SHM | {"code": "N421", "text": "n2 is slow", "nodes": ["n2"]}
    for node in ("n1", "n2", "n3"):
        result = make_result("pairs", pair, subject="nodes")
        write(tmp_path / node / "checks.json", make_record(result, node=node))

    (finding,) = diagnose_paths([tmp_path]).findings

    assert finding.culprits.nodes == ["n2"]


HOSTILE = [
    b"",
    b"[]",
    b"\xff\x00\x01",
    b'{"results": [{"name": 5}]}',
    b'{"results": [{"name": "x", "outcome": "great"}]}',
    b'{"results": [{"name": "x", "figures": {"a": "b"}}]}',
    b'{"results": [{"name": "x", "figures": {"a": 1e999}}]}',
    b'{"results": ' + b"[" * 100_000,
    b'{"results": [{"name": "x", "problems": [{"code": "N403", "details": ' + b'{"a":' * 5000,
    json.dumps({"results": [{"name": "x"}] * 5000}).encode(),
    json.dumps({"results": [{"name": "x", "problems": [SHM] * 5000}]}).encode(),
]


@pytest.mark.parametrize("data", HOSTILE)
def test_a_hostile_record_is_a_gap_and_costs_nothing_else(tmp_path: Path, data: bytes) -> None:
    Run(tmp_path).incident(0)
    write(tmp_path / "rounds/0/n1/checks.json", data)

    report = diagnose_paths([tmp_path])

    assert report.findings[0].culprits.ranks == [2]
    assert [gap.what for gap in report.gaps if "checks.json" in gap.reason] == ["checks.json"]


def test_a_record_cannot_blame_by_codes_of_other_rules_or_for_other_nodes(tmp_path: Path) -> None:
    forged = [SHM | {"code": code} for code in ("H101", "C208", "S302", "E902", "N999", "")]
    mine = make_result("shm", *forged, SHM, node="n7")
    write(tmp_path / "checks.json", make_record(mine, node="n1"))

    report = diagnose_paths([tmp_path])

    assert codes(report) == ["N403"]
    assert report.findings[0].culprits.nodes == ["n1"]


def test_texts_of_a_record_are_cut_and_shown_safely(tmp_path: Path) -> None:
    loud = SHM | {"text": "\x1b[31m<script>" + "x" * 100_000}
    write(tmp_path / "checks.json", make_record(make_result("shm", loud)))

    report = diagnose_paths([tmp_path])

    assert len(report.findings[0].summary) <= 2000
    rendered = render_all(report)
    assert all("\x1b[31m" not in str(text) for text in rendered.values())
    assert "<script>" not in str(rendered.get("html", ""))
