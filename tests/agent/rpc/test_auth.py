"""Beyond this machine only who has the token gets in, and only through TLS."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agent.rpc.parts import make_certificate, running

from whystuck.agent.rpc.auth import RpcAuth, make_client_tls, make_server_tls, read_token
from whystuck.agent.rpc.client import CallError, RpcAddress, call
from whystuck.evidence.errors import UsageError

TOKEN = "correct-horse-battery"


@pytest.fixture(scope="module")
def cert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def other_cert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"), "other")


def try_call(auth: RpcAuth, token: str, tls: ssl.SSLContext | None, host: str = "127.0.0.1") -> str:
    """Return the status, or the kind of error."""

    async def work() -> str:
        async with running(auth=auth, address="0.0.0.0") as agent:
            address = RpcAddress(host=host, port=agent.port, token=token, tls=tls)
            try:
                return str((await call(address, "getStatus", {}, timeout_s=20))["status"])
            except CallError as error:
                return error.kind

    return asyncio.run(work())


def make_auth(cert: Path, client_ca: Path | None = None) -> RpcAuth:
    return RpcAuth(token=TOKEN, tls=make_server_tls(cert, cert.with_suffix(".key"), client_ca))


def test_token_and_tls_get_in(cert: Path) -> None:
    assert try_call(make_auth(cert), TOKEN, make_client_tls(cert)) == "1"


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", TOKEN[:-1], "é"])
def test_wrong_token_is_not_answered(cert: Path, token: str) -> None:
    assert try_call(make_auth(cert), token, make_client_tls(cert)) == "closed"


def test_certificate_of_somebody_else_is_not_trusted(cert: Path, other_cert: Path) -> None:
    assert try_call(make_auth(cert), TOKEN, make_client_tls(other_cert)) == "untrusted"


def test_certificate_for_another_host_is_not_trusted(tmp_path: Path) -> None:
    cert = make_certificate(tmp_path, host="elsewhere")

    assert try_call(make_auth(cert), TOKEN, make_client_tls(cert), "localhost") == "untrusted"


def test_client_without_tls_gets_nothing(cert: Path) -> None:
    assert try_call(make_auth(cert), TOKEN, None) in {"closed", "garbled", "refused"}


def test_client_certificate_is_asked_for(cert: Path, other_cert: Path) -> None:
    auth = make_auth(cert, client_ca=other_cert)
    key = other_cert.with_suffix(".key")

    assert try_call(auth, TOKEN, make_client_tls(cert, other_cert, key)) == "1"
    assert try_call(auth, TOKEN, make_client_tls(cert)) in {"untrusted", "closed", "refused"}


def test_token_does_not_leave_the_machine_in_the_clear() -> None:
    address = RpcAddress(host="198.51.100.1", token=TOKEN)

    with pytest.raises(UsageError, match="unencrypted"):
        asyncio.run(call(address, "getStatus", {}, timeout_s=1))
    assert TOKEN not in repr(address)
    assert TOKEN not in repr(RpcAuth(token=TOKEN))


LISTENS_AS_OTHER_USER = """
import os, socket
server = socket.create_server(("127.0.0.1", 0))
server.close()
os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
server = socket.socket()
server.bind(("127.0.0.1", 0))
server.listen()
print(server.getsockname()[1], flush=True)
print(server.accept()[0].recv(100), flush=True)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_token_does_not_go_to_another_user_who_listens_in_place_of_the_agent() -> None:
    command = [sys.executable, "-c", LISTENS_AS_OTHER_USER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        address = RpcAddress(host="127.0.0.1", port=int(other.stdout.readline()), token=TOKEN)

        with pytest.raises(UsageError, match="to user 65534") as caught:
            asyncio.run(call(address, "getStatus", {}, timeout_s=60))

        assert "--tls-ca" in caught.value.hint
        assert other.stdout.readline() == "b''\n"


def test_token_goes_to_an_agent_of_ours_on_this_machine() -> None:
    async def work() -> None:
        async with running(auth=RpcAuth(token=TOKEN)) as agent:
            address = RpcAddress(host="localhost", port=agent.port, token=TOKEN)
            assert await call(address, "getStatus", {}, timeout_s=60) == {"status": 1}

    asyncio.run(work())


@pytest.mark.parametrize("token", ["", "\ud800" * 16, "é" * 16, None, 7, [], {"a": 1}, TOKEN + "x"])
def test_what_is_not_the_token_is_refused_whatever_it_is(token: object) -> None:
    assert not RpcAuth(token=TOKEN).takes(token)


def test_token_file_is_read_without_its_line_end(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)

    assert read_token(path) == TOKEN


@pytest.mark.parametrize(
    ("content", "mode", "match"),
    [
        (TOKEN.encode(), 0o644, "can be read by others"),
        (b"short", 0o600, "holds no token"),
        (b"", 0o600, "holds no token"),
        (b"two words of a phrase", 0o600, "holds no token"),
        (b"\xff" * 40, 0o600, "holds no token"),
        (b"a" * 5000, 0o600, "holds no token"),
    ],
)
def test_token_file_that_is_no_secret_is_refused(
    tmp_path: Path, content: bytes, mode: int, match: str
) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    path.chmod(mode)

    with pytest.raises(UsageError, match=match) as caught:
        read_token(path)
    assert caught.value.hint


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_token_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    os.chown(path, 65534, 65534)

    with pytest.raises(UsageError, match="belongs to user 65534"):
        read_token(path)


def test_pipe_in_place_of_a_token_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "token", 0o600)

    with pytest.raises(UsageError, match="no regular file"):
        read_token(tmp_path / "token")


def test_missing_files_are_clear_errors(tmp_path: Path, cert: Path, other_cert: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_token(tmp_path / "none")
    with pytest.raises(UsageError, match="cannot be used: No such file"):
        make_server_tls(tmp_path / "none", cert.with_suffix(".key"))
    with pytest.raises(UsageError, match="cannot be used"):
        make_server_tls(cert, other_cert.with_suffix(".key"))
    with pytest.raises(UsageError, match="cannot be used"):
        make_client_tls(tmp_path / "none")
