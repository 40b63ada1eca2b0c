"""N409 nic-errors."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose.check_rule import CheckRule


class NicErrors(CheckRule):
    """A network interface counts errors.

    ## What it means

    Packets are damaged or lost. Collectives get slow, or time out, when both ends repeat them.

    ## How it is found

    The counters of the kernel are read twice: what grows in between is told, and what is more than
    a share of all packets since the interface was made.

    ## False alarms

    Errors of long ago: read the counters twice.

    ## What to do

    Change the cable or the port of the switch.
    """

    code = "N409"
    name = "nic-errors"
    remedies: ClassVar[tuple[str, ...]] = ("`ethtool -S NAME | grep -i err` twice, a minute apart",)
