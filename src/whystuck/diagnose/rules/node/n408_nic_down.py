"""N408 nic-down."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose.check_rule import CheckRule


class NicDown(CheckRule):
    """A network interface that is asked for, has an address, or that a route uses, is down.

    ## What it means

    Ranks cannot reach each other over it, and wait in the rendezvous until it times out.

    ## How it is found

    Interfaces are matched with `NCCL_SOCKET_IFNAME`, `GLOO_SOCKET_IFNAME` and `TP_SOCKET_IFNAME`,
    and with the routes and addresses of the kernel; a route goes when its interface is switched
    off, and the address stays. One that nothing asks for may be down, and so may a bridge without
    ports, unless no interface that was up before is left.

    ## False alarms

    A variable that is meant for another node.

    ## What to do

    Bring the link up, or name another interface.
    """

    code = "N408"
    name = "nic-down"
    remedies: ClassVar[tuple[str, ...]] = ("`ip -br link` lists the interfaces of this node",)
