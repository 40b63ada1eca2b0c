"""Who may call: a token in a file of its own, and TLS from files that the user names."""

from __future__ import annotations

import hmac
import os
import ssl
import stat
from dataclasses import dataclass, field
from pathlib import Path

from whystuck.agent.rpc.peers import is_loopback
from whystuck.evidence.errors import UsageError

_MIN_TOKEN_CHARS = 16
_MAX_TOKEN_BYTES = 4096


@dataclass(frozen=True)
class RpcAuth:
    """What a listener asks of those who connect.

    An empty ``token`` asks for none; ``uids`` of None takes any user of this machine. Other
    machines are never asked for a uid, as theirs means nothing here.
    """

    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    uids: frozenset[int] | None = None

    def check_address(self, address: str) -> None:
        """Raise UsageError when other machines reach ``address``, and the listener asks for little.

        A token is never to cross a network that others can listen to.
        """
        if not is_loopback(address) and address != "localhost" and not (self.token and self.tls):
            raise UsageError(
                f"to listen on {address} needs a token and TLS, as other machines reach it",
                hint="give a token file, a certificate and its key, or leave the address out",
            )

    def takes(self, token: object) -> bool:
        """Return whether a request with this ``token`` may go on."""
        if not self.token:
            return True
        # compare_digest takes the same time wherever the two differ.
        if not isinstance(token, str):
            return False
        # A request may hold half of a character, which no encoding has.
        return hmac.compare_digest(token.encode(errors="replace"), self.token.encode())


def read_token(path: Path) -> str:
    """Return the token that a file holds.

    Raises:
        UsageError: It cannot be read, is another user's, others may read it, or it is too short to
            be a secret.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            is_plain = stat.S_ISREG(status.st_mode)
            raw = file.read(_MAX_TOKEN_BYTES + 1) if is_plain else b""
    except OSError as error:
        raise UsageError(
            f"the token file {path} cannot be read: {error.strerror or error}",
            hint=f"make one with `umask 077; openssl rand -hex 32 > {path}`",
        ) from error
    if not is_plain:
        raise UsageError(f"the token file {path} is no regular file", hint="name one that is")
    if status.st_uid not in {0, os.geteuid()}:
        raise UsageError(
            f"the token file {path} belongs to user {status.st_uid}, who knows the token",
            hint="make one of your own",
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise UsageError(
            f"the token file {path} can be read by others", hint=f"`chmod 600 {path}` mends it"
        )
    return _check_token(raw, path)


def _check_token(raw: bytes, path: Path) -> str:
    try:
        token = raw.decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if len(raw) > _MAX_TOKEN_BYTES or not token.isprintable() or " " in token:
        token = ""
    if len(token) < _MIN_TOKEN_CHARS:
        raise UsageError(
            f"the token file {path} holds no token: it is one line of {_MIN_TOKEN_CHARS} "
            "characters or more",
            hint=f"make one with `umask 077; openssl rand -hex 32 > {path}`",
        )
    return token


def make_server_tls(cert: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """Return the TLS of a listener; with ``client_ca`` its clients need a certificate, too.

    Raises:
        UsageError: A file cannot be read, or the key is not of the certificate.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_chain(context, cert, key)
    if client_ca is not None:
        _load_ca(context, client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def make_client_tls(
    ca: Path, cert: Path | None = None, key: Path | None = None, *, check_name: bool = True
) -> ssl.SSLContext:
    """Return the TLS of a client that trusts the authority in ``ca`` and no other.

    Raises:
        UsageError: A file cannot be read, or holds no certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = check_name
    _load_ca(context, ca)
    if cert is not None:
        _load_chain(context, cert, key or cert)
    return context


def _load_chain(context: ssl.SSLContext, cert: Path, key: Path) -> None:
    try:
        # An empty password makes an encrypted key an error instead of a question.
        context.load_cert_chain(cert, key, password="")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the certificate {cert} with the key {key} cannot be used: {_say(error)}",
            hint="both are PEM files, and the key has no password",
        ) from error


def _load_ca(context: ssl.SSLContext, ca: Path) -> None:
    try:
        context.load_verify_locations(cafile=ca)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the certificates of {ca} cannot be used: {_say(error)}", hint="it is a PEM file"
        ) from error


def _say(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
