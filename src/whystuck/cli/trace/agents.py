"""Which agents the commands over live traces talk to: those of this machine, or of a list."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from whystuck.cli.adding import add_options
from whystuck.cli.number_range import NumberRange
from whystuck.evidence.errors import UsageError, WhystuckError

if TYPE_CHECKING:
    from whystuck.agent.rpc.discovery import Node

NOTHING_MATCHED = 3
_OPTIONS = (
    click.option(
        "--nodes",
        metavar="A,B[:PORT]",
        default="",
        help="Ask the agents of these hosts.  [default: all agents of this user on this host]",
    ),
    click.option(
        "--token-file", metavar="FILE", help="The token of the agents of other hosts, in a file."
    ),
    click.option(
        "--tls-ca", metavar="FILE", help="Use TLS, and trust certificates that this one signed."
    ),
    click.option(
        "--tls-cert", metavar="FILE", help="A certificate of ours, for agents that ask for one."
    ),
    click.option("--tls-key", metavar="FILE", help="Its key."),
    click.option(
        "--node-timeout",
        "node_timeout_s",
        metavar="S",
        type=NumberRange(min=0.1, max=600),
        default=4.0,
        show_default=True,
        help="How long an agent may take to answer before it counts as mute.",
    ),
)


class NoAgentError(WhystuckError):
    """No agent runs here, so nothing can be asked."""

    exit_code = NOTHING_MATCHED


def agent_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options that choose agents; it gets ``nodes``, a list, for them."""

    @functools.wraps(command)
    def wrapped(
        *,
        nodes: str,
        token_file: str | None,
        tls_ca: str | None,
        tls_cert: str | None,
        tls_key: str | None,
        **rest: Any,  # noqa: ANN401 - the options of the command
    ) -> int:
        tls = (tls_ca, tls_cert, tls_key)
        job = rest.get("job") or ""
        found, is_job = find_nodes(nodes, token_file, tls, job)
        if is_job:
            rest["job"] = ""
        return command(nodes=found, **rest)

    return add_options(wrapped, _OPTIONS)


def find_nodes(
    hosts: str, token_file: str | None, tls: Sequence[str | None], job: str
) -> tuple[list[Node], bool]:
    """Return the agents to ask, and whether ``job`` is one of them and so needs no other choice.

    Raises:
        UsageError: The options do not go together.
        NoAgentError: No agent of this user runs here.
    """
    from whystuck.agent.rpc.auth import make_client_tls, read_token
    from whystuck.agent.rpc.discovery import HostList

    ca, cert, key = tls
    if (cert or key) and not ca:
        raise UsageError("--tls-cert needs --tls-ca", hint="give the authority of the agents, too")
    if not hosts:
        if token_file or ca:
            raise UsageError(
                "a token and TLS are for agents of other hosts", hint="name them with --nodes"
            )
        return _find_local(job)
    token = read_token(Path(token_file)) if token_file else ""
    own = (Path(cert) if cert else None, Path(key) if key else None)
    context = make_client_tls(Path(ca), *own) if ca else None
    return HostList(hosts, token, context).find_nodes(), False


def _find_local(job: str) -> tuple[list[Node], bool]:
    from whystuck.agent.agent_list import find_agent, list_agents
    from whystuck.agent.rpc.discovery import LocalAgents

    record = find_agent(job) if job else None
    records = [record] if record else list_agents()
    if not records:
        raise NoAgentError(
            "no agent of this user runs on this host",
            hint="`whystuck run` starts one for its job, `whystuck agent` one for the node",
        )
    return LocalAgents(records).find_nodes(), record is not None
