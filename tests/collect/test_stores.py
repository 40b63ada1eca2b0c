"""Evidence behind a URL has limits, whatever its server says of sizes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from whystuck.collect import stores
from whystuck.evidence.errors import UsageError

LOG = b"Traceback (most recent call last):\n"
LIMIT = 1 << 20


class Server(BaseHTTPRequestHandler):
    """A folder with a log that has no end, and says no size, and one that is sound."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        self.send_response(200)
        if self.path.endswith("endless.log"):
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.send_without_end()
            return
        links = "".join(f'<a href="/job/{name}.log">x</a>' for name in ("endless", "sound"))
        body = LOG if self.path.endswith("sound.log") else links.encode()
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def send_without_end(self) -> None:
        piece = b"x" * 0xFFFF + b"\n"
        try:
            while self.command == "GET":
                self.wfile.write(b"10000\r\n" + piece + b"\r\n")
        except OSError:  # the reader has had enough
            self.close_connection = True


@pytest.fixture
def url() -> Iterator[str]:
    """Where such a server answers."""
    pytest.importorskip("aiohttp", reason="fsspec reads HTTP by aiohttp")
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/job"
        server.shutdown()
        thread.join()


@pytest.mark.timeout(60)
def test_file_without_an_end_is_left_out_and_the_others_are_read(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "MAX_FILE_BYTES", LIMIT)

    [left_out] = stores.fetch_evidence(url, tmp_path)

    assert left_out == f"endless.log: it has more than {LIMIT} bytes"
    assert [one.name for one in tmp_path.iterdir()] == ["sound.log"]
    assert (tmp_path / "sound.log").read_bytes() == LOG


@pytest.mark.timeout(60)
def test_files_count_as_what_they_are_and_not_as_what_is_said(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "MAX_TOTAL_BYTES", len(LOG) - 1)
    monkeypatch.setattr(stores, "MAX_FILE_BYTES", LIMIT)

    with pytest.raises(UsageError, match="bytes"):
        stores.fetch_evidence(f"{url}/sound.log", tmp_path)
    assert not list(tmp_path.iterdir())
