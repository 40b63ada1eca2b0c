"""Words for a group that several threads of a rank use at once: nobody's order is the wrong one."""

from __future__ import annotations

from msgspec.structs import replace

from whystuck.diagnose.algorithms.ops.rival_threads import find_rival_threads
from whystuck.diagnose.context.scene import Scene
from whystuck.evidence.finding import Citation, Confidence, Finding, Severity
from whystuck.evidence.ranks import format_ranks, name_ranks

_MAX_NAMED = 4
_OWN_GROUP = (
    "give each thread a process group of its own (`dist.new_group`), or let one thread make all "
    "calls; `torch.distributed.checkpoint.async_save` takes one as `process_group`"
)


def tell_threads(scene: Scene, finding: Finding, group: str) -> Finding:
    """Blame no rank where threads use a group at the same time: the backend pairs calls by order.

    Which thread comes first is chance on each rank. Nor need the order in the log of a rank be that
    in which the backend got the calls.
    """
    ops = scene.evidence.ops
    rivals = find_rival_threads(ops, group)
    if not rivals:
        return finding
    names = list(rivals[0].rows)
    summary = (
        f"{finding.summary}; threads {' and '.join(names)} of {name_ranks([rivals[0].rank])} use "
        f"group {group} at the same time, so that ranks may call its ops in different order"
    )
    cites = [
        Citation(
            f"{name} of rank {item.rank} is in an op that is not over",
            ops.logs[int(ops.log[row])].artifact,
            int(ops.number[row]),
        )
        for item in rivals[:_MAX_NAMED]
        for name, row in list(item.rows.items())[:_MAX_NAMED]
    ]
    victims = set(finding.culprits.ranks) | scene.waits.waiting
    return replace(
        finding,
        summary=summary,
        confidence=Confidence.POSSIBLE,
        severity=Severity.WARNING,
        culprits=replace(finding.culprits, ranks=[], nodes=[]),
        victims=replace(finding.victims, ranks=format_ranks(victims)),
        because=[*finding.because, *cites],
        details=finding.details | {"threads": names},
        remedies=[_OWN_GROUP, *finding.remedies],
    )
