"""Kept evidence answers as in the night: which run of a folder is read, which incident of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.read.test_tree import write, write_dumps

from whystuck.evidence.finding import Report, Severity, Verdict
from whystuck.pipeline import Choice, diagnose_paths

NS = 1_000_000_000
START_NS = 1_795_417_741 * NS
SIGINT, SIGTERM = 2, 15


class Run:
    """One round of one evidence folder, as ``whystuck run`` leaves it."""

    def __init__(self, home: Path, number: int = 0, start_s: int = 0, **job: Any) -> None:
        self.home, self.number = home, number
        self.folder = home / "rounds" / str(number)
        self.job: dict[str, Any] = {
            "command": ["torchrun", f"train{number}.py"],
            "node": "n0",
            "started_ns": START_NS + start_s * NS,
            "ended_ns": START_NS + (start_s + 100) * NS,
            "exit_code": 1,
            "torch_version": "2.13.0",
        } | job
        for place in (home, self.folder):
            write(place / "job.json", json.dumps(self.job))

    def log(self, *lines: str, at_s: float = 50.0, rank: int | None = None) -> Run:
        """Write lines of a rank, or of the launcher, with capture stamps."""
        node = self.folder / "n0"
        path = node / (f"rank-{rank}/log.txt" if rank is not None else "launcher.txt")
        stamp = f"2026-11-23T07:{9 + int(at_s // 60):02d}:{at_s % 60:09.6f}Z"
        write(path, "".join(f"{stamp} err {line}\n" for line in lines))
        return self

    def incident(self, number: int, kind: str = "stall", *, missing: int = 2, **record: Any) -> Run:
        """Write an incident in which one rank is missing from an all_reduce."""
        folder = self.home / "incidents" / f"{number:03d}"
        known = {"kind": kind, "world_size": 4, "round": self.number, "stalled_s": 30.0}
        known |= {"opened_ns": self.job["started_ns"] + 40 * NS, "job": self.job}
        write(folder / "incident.json", json.dumps(known | record))
        write_dumps(folder, [f"n0/rank-{rank}/fr.pickle" for rank in range(4)], missing)
        return self


INTERRUPTED = {
    "command_exit": 130,
    "outside_signal": SIGINT,
    "outside_ns": START_NS + 45 * NS,
}
GOT_SIGTERM = "Received 15 death signal, shutting down workers"


def blame(report: Report) -> tuple[str, list[int]]:
    first = report.findings[0]
    return first.code, first.culprits.ranks


def list_paths(home: Path) -> list[Path]:
    """List the paths by which a user may ask for the only run of an evidence folder."""
    return [home, home / "incidents", home / "rounds", home / "rounds/0", home.parent]


@pytest.mark.parametrize("record", [INTERRUPTED, {"command_exit": 124}, {}, {"verdict": "stuck"}])
def test_stall_outranks_what_ended_the_job(tmp_path: Path, record: dict[str, Any]) -> None:
    run = Run(tmp_path / "ev", killed_ns=START_NS + 45 * NS)
    run.log(GOT_SIGTERM).incident(0, **record)

    for path in [*list_paths(run.home), run.home / "incidents/000"]:
        report = diagnose_paths([path])
        assert blame(report) == ("H101", [2]), path
        assert report.verdict is Verdict.STUCK


def test_later_failure_answers_where_the_stall_was_none(tmp_path: Path) -> None:
    """The job did not end because of the stall: its record has no end."""
    run = Run(tmp_path / "ev").incident(0, verdict="waiting")
    trace = ["Traceback (most recent call last):", '  File "/j/t.py", line 7, in main', "    f()"]
    run.log(*trace, "ValueError: bad batch", rank=1)
    run.incident(1, "exit", command_exit=1, missing=4)
    write(tmp_path / "ev/incidents/001/n0/rank-1/exit.json", '{"pid":5,"code":1,"ended_ns":9}')

    assert blame(diagnose_paths([run.home])) == ("C204", [1])


def make_restarted(home: Path, exit_code: int = 0) -> Run:
    """A job whose launcher has started its ranks again after rank 1 failed."""
    run = Run(home, exit_code=exit_code)
    trace = ["Traceback (most recent call last):", '  File "/j/t.py", line 7, in main', "    f()"]
    run.log(*trace, "ValueError: bad batch", rank=1)
    run.incident(0, "exit", attempt=0, missing=4)
    write(home / "incidents/000/n0/rank-1/exit.json", '{"pid":5,"code":1,"ended_ns":9}')
    return run


def test_crash_before_a_restart_is_past_where_the_job_ended_well(tmp_path: Path) -> None:
    run = make_restarted(tmp_path / "ev")

    for path in list_paths(run.home):
        report = diagnose_paths([path])
        assert report.verdict is Verdict.HEALTHY, path
        assert [(one.code, one.severity) for one in report.findings] == [("C204", Severity.NOTE)]
        assert report.findings[0].summary.startswith("attempt 0, before a restart: rank 1 ")
        assert report.job is not None
        assert report.job.ended == "finished with code 0 after 1 restart"
    # AND the incident itself says what it said in the night
    night = diagnose_paths([run.home / "incidents/000"])
    assert (night.verdict, night.findings[0].severity) == (Verdict.CRASHED, Severity.ERROR)


def test_crash_before_a_restart_answers_where_no_other_says_how_the_job_failed(
    tmp_path: Path,
) -> None:
    run = make_restarted(tmp_path / "ev", exit_code=1)

    assert diagnose_paths([run.home]).verdict is Verdict.CRASHED


def test_what_a_job_that_ended_well_lost_answers_before_what_is_past(tmp_path: Path) -> None:
    run = make_restarted(tmp_path / "ev").incident(1, attempt=1, missing=3, command_exit=0)

    assert blame(diagnose_paths([run.home])) == ("H101", [3])


def test_newest_round_answers_and_the_others_are_listed(tmp_path: Path) -> None:
    home = tmp_path / "ev"
    Run(home, 0).incident(0, missing=1, command_exit=124, verdict="stuck")
    Run(home, 1, start_s=1000).incident(1, missing=3, command_exit=124)

    report = diagnose_paths([home])
    assert blame(report) == ("H101", [3])
    assert report.job is not None
    assert report.job.command == "torchrun train1.py"
    assert report.job.folder == "incidents/001"
    [other] = report.job.other_runs
    assert (other.path, other.verdict, other.exit_code) == ("rounds/0", "stuck", 1)
    assert blame(diagnose_paths([home / other.path])) == ("H101", [1])


def test_newest_run_without_an_incident_is_not_given_that_of_an_older_one(tmp_path: Path) -> None:
    home = tmp_path / "ev"
    Run(home, 0).incident(0)
    Run(home, 1, start_s=1000, exit_code=0).log("done", rank=0)

    report = diagnose_paths([home])
    assert report.verdict is Verdict.HEALTHY
    assert report.job is not None
    assert [other.path for other in report.job.other_runs] == ["rounds/0"]


def test_folder_of_evidence_folders_means_the_newest(tmp_path: Path) -> None:
    parent = tmp_path / "whystuck"
    Run(parent / "20261123T070901Z-1").incident(0, missing=1)
    Run(parent / "20261122T070901Z-9", start_s=1000).incident(0, missing=3)
    write(parent / "20261122T070901Z-9/notes.txt", "Traceback (most recent call last):\nOops: no")
    write(tmp_path / "train.log", "Traceback (most recent call last):\nKeyError: 'x'\n")

    for path in (parent, tmp_path):
        report = diagnose_paths([path])
        assert blame(report) == ("H101", [3])
        assert report.job is not None
        assert len(report.job.other_runs) == 1


def test_copied_incidents_are_not_merged(tmp_path: Path) -> None:
    run = Run(tmp_path / "ev").incident(0, missing=1, closed_after_s=3.0).incident(1, missing=3)
    shutil.copytree(run.home / "incidents", tmp_path / "night")

    assert blame(diagnose_paths([tmp_path / "night"])) == ("H101", [3])


def test_nodes_of_one_job_are_read_together(tmp_path: Path) -> None:
    """Each node wrote a folder of its own; the scheduler gave both the same id."""
    for node, start_s in (("n0", 0), ("n1", 3)):
        run = Run(tmp_path / node, start_s=start_s, id="4711", node=node)
        run.incident(0, missing=5, world_size=8)
        half = tmp_path / node / "incidents/000/n0"
        half.rename(half.with_name(node))
    for rank in range(4):
        folder = tmp_path / "n1/incidents/000/n1"
        (folder / f"rank-{rank}").rename(folder / f"rank-{rank + 4}")
    shutil.rmtree(tmp_path / "n1/incidents/000/n1/rank-5")
    write_dumps(tmp_path / "n1/incidents/000", ["n1/rank-5/fr.pickle"], missing=0)

    report = diagnose_paths([tmp_path])
    assert blame(report) == ("H101", [5])
    assert report.coverage.ranks_seen == 8
    assert report.job is not None
    assert report.job.other_runs == []


def test_same_job_id_on_the_same_node_is_another_run(tmp_path: Path) -> None:
    Run(tmp_path / "a", id="4711").incident(0, missing=1)
    Run(tmp_path / "b", id="4711", start_s=1000).incident(0, missing=3)

    assert blame(diagnose_paths([tmp_path])) == ("H101", [3])


def test_snapshot_is_a_run_of_its_own(tmp_path: Path) -> None:
    run = Run(tmp_path / "ev").incident(0, missing=1, command_exit=124)
    snapshot = {"round": -1, "opened_ns": START_NS + 5000 * NS}
    run.incident(1, "snapshot", missing=3, **snapshot)

    report = diagnose_paths([run.home])
    assert blame(report) == ("H101", [3])
    assert report.job is not None
    assert [other.path for other in report.job.other_runs] == ["rounds/0"]


def test_signals_of_ours_are_never_from_outside(tmp_path: Path) -> None:
    run = Run(tmp_path / "ev", exit_code=124, killed_ns=START_NS + 45 * NS)
    killed = "torch.distributed.elastic.multiprocessing.api.SignalException: got signal: 15"
    run.log(GOT_SIGTERM, killed, at_s=46 + 1)

    for choice in (Choice(only_logs=True), Choice()):
        report = diagnose_paths([run.home], choice=choice)
        assert [one.code for one in report.findings] == []
        assert report.verdict is Verdict.INCONCLUSIVE


def test_signal_of_somebody_else_is_from_outside(tmp_path: Path) -> None:
    signal = {"outside_signal": SIGTERM, "outside_ns": START_NS + 45 * NS, "exit_code": 143}
    run = Run(tmp_path / "ev", **signal).log(GOT_SIGTERM)

    report = diagnose_paths([run.home])
    assert [one.code for one in report.findings] == ["C207"]
    assert report.verdict is Verdict.CRASHED


def test_job_that_failed_long_after_a_signal_failed_for_another_reason(tmp_path: Path) -> None:
    """With nohup a job goes on after SIGHUP."""
    signal = {"outside_signal": 1, "outside_ns": START_NS + 45 * NS}
    late = {"ended_ns": START_NS + 4000 * NS}
    trace = ["Traceback (most recent call last):", '  File "/j/t.py", line 7, in main', "    f()"]
    run = Run(tmp_path / "ev", **signal, **late)
    run.log(*trace, "ValueError: bad batch", at_s=3000.0, rank=1)

    assert blame(diagnose_paths([run.home])) == ("C204", [1])


def test_interrupt_of_a_moving_job_is_no_crash(tmp_path: Path) -> None:
    signal = {"outside_signal": SIGINT, "outside_ns": START_NS + 45 * NS, "exit_code": 130}
    run = Run(tmp_path / "ev", **signal, idle_s=0.2, is_moving=True)
    lost = "RuntimeError: [1] Connection closed by peer [127.0.0.1]:59050"
    trace = ["Traceback (most recent call last):", '  File "/j/t.py", line 7, in main', "    f()"]
    run.log(*trace, lost, *trace, "ValueError: torn down", rank=1)
    # Ranks end anywhere: one of four was not in the last all_reduce.
    write_dumps(run.folder, [f"n0/rank-{rank}/fr.pickle" for rank in range(4)])

    report = diagnose_paths([run.home])
    assert report.verdict is Verdict.HEALTHY
    assert [(one.code, one.severity) for one in report.findings] == [("C207", Severity.NOTE)]


def test_interrupt_of_an_idle_job_is_not_healthy(tmp_path: Path) -> None:
    signal = {"outside_signal": SIGINT, "outside_ns": START_NS + 45 * NS, "exit_code": 130}
    run = Run(tmp_path / "ev", **signal, idle_s=14.0, is_moving=False).log(GOT_SIGTERM)

    report = diagnose_paths([run.home])
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "no rank had made progress for 14 s" in report.findings[0].summary
