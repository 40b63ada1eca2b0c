"""N407 dns-failed."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose.check_rule import CheckRule


class DnsFailed(CheckRule):
    """Names cannot be looked up, or only after long.

    ## What it means

    Ranks find each other by name, and torch looks up the name of each node. A name server that is
    dead costs ten seconds for each name, and the rendezvous times out.

    ## How it is found

    Each name server of `/etc/resolv.conf` is asked a small question. Then the name of this node and
    `MASTER_ADDR` are looked up as programs do.

    ## False alarms

    Clusters where all names are in `/etc/hosts` may have dead name servers: they still cost time.

    ## What to do

    Mend the name server, or put the names into `/etc/hosts`.
    """

    code = "N407"
    name = "dns-failed"
    remedies: ClassVar[tuple[str, ...]] = ("`getent hosts NAME` on this node",)
