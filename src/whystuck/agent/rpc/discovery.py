"""Which nodes a request goes to: those of a list of hosts, or the agents of this machine."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from whystuck.agent.rpc.client import RpcAddress
from whystuck.evidence.agent import (
    DYNO_PORT,
    RPC_SOCKET,
    AgentRecord,
)
from whystuck.evidence.errors import UsageError

_MAX_NODES = 4096
_MAX_PORT = 65535


@dataclass(frozen=True)
class Node:
    """An agent that can be called; ``is_local`` when its files lie on this machine."""

    name: str
    address: RpcAddress
    is_local: bool = False


class Discovery(Protocol):
    """Finds the agents of a job's nodes."""

    def find_nodes(self) -> list[Node]:
        """Return them; raises UsageError when the question makes no sense."""


@dataclass(frozen=True)
class HostList:
    """Nodes as a user lists them: ``a,b:1779,[fe80::1]:1778``."""

    text: str
    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None

    def find_nodes(self) -> list[Node]:
        """Return a node for each host, each once."""
        hosts = [part.strip() for part in self.text.split(",") if part.strip()]
        if not hosts:
            raise UsageError("no node is named", hint="e.g. `--nodes node1,node2`")
        if len(hosts) > _MAX_NODES:
            raise UsageError(
                f"{len(hosts)} nodes are too many", hint=f"at most {_MAX_NODES} at once"
            )
        return [self._make(host) for host in dict.fromkeys(hosts)]

    def _make(self, text: str) -> Node:
        host, port = _split_host(text)
        return Node(text, RpcAddress(host=host, port=port, token=self.token, tls=self.tls))


@dataclass(frozen=True)
class LocalAgents:
    """The agents of this machine, by their records."""

    records: Sequence[AgentRecord]

    def find_nodes(self) -> list[Node]:
        """Return a node for each; where several have one name, their pid tells them apart."""
        names = [one.node for one in self.records]
        return [
            Node(
                one.node if names.count(one.node) == 1 else f"{one.node}, agent {one.pid}",
                RpcAddress(path=f"{one.folder}/{RPC_SOCKET}"),
                is_local=True,
            )
            for one in self.records
        ]


def _split_host(text: str) -> tuple[str, int]:
    host, port = text, ""
    if text.startswith("["):
        host, closed, port = text[1:].partition("]")
        host = host if closed else ""
        port = port.removeprefix(":")
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
        host = host if port else ""
    is_port = not port or (port.isascii() and port.isdigit() and 0 < int(port) <= _MAX_PORT)
    if not host or not is_port or any(char.isspace() or char in "/@,[]" for char in host):
        raise UsageError(f"`{text}` is no node", hint="give HOST, HOST:PORT or [IPV6]:PORT")
    return host, int(port) if port else DYNO_PORT
