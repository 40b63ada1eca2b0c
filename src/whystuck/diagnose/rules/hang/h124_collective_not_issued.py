"""H124 collective-not-issued."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import describe_place, find_user_frame, make_places
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame, Rule
from whystuck.evidence.finding import Citation, Confidence, Finding, Place
from whystuck.evidence.live import FailedManager
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ranks import name_ranks

_MAX_NAMED = 4


class CollectiveNotIssued(Rule):
    """A rank called collectives that torch never issued: a coalescing manager before them failed.

    ## What it means

    torch collects the ops of a `_coalescing_manager` in a list and issues them when its `with`
    block ends. Where an error leaves the block, the list stays. With gloo the manager itself
    raises, as that backend cannot coalesce on a device; with any backend an exception in the block
    does it. From then on `all_reduce`, `all_gather_single` (`all_gather_into_tensor`) and
    `reduce_scatter_single` (`reduce_scatter_tensor`) of that group return without an error and
    without having done anything. When only some ranks are in this state, the others wait for
    them. When all are, nothing hangs and the results are wrong: the verdict is `diverged`.

    ## How it is found

    In a job under `whystuck run`, the probe notes each call that torch adds to the list of a
    manager whose block is over: the line, how often, and the line of the manager. Nothing is
    guessed from timing. `details` has the `groups`, the number of lost `calls`, the `ops` with
    the number of each, the place of the `manager`, and `first_step`, the optimizer steps that were
    made before the first lost call. Findings that only follow from it are left out.

    ## False alarms

    Coalescing that works is never reported, nor is a failed manager after which nothing was lost,
    or after which the state was cleared. An all_reduce in a group of one rank is passed over. A
    job that takes the lost calls out of torch's list and makes them itself is reported too.

    ## What to do

    Do not go on after the error of a coalescing manager: remove the manager, or the `device` that
    it is given, for this backend.
    """

    code = codes.COLLECTIVE_NOT_ISSUED
    name = "collective-not-issued"
    is_loss = True
    shows_ops = True
    compares_ops = True
    needs = ("failed_managers",)
    remedies: ClassVar[tuple[str, ...]] = (
        (
            "do not catch the error of the coalescing manager: call the collectives one by one "
            "where the backend cannot coalesce"
        ),
        (
            "or clear what it left before going on: "
            "`torch.distributed.distributed_c10d._world.pg_coalesce_state.pop(group, None)`"
        ),
        "do not use checkpoints that were written after the first lost call",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:  # noqa: ARG002 - one face
        """Yield a finding for the managers and the calls of each pair of lines."""
        found: dict[tuple[object, ...], list[FailedManager]] = {}
        for manager in sorted(scene.losses.managers, key=lambda one: (one.rank, one.row)):
            key = (_find_manager(manager), _find_first(manager))
            found.setdefault(key, []).append(manager)
        for managers in found.values():
            yield self._report(scene, managers)

    def _report(self, scene: Scene, managers: Sequence[FailedManager]) -> Finding:
        ranks = sorted({one.rank for one in managers})
        groups = sorted({one.group for one in managers})
        calls = [call for one in managers for call in one.calls]
        where = list(dict.fromkeys(place for one in managers for place in _list_places(one)))
        victims = scene.losses.victims - set(ranks) if scene.losses.is_cause else frozenset()
        ops: Counter[str] = Counter()
        for call in calls:
            ops[call.op] += call.count
        return self.make_finding(
            _summarise(scene, managers, ranks, victims),
            Confidence.CERTAIN,
            Blame(ranks=ranks, groups=groups, victims=sorted(victims), where=where),
            because=_cite(scene, managers, groups),
            details={
                "groups": groups,
                "calls": sum(one.count for one in managers),
                "ops": dict(ops),
                "manager": _describe(_find_manager(managers[0])),
                "first_step": min((call.first_step for call in calls), default=0),
            },
        )


def _find_manager(manager: FailedManager) -> Frame | None:
    """Find the line of the manager itself."""
    return find_user_frame(manager.site)


def _find_first(manager: FailedManager) -> Frame | None:
    """Find the line of the first call that was lost."""
    return find_user_frame(manager.calls[0].site) if manager.calls else None


def _describe(frame: Frame | None, before: str = "") -> str:
    return before + describe_place(frame) if frame else ""


def _list_places(manager: FailedManager) -> list[Place]:
    """Return the line of the first lost call, then that of the manager."""
    frames = (_find_first(manager), _find_manager(manager))
    return [place for frame in frames if frame for place in make_places(manager.rank, [frame])]


def _summarise(
    scene: Scene,
    managers: Sequence[FailedManager],
    ranks: Sequence[int],
    victims: frozenset[int],
) -> str:
    first = managers[0]
    op = first.calls[0].op if first.calls else "a collective"
    place = _describe(_find_first(first), " in ")
    more = max(one.count for one in managers) - 1
    rest = f", nor {more} later call{'s' if more > 1 else ''}" if more else ""
    manager = _describe(_find_manager(first), " in ")
    text = (
        f"{name_ranks(ranks)} called {op}{place} and torch never issued it{rest}: "
        f"the coalescing manager{manager} failed before and was left open"
    )
    if victims:
        whom = "it" if len(ranks) == 1 else "them"
        return f"{text}; {name_ranks(victims)} waited for {whom}"
    return text if scene.losses.is_cause else f"{text}; the values were never exchanged"


def _cite(scene: Scene, managers: Sequence[FailedManager], groups: Sequence[str]) -> list[Citation]:
    cites = [
        Citation(
            f"rank {one.rank}: {one.count} call{'s' if one.count > 1 else ''} of group {one.group} "
            "went into the list of a manager whose block was over",
            one.artifact,
            one.row,
        )
        for one in managers[:_MAX_NAMED]
    ]
    if scene.losses.is_cause:
        waits = [one for one in scene.waits.pending if one.group.name in groups]
        cites += [scene.ops.cite_wait(one) for one in waits[:_MAX_NAMED]]
    return cites
