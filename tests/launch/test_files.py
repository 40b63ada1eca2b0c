"""Logs and the evidence folder: bounded, and never a reason for the job to fail."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from whystuck.evidence.errors import StartError
from whystuck.evidence.records import IncidentRecord
from whystuck.launch.incidents import folder as folder_module
from whystuck.launch.incidents.folder import EvidenceFolder
from whystuck.launch.output import logfile
from whystuck.launch.output.logfile import LogFile

STAMPED = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z (out|err) (.*)$")


def test_log_when_lines_come_in_pieces_then_each_has_one_stamp(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "log.txt")
    log.write("out", b"step ")
    log.write("err", b"careful\r\n")
    log.write("out", b"1\nrest")
    log.close()
    found = [STAMPED.match(line) for line in (tmp_path / "log.txt").read_text().splitlines()]
    assert [match.groups() for match in found if match] == [
        ("err", "careful"),
        ("out", "step 1"),
        ("out", "rest"),
    ]


def test_log_when_it_grows_then_two_bounded_files_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logfile, "MAX_LOG_BYTES", 1000)
    log = LogFile(tmp_path / "log.txt")
    for number in range(200):
        log.write("out", f"line {number}\n".encode())
    log.close()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["log.1.txt", "log.txt"]
    assert all((tmp_path / name).stat().st_size <= 1000 for name in files)
    assert "line 199" in (tmp_path / "log.txt").read_text()


def test_log_when_it_cannot_be_written_then_keeps_the_reason_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    log = LogFile(tmp_path / "file" / "log.txt")
    log.write("out", b"one\n")
    log.write("out", b"two\n")
    assert log.problem


def test_folder_when_used_twice_then_each_start_is_a_round(tmp_path: Path) -> None:
    assert EvidenceFolder(tmp_path, "n0").round_dir.name == "0"
    assert EvidenceFolder(tmp_path, "n0").round_dir.name == "1"


def test_folder_when_it_cannot_be_made_then_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="cannot be written") as caught:
        EvidenceFolder(tmp_path / "file" / "ev", "n0")
    assert caught.value.exit_code == 125
    assert "--evidence" in caught.value.hint


def test_incidents_when_there_are_too_many_then_closed_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "MAX_INCIDENTS", 3)
    evidence = EvidenceFolder(tmp_path, "n0")
    for number in range(6):
        incident = evidence.next_incident()
        closed = None if number == 1 else 5.0
        evidence.write_incident(incident, IncidentRecord(closed_after_s=closed))
    kept = sorted(path.name for path in (tmp_path / "incidents").iterdir())
    # the one that never closed stays, and numbers are not used again
    assert kept == ["001", "004", "005"]


def test_incident_record_is_read_back(tmp_path: Path) -> None:
    record = IncidentRecord(kind="stall", stalled_s=21.5, longest_gap_s=3.0)
    EvidenceFolder.write_incident(tmp_path, record)
    read = msgspec.json.decode((tmp_path / "incident.json").read_bytes(), type=IncidentRecord)
    assert read == record


def test_names_that_are_no_numbers_are_no_incidents(tmp_path: Path) -> None:
    evidence = EvidenceFolder(tmp_path, "n0")
    for name in ("004", "\u00b2", "\u0663", "9" * 18, "9" * 200):
        (tmp_path / "incidents" / name).mkdir(parents=True)
    made = [evidence.next_incident().name for _ in range(2)]
    assert made == [f"{10**18}", f"{10**18 + 1}"]
