"""N420 allreduce-slow."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose.check_rule import CheckRule


class AllReduceSlow(CheckRule):
    """Collectives among processes of this node are slow.

    ## What it means

    The bus bandwidth is far below what such a node reaches. All steps take longer.

    ## How it is found

    The time of the slowest rank, its median over some repeats, gives `busbw = 2(n-1)/n × size /
    time`, as nccl-tests counts. Definition, size and number of ranks are always told; with one rank
    there is no bus, and no figure.

    ## False alarms

    A busy node: the processes share its CPUs.

    ## What to do

    Look for peer-to-peer access that is switched off, and for other users.
    """

    code = "N420"
    name = "allreduce-slow"
    remedies: ClassVar[tuple[str, ...]] = (
        "`NCCL_DEBUG=INFO` tells the transport between devices; `nvidia-smi topo -m`",
    )
