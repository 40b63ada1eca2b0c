"""Names: the own one, that of the master, and whether name servers answer (N407)."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator

from whystuck.check.check import Check, Context
from whystuck.evidence.nodes.checks import CheckProblem, CheckResult, Outcome

_CODE = "N407"
_PORT = 53
_MOST_SERVERS = 3  # as many as the resolver uses
_LATE_HINT = "look at the name servers in /etc/resolv.conf, and at the network to them"


class Dns(Check):
    """Whether this node's name and that of the master are known, and in which time."""

    name = "dns"
    codes = (_CODE,)

    def run(self, context: Context) -> CheckResult:
        """Ask each name server for something small, then look names up."""
        timeout_s = context.policy.dns.server_timeout_s
        servers = list_servers(context)
        times = {server: ask_server(server, timeout_s) for server in servers}
        facts = {"name servers": ", ".join(servers)} if servers else {}
        figures = {f"server_{n}_ms": s * 1e3 for n, s in enumerate(times.values()) if s is not None}
        silent = [server for server, took_s in times.items() if took_s is None]
        problems = list(_judge_servers(silent, servers, timeout_s))
        # The resolver waits ten seconds for each name that only a dead server could tell.
        for name in _list_names(context):
            took_s, problem = look_up(name)
            figures[f"lookup_{name}_ms"] = took_s * 1e3
            problems += _judge_name(name, took_s, problem, context)
        return self.make_result(problems, facts=facts, figures=figures)

    def make_late_result(self, context: Context, deadline_s: float) -> CheckResult:
        """Return what it means that a look-up does not end."""
        names = ", ".join(_list_names(context))
        servers = ", ".join(list_servers(context))
        problem = CheckProblem(
            code=_CODE,
            severity="warning",
            text=f"looking up {names} did not end within {deadline_s:g} s",
            because=(f"the name servers are {servers or 'none'}",),
            remedies=(_LATE_HINT, "put the names of all nodes into /etc/hosts"),
            measures={"threshold_s": deadline_s},
            details={"names": names, "servers": servers},
        )
        return CheckResult(name=self.name, outcome=Outcome.WARNING, problems=(problem,))


def list_servers(context: Context) -> list[str]:
    """Return the addresses of the name servers that the resolver asks."""
    lines = (line.split() for line in context.read_text("/etc/resolv.conf").splitlines())
    found = [words[1] for words in lines if len(words) > 1 and words[0] == "nameserver"]
    return list(dict.fromkeys(found))[:_MOST_SERVERS]


def ask_server(address: str, timeout_s: float) -> float | None:
    """Return how long a name server takes to answer; None when it does not.

    It is asked for the servers of the root: any answer will do, a refusal too.
    """
    number = os.urandom(2)
    question = number + struct.pack(">HHHHH", 0x0100, 1, 0, 0, 0) + b"\0" + struct.pack(">HH", 2, 1)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    begun_s = time.monotonic()
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as asked:
            asked.connect((address.partition("%")[0], _PORT))
            asked.send(question)
            while (left_s := begun_s + timeout_s - time.monotonic()) > 0:
                asked.settimeout(left_s)
                if asked.recv(4096)[:2] == number:
                    return time.monotonic() - begun_s
    except (OSError, ValueError):
        return None
    return None


def look_up(name: str) -> tuple[float, str]:
    """Return how long it takes to find the addresses of a name, and why there are none."""
    begun_s = time.monotonic()
    try:
        socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return time.monotonic() - begun_s, str(getattr(error, "strerror", None) or error)
    return time.monotonic() - begun_s, ""


def _list_names(context: Context) -> list[str]:
    names = [socket.gethostname(), context.environment.get("MASTER_ADDR", "")]
    return [name for name in dict.fromkeys(names) if name]


def _judge_servers(
    silent: list[str], servers: list[str], timeout_s: float
) -> Iterator[CheckProblem]:
    if not silent:
        return
    are_all = len(silent) == len(servers)
    # The first one is asked first, each time.
    is_bad = are_all or servers[0] in silent
    who = "no name server answers" if are_all else "some name servers do not answer"
    yield CheckProblem(
        code=_CODE,
        severity="warning" if is_bad else "note",
        text=f"{who} within {timeout_s:g} s: {', '.join(silent)}",
        subject="name servers",
        because=("a question for the root servers got no answer",),
        remedies=(_LATE_HINT, "remove the dead ones from /etc/resolv.conf"),
        measures={"threshold_s": timeout_s},
        details={"servers": silent},
    )


def _judge_name(name: str, took_s: float, problem: str, context: Context) -> Iterator[CheckProblem]:
    most_s = context.policy.dns.max_lookup_s
    is_master = name == context.environment.get("MASTER_ADDR", "")
    if problem:
        what = "MASTER_ADDR" if is_master else "the name of this node"
        yield CheckProblem(
            code=_CODE,
            severity="error" if is_master else "warning",
            text=f"{what}, {name}, cannot be looked up: {problem}",
            subject=name,
            because=(f"getaddrinfo took {took_s:.3g} s",),
            remedies=(f"`getent hosts {name}`; put it into the DNS, or into /etc/hosts",),
            measures={"lookup_ms": took_s * 1e3},
        )
    elif took_s > most_s:
        yield CheckProblem(
            code=_CODE,
            text=f"looking up {name} takes {took_s:.3g} s, more than {most_s:g} s",
            subject=name,
            remedies=(_LATE_HINT, f"put {name} into /etc/hosts"),
            measures={"lookup_ms": took_s * 1e3, "threshold_ms": most_s * 1e3},
        )
