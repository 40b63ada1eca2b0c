"""All checks, in the order in which they are told."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from whystuck.check.check import Check, Context
from whystuck.check.compute.allreduce import AllReduce
from whystuck.check.compute.gemm import Gemm
from whystuck.check.compute.training import Training
from whystuck.check.compute.versions import Versions
from whystuck.check.devices.device import Device
from whystuck.check.devices.links import DeviceLinks, Pcie
from whystuck.check.devices.peers import DevicePeers
from whystuck.check.host.cgroup import Cgroup
from whystuck.check.host.clock import Clock
from whystuck.check.host.facts import Facts
from whystuck.check.host.kernel_log import KernelLog
from whystuck.check.host.limits import Limits
from whystuck.check.host.memory import Memory
from whystuck.check.network.dns import Dns
from whystuck.check.network.fabric import Fabric
from whystuck.check.network.nic import Nic
from whystuck.check.nodes.allreduce import NodeAllReduce
from whystuck.check.nodes.clocks import NodeClocks
from whystuck.check.nodes.meeting import Meet, NodesCheck
from whystuck.check.nodes.pairs import Pairs
from whystuck.check.nodes.place import MeetingPlace
from whystuck.check.nodes.speed import NodeSpeed
from whystuck.check.nodes.versions import NodeVersions
from whystuck.check.policy import CheckPolicy
from whystuck.check.storage.disk import Disk
from whystuck.check.storage.shm import Shm
from whystuck.evidence.errors import UsageError

ALWAYS = Facts
CHECKS: tuple[type[Check], ...] = (
    Facts,
    Disk,
    Shm,
    Limits,
    Cgroup,
    Memory,
    Clock,
    Dns,
    Nic,
    Fabric,
    KernelLog,
    Device,
    Pcie,
    DeviceLinks,
    DevicePeers,
    Versions,
    Gemm,
    AllReduce,
)
# Made with `--deep`, or when they are named.
DEEP: tuple[type[Check], ...] = (Training,)
# Made with `--coordinator`, in this order, behind those of one node.
TOGETHER: tuple[type[NodesCheck], ...] = (
    NodeVersions,
    NodeClocks,
    NodeSpeed,
    Pairs,
    NodeAllReduce,
)


def list_names() -> list[str]:
    """Return the names of all checks."""
    return list(dict.fromkeys(check.name for check in (*CHECKS, *DEEP, *TOGETHER)))


def choose_checks(
    only: Sequence[str] = (), *, is_deep: bool = False, is_together: bool = False
) -> list[Check]:
    """Return the checks of some names, or all; facts are told always.

    Args:
        only: The names.
        is_deep: Whether all are those that take minutes, too.
        is_together: Whether this node meets others.

    Raises:
        UsageError: There is no check of a name, or it needs other nodes.
    """
    known = list_names()
    unknown = [name for name in only if name not in known]
    if unknown:
        raise UsageError(
            f"there is no check `{unknown[0]}`", hint=f"the checks are {', '.join(known)}"
        )
    if Pairs.name in only and not is_together:
        raise UsageError(
            f"the check `{Pairs.name}` needs other nodes",
            hint="on each of them: `whystuck check --coordinator n0 --nnodes 4 --node-rank 0`",
        )
    alone = (*CHECKS, *DEEP) if only or is_deep else CHECKS
    chosen = [check() for check in alone if not only or check is ALWAYS or check.name in only]
    together = [check() for check in TOGETHER if not only or check.name in only]
    if not is_together or not together:
        return chosen
    return [*chosen, Meet([check.part for check in together]), *together]


def make_context(
    policy: CheckPolicy,
    disks: Sequence[Path],
    *,
    is_deep: bool = False,
    meeting: MeetingPlace | None = None,
) -> Context:
    """Return what checks of this node are told; no path is touched."""
    return Context(
        policy=policy,
        node=socket.gethostname() or "localhost",
        disks=tuple(dict.fromkeys([*disks, *map(Path, policy.disk.paths)])),
        is_deep=is_deep,
        meeting=meeting,
    )


def choose_disks(disks: Sequence[str] = ()) -> list[Path]:
    """Return the paths to write to, made absolute; none is touched, as it may hang.

    They are the working directory and the one for temporary files where none are named.
    """
    if disks:
        return [Path(os.path.abspath(disk)) for disk in disks]  # noqa: PTH100 - looks nothing up
    temporary = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - the default of all
    try:
        here = [Path(os.getcwd())]  # noqa: PTH109 - as above
    except OSError:
        here = []
    return list(dict.fromkeys([*here, temporary]))
