"""N408 nic-down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.check_rule import CheckRule
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.evidence.finding import Finding


class NicDown(CheckRule):
    """A network interface that is asked for, has an address, or that a route uses, is down.

    ## What it means

    Ranks cannot reach each other over it, and wait in the rendezvous until it times out.

    ## How it is found

    Interfaces are matched with `NCCL_SOCKET_IFNAME`, `GLOO_SOCKET_IFNAME` and `TP_SOCKET_IFNAME`,
    and with the routes and addresses of the kernel; a route goes when its interface is switched
    off, and the address stays. One that nothing asks for may be down, and so may a bridge without
    ports, unless no interface that was up before is left.

    Of texts, a port that `ibstat`, `ibdev2netdev`, `rdma link`, `ethtool` or `ip link` show to be
    down, where NCCL (`Got async event : port error`) or the kernel (`Link down`) say that it went
    down while ranks worked. Or a port of which both the kernel of a host (`mlx5_core` or `bnxt_en`,
    `Link down`) and NCCL there say that it went down, where nothing says that one came back.
    Without a look and by one of the two alone, or where the card itself broke, it is C208. Or an
    interface of which gloo finds no address, and that `ip -br addr` shows to be down there.

    Or a port of which NCCL (`port error`, `port active`) or the kernel (`Link down`, `Link up`)
    say that it lost its link and got it back: it flaps.

    ## False alarms

    A variable that is meant for another node.

    ## What to do

    Bring the link up, or name another interface.
    """

    code = codes.NIC_DOWN
    needs = ("checks", "logs")
    name = "nic-down"
    remedies: ClassVar[tuple[str, ...]] = ("`ip -br link` lists the interfaces of this node",)

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield what checks found, and what texts tell of ports."""
        yield from super().check(scene, policy)
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
