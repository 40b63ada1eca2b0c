"""H121 rendezvous-failed."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose.log_rule import LogRule


class RendezvousFailed(LogRule):
    """Processes did not find each other: one is missing, or was started with something else.

    ## What it means

    Before training starts, all processes meet at a store: one of rank 0, or of the launcher. They
    wait until all have come, and fail together when the time limit is over, wherever the
    reason is. The ranks that print the time limit are those that came.

    ## How it is found

    Time limits and errors of the store, of torchrun's rendezvous, of gloo and of NCCL's bootstrap.
    What differs is looked for in this order: two processes of one rank; different `WORLD_SIZE`;
    different `MASTER_ADDR` or `MASTER_PORT`, where logs show the environment; a name that does not
    resolve; something else that listens at the address; an address that refuses or does not
    answer; and ranks that did not come, by the store's count or the key that others wait for.

    In `details`: `kind` is duplicate-rank, world-size, endpoint, unresolved, not-a-store, refused,
    unreachable, missing-rank, missing-node or timeout. `joined` and `expected` count processes or
    nodes, `missing` are ranks; `host` and `port` are the address; `variable` and `values` what
    differs.

    ## False alarms

    A rank that failed before it came to the rendezvous: where its error is known, that is the
    finding. A rank without any log is named only when the count leaves no other.

    ## What to do

    Compare the environment of the ranks named with that of the others, and reach the store from
    their host: `nc -vz $MASTER_ADDR $MASTER_PORT`.
    """

    code = "H121"
    name = "rendezvous-failed"
    remedies: ClassVar[tuple[str, ...]] = (
        "print the environment on all ranks: `env | grep -E 'MASTER_|RANK|WORLD_SIZE'`",
    )
