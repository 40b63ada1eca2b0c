"""The whole path once: a job hangs, is noticed, diagnosed and ended; its evidence is read again.

On gloo alone: the job is the example of the README.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.launch.running import WHYSTUCK, clean_environment, run_whystuck, torchrun

from whystuck.report.json import report_schema

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples/stuck/train.py"
GUILTY = next(
    number
    for number, line in enumerate(SCRIPT.read_text().splitlines(), 1)
    if "dist.barrier()" in line
)


@pytest.fixture(scope="module")
def stuck(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, subprocess.CompletedProcess[bytes]]:
    folder = tmp_path_factory.mktemp("stuck")
    done = run_whystuck(
        "run", "--stall-after", "6", "--on-stall", "kill", "--evidence", "ev", "--",
        *torchrun(4, SCRIPT), cwd=folder,
    )  # fmt: skip
    return folder / "ev", done


def _report(evidence: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((evidence / "incidents/000/report.json").read_text())
    return report


def test_job_is_ended_with_124_and_only_one_incident(
    stuck: tuple[Path, subprocess.CompletedProcess[bytes]],
) -> None:
    evidence, done = stuck
    assert done.returncode == 124, done.stderr.decode()
    assert [path.name for path in (evidence / "incidents").iterdir()] == ["000"]
    assert b"whystuck" not in done.stdout


def test_report_names_rank_line_and_cause(
    stuck: tuple[Path, subprocess.CompletedProcess[bytes]],
) -> None:
    report = _report(stuck[0])
    jsonschema.validate(report, report_schema())
    (finding,) = report["findings"]  # the stacks in it tell the same, and are not told of again
    assert (report["verdict"], finding["code"], finding["name"]) == (
        "stuck",
        "H102",
        "extra-collective",
    )
    assert finding["culprits"]["ranks"] == [0]
    assert finding["victims"]["ranks"] == "1-3"
    place = finding["where"][0]
    assert (place["rank"], place["file"], place["line"]) == (0, str(SCRIPT), GUILTY)
    assert report["coverage"]["ranks_seen"] == 4
    assert report["gaps"] == []


def test_terminal_and_files_say_the_same(
    stuck: tuple[Path, subprocess.CompletedProcess[bytes]],
) -> None:
    evidence, done = stuck
    text = (evidence / "incidents/000/report.txt").read_text()
    assert text in done.stderr.decode()
    assert "error[H102]: rank 0 made an extra barrier in save_checkpoint" in text
    assert "dist.barrier()" in text
    html = (evidence / "incidents/000/report.html").read_text()
    assert "rank 0 made an extra barrier in save_checkpoint" in html


def test_diagnose_of_the_folder_finds_it_again(
    stuck: tuple[Path, subprocess.CompletedProcess[bytes]],
) -> None:
    evidence, _ = stuck
    for path in (evidence, evidence / "incidents", evidence / "incidents/000"):
        done = run_whystuck("diagnose", path, "--format", "json", cwd=evidence)
        assert done.returncode == 1
        (again,) = json.loads(done.stdout)["findings"]
        assert (again["code"], again["culprits"]["ranks"]) == ("H102", [0])


def test_diagnose_into_head_ends_quietly(
    stuck: tuple[Path, subprocess.CompletedProcess[bytes]],
) -> None:
    command = f"{' '.join(WHYSTUCK)} diagnose {stuck[0]} | head -1"
    done = subprocess.run(
        ["bash", "-c", command], env=clean_environment(), capture_output=True, check=True
    )
    assert done.stdout.startswith(b" torchrun --standalone --nproc-per-node 4 ")
    assert done.stderr == b""


def test_diagnose_with_one_hostile_dump_still_judges_the_others(
    stuck: tuple[Path, subprocess.CompletedProcess[bytes]], tmp_path: Path
) -> None:
    marker = tmp_path / "executed"
    for rank in range(4):
        source = next((stuck[0] / "incidents/000").glob(f"*/rank-{rank}/fr.pickle"))
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(source.read_bytes())
    hostile = f"cos\nsystem\n(S'touch {marker}'\ntR.".encode()
    (tmp_path / "nccl_trace_rank_3").write_bytes(hostile)
    done = run_whystuck("diagnose", tmp_path, "--format", "json", cwd=tmp_path)
    report = json.loads(done.stdout)
    assert not marker.exists()
    assert report["findings"][0]["culprits"]["ranks"] == [0]
    assert [gap["rank"] for gap in report["gaps"]] == [3]


def test_disk_holds_what_the_docs_list(
    stuck: tuple[Path, subprocess.CompletedProcess[bytes]],
) -> None:
    evidence, _ = stuck
    rank = next(evidence.glob("incidents/000/*/rank-0"))
    assert {path.name for path in rank.iterdir()} >= {
        "fr.pickle", "stacks-0.json", "stacks-1.json", "proc.json", "beat.json", "env.json",
    }  # fmt: skip
    assert "step 5" in next(evidence.glob("rounds/0/*/rank-0/log.txt")).read_text()
    assert "Start of round 0: " in (evidence / "fault.log").read_text()
    described = (ROOT / "docs/evidence-folder.md").read_text()
    for path in rank.iterdir():
        assert (
            path.name.replace("-0.", "-N.").replace("-1.", "-N.").replace("-2.", "-N.") in described
        )


def test_readme_shows_what_the_demo_prints(
    stuck: tuple[Path, subprocess.CompletedProcess[bytes]],
) -> None:
    readme = (ROOT / "README.md").read_text()
    shown = readme.split("<!-- demo output -->")[1].split("<!-- end of demo output -->")[0]
    said = " ".join((stuck[0] / "incidents/000/report.txt").read_text().split())
    finding = _report(stuck[0])["findings"][0]
    shown_words = " ".join(shown.split())
    assert f"error[H102]: {finding['summary']}" in shown_words
    assert f"examples/stuck/train.py:{GUILTY} in save_checkpoint" in shown_words
    for text in (*finding["remedies"], "where the ranks are now", "verdict: stuck"):
        assert text in shown_words
        assert text in said
