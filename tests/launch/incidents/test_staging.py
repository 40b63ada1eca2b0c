"""Evidence on a shared file system: gathered on the node, and written as one file a node."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.disks import small_disk
from tests.launch.running import clean_environment, run_whystuck, torchrun
from tests.launch.simulated import wait_for

from whystuck.collect.node.mounts import parse_mount
from whystuck.evidence.archive import SUFFIX
from whystuck.evidence.finding import Gap
from whystuck.evidence.records import IncidentRecord
from whystuck.guarded.evidence_files import list_archive
from whystuck.launch.incidents import staging as staging_module
from whystuck.launch.incidents.folder import EvidenceFolder
from whystuck.launch.incidents.staging import Staging, find_turn, staging, wants_archive
from whystuck.launch.output import logfile
from whystuck.launch.output.rank_logs import RankLogs
from whystuck.launch.processes.rank_table import RankTable

STUCK = Path(__file__).parents[3] / "examples/stuck/train.py"
NODE = socket.gethostname()
ARCHIVE = {"WHYSTUCK_EVIDENCE_FORM": "archive"}
PLAIN = {"incident.json", "report.html", "report.json", "report.txt"}
FAILS = "import sys\nprint('loading', flush=True)\nraise ValueError('no such shard')\n"


def make_incident(evidence: EvidenceFolder) -> Path:
    """Write an incident as the watcher does."""
    incident = evidence.next_incident()
    work = evidence.work_of(incident)
    evidence.write(work / "n3" / "rank-0" / "exit.json", b'{"pid":8,"code":1}')
    evidence.write(work / "gaps.json", b"[]")
    evidence.write(work / "report.txt", b"stuck\n")
    evidence.write_incident(work, IncidentRecord(kind="stall", round=0))
    return incident


def list_names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def first_of(report: dict[str, Any]) -> dict[str, Any]:
    """Return what a report says first, with the places that it cites."""
    first: dict[str, Any] = report["findings"][0]
    return first


@pytest.mark.parametrize(
    ("fs_type", "source", "is_shared"),
    [
        ("ext4", "/dev/sda1", False),
        ("xfs", "/dev/nvme0n1", False),
        ("overlay", "overlay", False),
        ("tmpfs", "tmpfs", False),
        ("fuse.fuse-overlayfs", "fuse-overlayfs", False),
        ("virtiofs", "home", False),
        ("nfs4", "server:/export", True),
        ("lustre", "10.0.0.1@tcp:/scratch", True),
        ("beegfs", "beegfs_nodev", True),
        ("gpfs", "gpfs0", True),
        ("ceph", "10.0.0.1:6789:/", True),
        ("fuse.sshfs", "me@host:/home", True),
        ("newfs", "server:/export", True),
        ("newfs", "//server/share", True),
        ("newfs", "newfs", False),
    ],
)
def test_file_system_when_a_server_has_it_then_is_shared(
    fs_type: str, source: str, is_shared: bool
) -> None:
    mount = parse_mount(f"30 1 0:26 / /data rw - {fs_type} {source} rw")
    assert mount is not None
    assert mount.is_shared is is_shared


def test_form_when_the_user_names_one_then_it_counts(tmp_path: Path) -> None:
    assert wants_archive(tmp_path, ARCHIVE)
    assert not wants_archive(tmp_path, {"WHYSTUCK_EVIDENCE_FORM": "files"})
    assert wants_archive(tmp_path, {}) == wants_archive(tmp_path, {"WHYSTUCK_EVIDENCE_FORM": "?"})


def test_turns_when_there_are_many_nodes_then_are_spread_and_stay() -> None:
    turns = [find_turn(f"node-{number:04d}", {}) for number in range(1000)]
    assert turns == [find_turn(f"node-{number:04d}", {}) for number in range(1000)]
    assert all(0 <= turn < 1 for turn in turns)
    tenths = [int(turn * 10) for turn in turns]
    assert max(tenths.count(tenth) for tenth in range(10)) < 200
    slurm = {"SLURM_NODEID": "3", "SLURM_NNODES": "4"}
    assert find_turn("any", slurm) == 0.75
    assert find_turn("any", {**slurm, "SLURM_NODEID": "x"}) == find_turn("any", {})


@pytest.mark.parametrize(("world_size", "has_peers"), [(1, False), (2, True)])
def test_job_when_ranks_are_elsewhere_then_has_peers(
    tmp_path: Path, world_size: int, has_peers: bool
) -> None:
    table = RankTable(tmp_path, "n3")
    table.add(rank=0, pid=os.getpid(), world_size=world_size, is_member=True)
    assert table.has_peers is has_peers


def test_incident_when_published_then_is_an_archive_and_the_report(tmp_path: Path) -> None:
    evidence = EvidenceFolder(tmp_path / "shared", "n3")
    writer = Staging(evidence, tmp_path / "stage", print, 0.5)
    incident = make_incident(evidence)
    assert list_names(incident) == set()
    evidence.publish(incident)
    wait_for((incident / "incident.json").exists)
    assert list_names(incident) == {f"n3{SUFFIX}", "incident.json", "report.txt"}
    # What is added later replaces it, and in the end nothing is left here.
    evidence.write(evidence.work_of(incident) / "n3/rank-0/beat.json", b"{}")
    assert writer.finish()
    assert set(list_archive(incident / f"n3{SUFFIX}").by_name) == {
        "n3/rank-0/exit.json", "n3/rank-0/beat.json", "n3/gaps.json"
    }  # fmt: skip
    assert not [path for path in (tmp_path / "stage").rglob("*") if path.is_file()]


def test_records_of_a_round_are_one_archive(tmp_path: Path) -> None:
    evidence = EvidenceFolder(tmp_path / "shared", "n3")
    writer = Staging(evidence, tmp_path / "stage", print, 0.0)
    for rank in range(4):
        evidence.write(evidence.records_of(rank) / "exit.json", b'{"pid":8,"code":1}')
    assert writer.finish()
    assert list_names(evidence.round_dir) == {f"n3{SUFFIX}"}
    found = list_archive(evidence.round_dir / f"n3{SUFFIX}")
    assert set(found.by_name) == {f"n3/rank-{rank}/exit.json" for rank in range(4)}


def test_incident_that_was_none_leaves_nothing(tmp_path: Path) -> None:
    evidence = EvidenceFolder(tmp_path / "shared", "n3")
    writer = Staging(evidence, tmp_path / "stage", print, 0.0)
    evidence.drop(make_incident(evidence))
    assert writer.finish()
    assert list((tmp_path / "shared" / "incidents").iterdir()) == []


def test_nodes_write_in_turn_and_the_end_of_a_job_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_module, "SPREAD_S", 3600.0)
    monkeypatch.setattr(staging_module, "END_SPREAD_S", 0.0)
    evidence = EvidenceFolder(tmp_path / "shared", "n3")
    writer = Staging(evidence, tmp_path / "stage", print, 1.0)
    evidence.has_peers = True
    incident = make_incident(evidence)
    evidence.publish(incident)
    assert list_names(incident) == set()
    assert writer.finish()
    assert list_names(incident) == {f"n3{SUFFIX}", "incident.json", "report.txt"}


def test_evidence_that_cannot_be_written_stays_on_the_node(tmp_path: Path) -> None:
    said: list[str] = []
    with small_disk("size=64k") as disk:
        evidence = EvidenceFolder(disk / "shared", "n3")
        stage = tmp_path / "stage"
        writer = Staging(evidence, stage, said.append, 0.0)
        incident = make_incident(evidence)
        evidence.write(evidence.work_of(incident) / "n3/rank-0/log.txt", b"x" * (1 << 20))
        evidence.publish(incident, is_last=True)
        evidence.write(evidence.records_of(0) / "exit.json", b"{}")
        assert not writer.finish()
        assert f"n3{SUFFIX}" not in list_names(incident)
    assert "No space left" in said[-1]
    assert f"it is in {stage}" in said[-1]
    assert (stage / "incidents/000/n3/rank-0/log.txt").stat().st_size == 1 << 20


def test_folder_of_the_node_goes_when_all_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHYSTUCK_EVIDENCE_FORM", "archive")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    evidence = EvidenceFolder(tmp_path / "shared", "n3")
    with staging(evidence, print):
        assert evidence.stage is not None
        assert evidence.stage.stat().st_mode & 0o777 == 0o700
        make_incident(evidence)
    assert list_names(tmp_path) == {"shared"}


def test_folders_of_watchers_that_were_killed_go_after_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    kept = staging_module._make_stage()
    old = staging_module._make_stage()
    assert kept is not None
    assert old is not None
    (old / "owner").write_text(str(dead.pid))
    again = staging_module._make_stage()
    assert old.exists(), "what it holds may be wanted"
    monkeypatch.setattr(staging_module, "_KEPT_S", -1.0)
    last = staging_module._make_stage()
    assert not old.exists()
    assert {kept, again, last} == set(tmp_path.iterdir())


def test_two_nodes_that_start_at_once_take_two_rounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    EvidenceFolder(tmp_path, "n0")
    # The other one has looked before that.
    monkeypatch.setattr(Path, "glob", lambda *_: iter(()))
    assert EvidenceFolder(tmp_path, "n1").round_dir == tmp_path / "rounds" / "1"


def test_failed_job_says_the_same_the_morning_after(tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(FAILS)
    command = [sys.executable, str(tmp_path / "fails.py")]
    done = run_whystuck(
        "run", "--evidence", "ev", "--", *command, cwd=tmp_path, environment=ARCHIVE
    )
    assert done.returncode == 1
    check_answers(tmp_path, done.stderr.decode())


def test_logs_of_a_round_are_copied_by_their_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logfile, "MAX_LOG_BYTES", 100)
    table = RankTable(tmp_path, "n3")
    table.add(rank=0, pid=os.getpid(), world_size=1, is_member=True)
    logs = RankLogs(EvidenceFolder(tmp_path / "ev", "n3"), table)
    log = logs.of_pid(os.getpid())
    for number in range(4):
        log.write("out", b"line %d, and what is left of a hundred bytes\n" % number)
    logs.launcher.write("err", b"no end")
    logs.flush()
    assert b"line 3" in log.read_tail(1000)
    places = find_logs(tmp_path / "ev")
    assert {place.name for place in places} == {"log.txt", "log.1.txt", "launcher.txt"}
    written = {place: path.read_bytes() for place, path in places.items()}
    # The names lead nowhere any more: whoever looks one up fails.
    (tmp_path / "ev").rename(tmp_path / "moved")
    assert logs.copy_round(0, tmp_path / "home", 1000)
    copies = {place: path.read_bytes() for place, path in find_logs(tmp_path / "home").items()}
    assert copies == written
    assert not logs.copy_round(0, tmp_path / "home", 10)
    logs.close()


def find_logs(folder: Path) -> dict[Path, Path]:
    """Return the logs of ranks and of the command, by their places below a folder."""
    return {path.relative_to(folder): path for path in folder.rglob("*.txt")}


def test_node_without_room_writes_plain_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHYSTUCK_EVIDENCE_FORM", "archive")
    monkeypatch.setattr(staging_module, "_MIN_ROOM_BYTES", 1 << 62)
    evidence = EvidenceFolder(tmp_path, "n3")
    with staging(evidence, print):
        incident = make_incident(evidence)
        assert (incident / "n3/rank-0/exit.json").exists()
    assert "no room" in (tmp_path / "fault.log").read_text()


def test_snapshot_is_an_archive(tmp_path: Path) -> None:
    rank = [sys.executable, "-c", "import time, torch; print(1, flush=True); time.sleep(600)"]
    job = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    with subprocess.Popen(rank, stdout=subprocess.PIPE, env=clean_environment(**job)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            done = run_whystuck(
                "snapshot", "--pid", str(process.pid), "--evidence", "ev",
                cwd=tmp_path, environment=ARCHIVE,
            )  # fmt: skip
        finally:
            process.kill()
    incident = tmp_path / "ev" / "incidents" / "000"
    assert str(incident).encode() in done.stdout + done.stderr
    assert list_names(incident) == {*PLAIN, f"{NODE}{SUFFIX}"}
    report = json.loads((incident / "report.json").read_bytes())
    done = run_whystuck("diagnose", tmp_path, "--format", "json", cwd=tmp_path)
    read = json.loads(done.stdout)
    assert (read["verdict"], read["findings"]) == (report["verdict"], report["findings"])


@pytest.mark.slow
def test_stuck_job_says_the_same_the_morning_after(tmp_path: Path) -> None:
    options = ["--stall-after", "6", "--on-stall", "kill", "--evidence", "ev"]
    done = run_whystuck(
        "run", *options, "--", *torchrun(4, STUCK), cwd=tmp_path, environment=ARCHIVE
    )
    assert done.returncode == 124
    first = check_answers(tmp_path, done.stderr.decode())
    assert (first["code"], first["culprits"]["ranks"]) == ("H102", [0])
    # Logs are open all the time; everything else of the round is in one file.
    names = {path.name for path in (tmp_path / "ev/rounds/0" / NODE).rglob("*") if path.is_file()}
    assert all(name.startswith(("log", "launcher", "agent")) for name in names), names
    members = list_archive(tmp_path / "ev/rounds/0" / f"{NODE}{SUFFIX}").by_name
    assert {f"{NODE}/rank-{rank}/ops.ring.gz" for rank in range(4)} <= set(members)


def check_answers(folder: Path, said: str) -> dict[str, Any]:
    """Check that an incident is an archive, and that it is read as its report says."""
    incident = folder / "ev" / "incidents" / "000"
    assert list_names(incident) == {*PLAIN, f"{NODE}{SUFFIX}"}
    assert str(incident / "report.html") in said
    report = json.loads((incident / "report.json").read_bytes())
    gaps = msgspec.convert(report["gaps"], list[Gap])
    assert not [gap for gap in gaps if "archive" in gap.reason]
    places = [incident, incident.parent, folder / "ev", folder / "ev/rounds/0", folder]
    for place in places:
        done = run_whystuck("diagnose", place, "--format", "json", cwd=folder)
        read = json.loads(done.stdout)
        assert read["verdict"] == report["verdict"], place
        if place == incident:
            assert first_of(read) == first_of(report)
        for key in ("code", "confidence", "summary", "culprits", "where"):
            assert first_of(read)[key] == first_of(report)[key], place
    return first_of(report)
