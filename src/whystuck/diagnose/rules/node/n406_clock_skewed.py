"""N406 clock-skewed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.check_rule import CheckRule
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import tell_case
from whystuck.diagnose.policy import Policy
from whystuck.evidence.finding import Finding


class ClockSkewed(CheckRule):
    """The clock of the node is off, or nothing keeps it in step.

    ## What it means

    Logs of nodes cannot be put in order, tokens and certificates are refused, and `make`-like tools
    see files of the future.

    ## How it is found

    The kernel is asked (adjtimex), and the time of a new file on each path of `--disk` is compared
    with our own clock: on a shared file system the server sets it. A clock that no service keeps in
    step is a note, as virtual machines may be kept in step from outside.

    Of texts, what `chronyc tracking`, `timedatectl` and `ntpdate` print of each host, by a second
    and more; and services that refuse what another host sends (munge, Kerberos, certificates). It
    explains that a rendezvous takes out a node whose heartbeats are too old, and no collective.
    Where a service refuses, the host whose clock nothing keeps in step is named.

    ## False alarms

    A file server whose clock is off: then all nodes say so.

    ## What to do

    Start a time service.
    """

    code = codes.CLOCK_SKEWED
    needs = ("checks", "logs")
    name = "clock-skewed"
    remedies: ClassVar[tuple[str, ...]] = ("`chronyc tracking` or `timedatectl` on this node",)

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield what checks found, and what texts tell of clocks."""
        yield from super().check(scene, policy)
        yield from (tell_case(self, case) for case in scene.story.of(self.code))
