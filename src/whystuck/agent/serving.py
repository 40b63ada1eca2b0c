"""The parts that others talk to: jobs by the fabric, commands by a socket file and by TCP."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from whystuck.agent.config import AgentConfig, PrometheusSection, RpcSection
from whystuck.agent.parts import Core, Part
from whystuck.evidence.agent import RPC_SOCKET
from whystuck.evidence.errors import UsageError

if TYPE_CHECKING:
    from whystuck.agent.fabric.endpoint import FabricEndpoint
    from whystuck.agent.interfaces import RpcCall
    from whystuck.agent.rpc.auth import RpcAuth
    from whystuck.agent.rpc.server import RpcServer


class FabricSocket(Part):
    """Where torch processes ask for work."""

    name = "the socket of jobs"
    asked_by = ("fabric.abstract", "fabric.all_users")

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._endpoint: FabricEndpoint | None = None

    async def start(self, config: AgentConfig) -> None:
        """Listen in the folder of the agent, or on the abstract name."""
        from whystuck.agent.fabric.addresses import AbstractAddress, PathAddress
        from whystuck.agent.fabric.endpoint import FabricEndpoint

        fabric, core = config.fabric, self.core
        if not fabric.enabled:
            return
        address = (
            AbstractAddress()
            if fabric.abstract
            else PathAddress(core.folder, claim=core.claim, is_shared=fabric.all_users)
        )
        endpoint = FabricEndpoint(
            core.handler, address, any_uid=fabric.all_users, repeat=core.handler.repeat
        )
        endpoint.start()
        self._endpoint = endpoint

    async def stop(self) -> None:
        """Stop listening, and remove the socket."""
        self.abandon()

    def abandon(self) -> None:
        """Stop listening, and remove the socket: a stale one holds up jobs that end."""
        if self._endpoint:
            self._endpoint.close()
            self._endpoint = None

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Return the counts of datagrams."""
        return {"fabric": msgspec.to_builtins(self._endpoint.counts)} if self._endpoint else {}

    def problems(self) -> Mapping[str, str]:
        """Return why the socket is gone."""
        problem = self._endpoint.problem if self._endpoint else ""
        return {self.name: problem} if problem else {}


class _RpcPart(Part):
    takes_requests = True
    short_name = ""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._server: RpcServer | None = None

    def _make_server(self) -> RpcServer:
        from whystuck.agent.rpc.server import RpcServer

        self._server = RpcServer(make_calls(self.core))
        return self._server

    async def stop(self) -> None:
        """Stop listening; calls that are being answered end."""
        server, self._server = self._server, None
        if server:
            await server.close()

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Return the counts of calls."""
        counters = self._server.counters if self._server else None
        return {self.short_name: msgspec.to_builtins(counters)} if counters else {}


class CommandSocket(_RpcPart):
    """The socket file in the folder, for commands of this user."""

    name = "the socket of commands"
    short_name = "commands"

    async def start(self, config: AgentConfig) -> None:  # noqa: ARG002 - it has no settings
        """Listen."""
        await self._make_server().listen_unix(self.core.folder / RPC_SOCKET)

    def is_lost(self) -> bool:
        """Whether the socket file was removed."""
        return not (self.core.folder / RPC_SOCKET).exists()

    def abandon(self) -> None:
        """Remove the socket file."""
        if self._server:
            (self.core.folder / RPC_SOCKET).unlink(missing_ok=True)


class TcpPort(_RpcPart):
    """The port of dynolog, on loopback unless an address is given."""

    name = "the TCP port"
    short_name = "tcp"
    asked_by = (
        "rpc.host",
        "rpc.port",
        "rpc.token_file",
        "rpc.tls_cert",
        "rpc.tls_key",
        "rpc.tls_client_ca",
    )
    sections = ("rpc",)
    # The token and the certificates may be new.
    is_always_reloaded = True

    async def start(self, config: AgentConfig) -> None:
        """Listen, where a port is wanted."""
        if config.rpc.port:
            auth = make_auth(config.rpc)
            self.core.port = await self._make_server().listen_tcp(
                config.rpc.port, config.rpc.host, auth
            )

    async def stop(self) -> None:
        """Stop listening."""
        self.core.port = 0
        await super().stop()

    def check(self, config: AgentConfig) -> None:
        """See that the token and the certificates can be read."""
        if config.rpc.port:
            make_auth(config.rpc)


def make_auth(rpc: RpcSection | PrometheusSection) -> RpcAuth:
    """Return what TCP clients must show: without a token, to be this user or root.

    Raises:
        UsageError: A file cannot be read, or a certificate lacks its key.
    """
    from whystuck.agent.rpc.auth import RpcAuth, make_server_tls, read_token
    from whystuck.agent.rpc.peers import trusted_uids

    token = read_token(Path(rpc.token_file)) if rpc.token_file else ""
    if bool(rpc.tls_cert) != bool(rpc.tls_key) or (rpc.tls_client_ca and not rpc.tls_cert):
        raise UsageError(
            "TLS needs both a certificate and its key",
            hint="give `tls_cert` and `tls_key`, by option or in the settings, or neither",
        )
    tls = None
    if rpc.tls_cert:
        client_ca = Path(rpc.tls_client_ca) if rpc.tls_client_ca else None
        tls = make_server_tls(Path(rpc.tls_cert), Path(rpc.tls_key), client_ca)
    return RpcAuth(token=token, tls=tls, uids=None if token else trusted_uids())


def make_calls(core: Core) -> dict[str, RpcCall]:
    """Return all calls: those of dynolog's client, and ours."""
    from whystuck.agent.rpc.dyno_calls import DynoCalls
    from whystuck.agent.rpc.own_calls import OwnCalls

    dyno = DynoCalls(core.registry, core.tracer)
    own = OwnCalls(core.registry, core.tracer, core.status)
    return {**dyno.table(), **own.table()}
