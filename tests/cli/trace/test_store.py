"""Traces, partials, tables and reports in a store behind URLs: a real S3 server on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.trace.test_analyze import Run, run, write_trace
from tests.ports import find_port

__all__ = ["run"]

BUCKET = "traces"
pytestmark = pytest.mark.slow


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        assert server.poll() is None, "the server has ended"
        try:
            urllib.request.urlopen(url, timeout=60).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    pytest.fail("the server does not answer")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    port = find_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{url}/moto-api/", server)
        yield url
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def store(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """The store as users set it up: by variables, which workers have, too."""
    import s3fs

    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    urllib.request.urlopen(
        urllib.request.Request(f"{endpoint}/moto-api/reset", method="POST"), timeout=60
    ).close()
    files = s3fs.S3FileSystem()
    files.mkdir(BUCKET)

    def listed(folder: str) -> dict[str, bytes]:
        files.invalidate_cache()
        found = files.find(f"{BUCKET}/{folder}")
        return {str(path).rpartition("/")[2]: files.cat_file(path) for path in found}

    def put(name: str, path: Path) -> None:
        files.put_file(str(path), f"{BUCKET}/{name}")

    listed.put = put  # type: ignore[attr-defined]
    return listed


def test_all_of_it_can_lie_in_a_store(run: Run, store: Any, tmp_path: Path) -> None:
    # GIVEN the traces of three ranks in a bucket, one of them broken
    for rank in range(2):
        store.put(f"in/rank{rank}.json.gz", write_trace(tmp_path / f"{rank}.json.gz", rank))
    (tmp_path / "broken.json").write_text('{"schemaVersion": 1, "deviceProperties": []}')
    store.put("in/rank2.json", tmp_path / "broken.json")

    # WHEN they are analysed, twice
    arguments = [
        "trace", "analyze", f"s3://{BUCKET}/in", "--partials", f"s3://{BUCKET}/partials",
        "--tables", f"s3://{BUCKET}/out", "-o", f"s3://{BUCKET}/report/r.json", "--format", "json",
    ]  # fmt: skip
    first = run(*arguments)
    partials = store("partials")
    second = run(*arguments)
    again = run("trace", "analyze", f"s3://{BUCKET}/partials", "--tables", tmp_path / "again")

    # THEN tables, partials and report are there, and the partials are those of the first time
    assert (first, second) == ((0, "", ""), (0, "", ""))
    assert len(partials) >= 2
    assert store("partials") == partials
    tables = store("out")
    assert tables["temporal_breakdown.csv"].splitlines()[1].startswith(b"0,0,10000")
    report = json.loads(store("report")["r.json"])
    assert report["coverage"]["ranks_seen"] == 2
    # ... and the partials alone tell the same
    assert again[0] == 0
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == tables


def test_one_file_of_a_store_is_enough(run: Run, store: Any, tmp_path: Path) -> None:
    store.put("one/any name.json", write_trace(tmp_path / "t.json", 3))

    code, out, err = run("trace", "analyze", f"s3://{BUCKET}/one/any name.json")

    assert (code, err) == (0, "")
    assert "read 1 of 4 ranks" in out


@pytest.mark.parametrize("url", [f"s3://{BUCKET}/nothing", "s3://no-such-bucket/x"])
def test_nothing_there_is_a_usage_error(run: Run, store: Any, url: str) -> None:
    code, out, err = run("trace", "analyze", url)

    assert (code, out) == (2, "")
    assert err.startswith(f"error: cannot read `{url}`: ")


def test_tables_in_a_bucket_that_is_not_there(run: Run, store: Any, tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.json", 0)

    code, out, err = run("trace", "analyze", trace, "--tables", "s3://no-such-bucket/x")

    assert (code, out) == (2, "")
    assert err.startswith("error: cannot write to `s3://no-such-bucket/x`: ")
