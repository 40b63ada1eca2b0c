"""Evidence behind a URL has limits, whatever its server says of sizes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from whystuck.collect import stores
from whystuck.evidence.errors import UsageError
from whystuck.guarded import url_stores
from whystuck.guarded.remote import list_remote

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


class Liar(Server):
    """A server whose answer depends on the first part of the path."""

    def answer(self) -> None:
        kind = self.path.split("/")[1]
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        if kind == "long":
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.send_without_end()
            return
        body = {
            "deep": b'<a href="a/">a</a><a href="sound.log">x</a>',
            "wide": "".join(f'<a href="{number}/">a</a>' for number in range(2000)).encode(),
            "slow-pattern": b"<a" + b" " * 200_000 + b'<a href="sound.log">x</a>',
        }[kind]
        body = LOG if self.path.endswith(".log") else body
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture
def url() -> Iterator[str]:
    """Where a server answers whose sizes are wrong."""
    yield from serve(Server)


@pytest.fixture
def liar() -> Iterator[str]:
    """Where a server answers whose pages have no end."""
    yield from serve(Liar)


def serve(kind: type[Server]) -> Iterator[str]:
    pytest.importorskip("aiohttp", reason="fsspec reads HTTP by aiohttp")
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
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


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["deep", "slow-pattern"])
def test_pages_that_go_on_for_ever_are_read_to_an_end(liar: str, tmp_path: Path, kind: str) -> None:
    place = liar.removesuffix("job") + kind

    assert stores.fetch_evidence(place, tmp_path) == []
    assert {path.read_bytes() for path in tmp_path.rglob("*.log")} == {LOG}


@pytest.mark.timeout(60)
def test_folders_without_an_end_are_refused(
    liar: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(url_stores, "_MAX_FOLDERS", 20)
    place = liar.removesuffix("job") + "wide"

    with pytest.raises(UsageError, match="without an end"):
        stores.fetch_evidence(place, tmp_path)
    with pytest.raises(UsageError, match="without an end"):
        list_remote(place)


@pytest.mark.timeout(60)
def test_a_page_without_an_end_is_refused(
    liar: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "MAX_FILE_BYTES", LIMIT)

    with pytest.raises(UsageError, match="it has more than"):
        stores.fetch_evidence(liar.removesuffix("job") + "long", tmp_path)


@pytest.mark.timeout(60)
def test_a_server_that_is_too_slow_is_left(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_PATIENCE_S", -1.0)

    with pytest.raises(UsageError, match="too slow"):
        stores.fetch_evidence(f"{url}/sound.log", tmp_path)
