"""Where nodes meet: the store of the first one, and which of them this is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from whystuck.evidence.errors import UsageError

DEFAULT_PORT = 9601
_MOST_NODES = 100_000
_MOST_PORT = 65535
_COUNTS = ("PET_NNODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_RANKS = ("PET_NODE_RANK", "SLURM_NODEID")


@dataclass(frozen=True)
class MeetingPlace:
    """The store that node rank 0 serves, for ``nodes`` nodes of which this is number ``rank``."""

    host: str
    port: int
    nodes: int
    rank: int


def find_place(
    coordinator: str | None,
    nodes: int | None = None,
    rank: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> MeetingPlace | None:
    """Return where nodes meet; None where no coordinator is given.

    Args:
        coordinator: ``HOST`` or ``HOST:PORT`` of node rank 0.
        nodes: How many nodes there are; by variables of torchrun or Slurm when left out.
        rank: Which of them this is; likewise.
        environment: The variables; those of this process when left out.

    Raises:
        UsageError: It is not clear where, how many, or which.
    """
    if coordinator is None:
        if nodes is None and rank is None:
            return None
        raise UsageError(
            "`--nnodes` and `--node-rank` need `--coordinator`",
            hint="name the first node, e.g. `--coordinator n0:9601`, on all nodes",
        )
    known = os.environ if environment is None else environment
    nodes = nodes if nodes is not None else _find_number(known, _COUNTS)
    rank = rank if rank is not None else _find_number(known, _RANKS)
    if nodes is None or rank is None:
        raise UsageError(
            f"`--coordinator {coordinator}` needs `--nnodes` and `--node-rank`",
            hint="torchrun and Slurm set variables for them (PET_NNODES, SLURM_NNODES, …)",
        )
    if not 1 <= nodes <= _MOST_NODES or not 0 <= rank < nodes:
        raise UsageError(
            f"node rank {rank} is none of {nodes} nodes", hint="they are counted from 0"
        )
    host, port = _split(coordinator)
    return MeetingPlace(host, port, nodes, rank)


def _find_number(known: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    texts = (known.get(name, "") for name in names)
    return next((int(text) for text in texts if text.isascii() and text.isdecimal()), None)


def _split(coordinator: str) -> tuple[str, int]:
    """Return host and port; an address of IPv6 with a port is in brackets."""
    host, port = coordinator, str(DEFAULT_PORT)
    if coordinator.startswith("["):
        host, _, rest = coordinator[1:].partition("]")
        port = rest[1:] if rest.startswith(":") else "" if rest else port
    elif coordinator.count(":") == 1:
        host, _, port = coordinator.partition(":")
    is_port = port.isascii() and port.isdecimal() and 0 < int(port) <= _MOST_PORT
    if not host or not is_port:
        raise UsageError(
            f"`--coordinator {coordinator}` is not HOST or HOST:PORT",
            hint="e.g. `--coordinator n0:9601`, `--coordinator [fd00::1]:9601`",
        )
    return host, int(port)
