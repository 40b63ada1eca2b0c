"""C209 peer-lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import LogRule
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame
from whystuck.evidence.finding import Citation, Confidence, Finding
from whystuck.evidence.ranks import name_ranks


class PeerLost(LogRule):
    """Ranks lost the connection to a peer, and why the peer ended is not known.

    ## What it means

    "Connection closed by peer" follows from the end of another rank. The ranks that print it
    are victims.

    ## How it is found

    Such errors are there, and nothing else explains them. When another cause is found, this
    finding is dropped. A rank without a log is unknown, never dead: it is not named either. Where
    both ends of a link report that the other does not answer, the finding is only possible; and so
    it is where Ray alone says that a worker died.

    ## False alarms

    None: it names nobody.

    ## What to do

    Collect the logs and exit codes of all ranks, or run the job with `whystuck run`.
    """

    code = codes.PEER_LOST
    name = "peer-lost"
    end_class = "process-lost"
    fallback_level = 1
    remedies: ClassVar[tuple[str, ...]] = (
        "collect logs and exit codes of all ranks; `whystuck run -- COMMAND` keeps them",
    )

    def check_live(self, scene: Scene, policy: Policy) -> Iterator[Finding]:  # noqa: ARG002 - one face
        """Yield a finding for connections that were lost for no known cause."""
        ranks = [
            rank for rank in scene.exceptions.cut_ranks if rank not in scene.exceptions.timed_out
        ]
        if not ranks or scene.exits.root_exceptions or not scene.exits.is_crash:
            return
        known = [rank for rank in ranks if rank >= 0]
        who = name_ranks(known) if known else "ranks"
        yield self.make_finding(
            f"{who} lost the connection to a peer; why the peer ended is not in the evidence",
            Confidence.LIKELY,
            Blame(victims=known),
            because=[
                Citation(
                    scene.exceptions.by_rank[rank].message.partition("\n")[0][:160],
                    scene.exceptions.by_rank[rank].artifact,
                )
                for rank in ranks[:4]
            ],
        )
