"""Evidence behind a URL has limits, whatever its server says of sizes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from urllib.parse import parse_qs

import fsspec
import pytest

from whystuck.collect import stores
from whystuck.evidence.errors import UsageError
from whystuck.guarded import remote, url_stores
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


# ------------------------------------------------------------------------------- a store of S3


class Bucket(Server):
    """A server of S3 whose listing depends on the folder that is asked for."""

    def answer(self) -> None:
        path, _, query = self.path.partition("?")
        asked = parse_qs(query)
        if self.command == "HEAD" or "list-type" not in asked:
            body = b"" if path.endswith("gone") else LOG
        else:
            [prefix] = asked["prefix"]
            body = LISTINGS[prefix.rstrip("/")](prefix).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Wed, 01 Jan 2025 00:00:00 GMT")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def list_keys(*keys: tuple[str, int], more: str = "") -> str:
    found = "".join(
        f"<Contents><Key>{key}</Key><Size>{size}</Size><ETag>e</ETag></Contents>"
        for key, size in keys
    )
    end = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{more}</NextContinuationToken>"
    return f"<ListBucketResult>{found}{end if more else ''}</ListBucketResult>"


_PAGES = count()
LISTINGS: dict[str, Callable[[str], str]] = {
    "endless": lambda prefix: list_keys(
        *((f"{prefix}{next(_PAGES)}.log", 1) for _ in range(100)), more="next"
    ),
    "empty": lambda _: list_keys(more="next"),
    "names": lambda prefix: list_keys(
        (f"{prefix}../../up.log", 35), (f"{prefix}/etc/root.log", 35), (f"{prefix}a", 35),
        (f"{prefix}a/b.log", 35), (f"{prefix}{'n' * 300}.log", 35), (f"{prefix}sound.log", 35),
    ),
    "sizes": lambda prefix: list_keys(
        (f"{prefix}few.log", -(1 << 62)), (f"{prefix}much.log", 1 << 62), (f"{prefix}sound.log", 35)
    ),
}  # fmt: skip


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a bucket whose server tells what it likes."""
    s3fs = pytest.importorskip("s3fs", reason="it reads S3")
    for place in serve(Bucket):
        options = {"endpoint_url": place.removesuffix("/job"), "anon": True}
        monkeypatch.setitem(fsspec.config.conf, "s3", options)
        s3fs.S3FileSystem.clear_instance_cache()
        yield "s3://bucket"
        s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.timeout(60)
def test_a_listing_of_s3_without_an_end_is_left(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (url_stores, remote, stores):
        monkeypatch.setattr(module, "MAX_FILES", 250)

    with pytest.raises(UsageError, match="there are 251 files, more than 250"):
        list_remote(f"{bucket}/endless")
    left_out = stores.fetch_evidence(f"{bucket}/endless", tmp_path)
    assert "too much for one diagnosis" in left_out[-1]
    assert len(list(tmp_path.iterdir())) <= 250


@pytest.mark.timeout(60)
def test_a_listing_of_s3_that_only_goes_on_is_left(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(url_stores, "_MAX_LIST_S", 2.0)

    for read in (list_remote, lambda url: stores.fetch_evidence(url, tmp_path)):
        with pytest.raises(UsageError, match="its server lists files for more than 2 s"):
            read(f"{bucket}/empty")


@pytest.mark.timeout(60)
def test_keys_of_s3_stay_in_the_folder(bucket: str, tmp_path: Path) -> None:
    target = tmp_path / "in" / "here"
    target.mkdir(parents=True)
    left_out = stores.fetch_evidence(f"{bucket}/names", target)

    assert [one.partition(":")[0][:8] for one in left_out] == ["../../up", "a/b.log", "nnnnnnnn"]
    assert "leads out of the folder" in left_out[0]
    inside = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert inside == {"a", "etc/root.log", "sound.log"}
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == {target / o for o in inside}


@pytest.mark.timeout(60)
def test_sizes_that_s3_says_are_no_figures_to_reckon_with(bucket: str, tmp_path: Path) -> None:
    sizes = [one.size_bytes for one in list_remote(f"{bucket}/sizes")]
    left_out = stores.fetch_evidence(f"{bucket}/sizes", tmp_path)

    assert sizes == [0, 1 << 62, len(LOG)]
    assert [one.partition(":")[0] for one in left_out] == ["much.log"]
