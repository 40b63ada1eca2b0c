"""Evidence behind a URL: written while a job runs, and read back."""

from __future__ import annotations

import json
import sys
import threading
import uuid
from collections.abc import Iterable
from pathlib import Path

import fsspec
import msgspec
import pytest
from tests.launch.running import run_whystuck

from whystuck.collect.stores import fetch_evidence, open_store, register_writer
from whystuck.evidence.errors import UsageError
from whystuck.launch.incidents.upload import Uploader

FAILS = [sys.executable, "-c", "raise ValueError('no such shard')"]


@pytest.fixture
def local(tmp_path: Path) -> Path:
    incident = tmp_path / "job-1/incidents/000"
    incident.mkdir(parents=True)
    (incident / "gaps.json").write_text("[]")
    (incident / "report.txt").write_text("stuck")
    (tmp_path / "job-1/job.json").write_text("{}")
    return tmp_path / "job-1"


class _Broken:
    def write(self, relative_path: str, data: bytes) -> None:
        raise PermissionError("no such bucket")


class _Slow:
    def __init__(self) -> None:
        self.may_go_on = threading.Event()

    def write(self, relative_path: str, data: bytes) -> None:
        self.may_go_on.wait(60)


class _Hostile:
    def write(self, relative_path: str, data: bytes) -> None:
        """Take nothing."""

    def list_files(self) -> Iterable[tuple[str, int]]:
        return [("../outside", 1), ("big", 1 << 40), ("rank_0.log", 4), ("gone", 1)]

    def read(self, relative_path: str) -> bytes:
        if relative_path == "gone":
            raise FileNotFoundError(relative_path)
        return b"text"


def _memory_url() -> str:
    return f"memory://{uuid.uuid4()}/job"


def test_uploader_when_the_job_ends_then_all_is_at_the_url(local: Path) -> None:
    url, said = _memory_url(), list[str]()
    uploader = Uploader(open_store(url), url, local, said.append)
    uploader.push(local / "incidents/000")
    uploader.finish()
    files = fsspec.filesystem("memory")
    assert files.cat_file(f"{url}/incidents/000/report.txt") == b"stuck"
    assert files.exists(f"{url}/job.json")
    assert said == [f"whystuck: the evidence is at {url}\n"]


def test_uploader_when_another_job_has_written_there_then_goes_below(local: Path) -> None:
    url, said = _memory_url(), list[str]()
    fsspec.filesystem("memory").pipe_file(f"{url}/job.json", b"of another job")
    Uploader(open_store(url), url, local, said.append).finish()
    assert fsspec.filesystem("memory").cat_file(f"{url}/job.json") == b"of another job"
    assert fsspec.filesystem("memory").exists(f"{url}/job-1/incidents/000/report.txt")
    assert said == [f"whystuck: the evidence is at {url}/job-1\n"]


def test_uploader_when_the_store_refuses_then_one_line_and_a_gap(local: Path) -> None:
    said: list[str] = []
    uploader = Uploader(_Broken(), "s3://me:secret@bucket/x", local, said.append)
    uploader.push(local / "incidents/000")
    uploader.finish()
    (line,) = said
    assert "no such bucket" in line
    assert "secret" not in line
    (gap,) = msgspec.json.decode((local / "incidents/000/gaps.json").read_bytes())
    assert "no such bucket" in gap["reason"]


def test_uploader_when_the_store_is_slow_then_is_not_waited_for(local: Path) -> None:
    said: list[str] = []
    store = _Slow()
    Uploader(store, "slow://x", local, said.append).finish(timeout_s=0.1)
    store.may_go_on.set()
    assert "not done" in said[-1]


def test_fetch_when_names_lead_out_or_files_are_large_then_they_are_left_out(
    tmp_path: Path,
) -> None:
    register_writer("hostile", lambda _: _Hostile())
    left_out = fetch_evidence("hostile://x", tmp_path)
    assert len(left_out) == 3
    assert [path.name for path in tmp_path.rglob("*")] == ["rank_0.log"]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://nobody-writes-here", "there is nothing"),
        ("nosuch://x", "nosuch"),
        ("mine2://x", "written to only"),
    ],
)
def test_fetch_when_there_is_nothing_to_read_then_says_why(
    tmp_path: Path, url: str, message: str
) -> None:
    register_writer("mine2", lambda _: _Broken())
    with pytest.raises(UsageError, match=message):
        fetch_evidence(url, tmp_path)


@pytest.mark.parametrize("scheme", ["local", "file"])
def test_run_when_evidence_is_a_url_then_diagnose_reads_it_back(
    tmp_path: Path, scheme: str
) -> None:
    url = f"{scheme}://{tmp_path / 'far away'}"
    done = run_whystuck("run", "--evidence", url, "--", *FAILS, cwd=tmp_path)
    assert done.returncode == 1
    assert (tmp_path / "far away/job.json").exists()
    read = run_whystuck("diagnose", "--format", "json", url, cwd=tmp_path)
    assert "no such shard" in json.loads(read.stdout)["findings"][0]["details"]["message"]
    assert read.returncode == 1


def test_run_when_the_url_cannot_be_used_then_the_job_is_not_started(tmp_path: Path) -> None:
    done = run_whystuck("run", "--evidence", "nosuch://x", "--", *FAILS, cwd=tmp_path)
    assert done.returncode == 2
    assert b"ValueError" not in done.stderr
    assert done.stderr.count(b"\n") == 2
    assert not (tmp_path / "whystuck").exists()


OWN_STORE = """
import pathlib
class Store:
    def __init__(self, url):
        self.root = pathlib.Path(url.partition("://")[2])
    def write(self, relative_path, data):
        path = self.root / relative_path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
"""


def test_run_when_a_writer_is_registered_then_it_gets_the_evidence(tmp_path: Path) -> None:
    package = tmp_path / "site"
    (package / "own_store-1.0.dist-info").mkdir(parents=True)
    (package / "own_store.py").write_text(OWN_STORE)
    (package / "own_store-1.0.dist-info/METADATA").write_text("Name: own-store\nVersion: 1.0\n")
    (package / "own_store-1.0.dist-info/entry_points.txt").write_text(
        "[whystuck.writers]\nours = own_store:Store\n"
    )
    done = run_whystuck(
        *("run", "--evidence", f"ours://{tmp_path}/kept", "--", *FAILS),
        cwd=tmp_path,
        environment={"PYTHONPATH": str(package)},
    )
    assert done.returncode == 1
    assert (tmp_path / "kept/incidents/000/report.json").exists()
