"""N416 link-down."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose.check_rule import CheckRule


class LinkDown(CheckRule):
    """A link of NVLink is down.

    ## What it means

    Collectives between the devices of this node go over PCI Express instead, or fail.

    ## How it is found

    The driver is asked for the state of each link that is active on any device of this node.

    ## False alarms

    Devices of different kinds in one node.

    ## What to do

    Reset the devices; look at the fabric manager.
    """

    code = "N416"
    name = "link-down"
    remedies: ClassVar[tuple[str, ...]] = (
        "`nvidia-smi nvlink -s`; `systemctl status nvidia-fabricmanager`",
    )
