"""Links between hosts that become slow: the link is named, and no rank that only suffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.diagnose.context.step_jobs import Steps, Work
from tests.parse.ops.op_logs import MS

from whystuck.evidence.finding import Confidence, Finding, Report, Severity, Verdict

SIZE = {"in_bytes": 1 << 20, "out_bytes": 1 << 20}
ONSET, STEPS = 50, 100
LOOK_MS = 16.0
Way = tuple[int, int]


@dataclass
class Hosts(Steps):
    """A job of ranks on hosts of their own; ``slow`` has the ways on which a piece takes longer."""

    slow: dict[Way, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for rank, ring in self.logged.rings.items():
            ring.about |= {"network": f"net:[{rank}]", "interface": "link0"}

    def piece_ms(self, giver: int, taker: int, size: int = 1 << 20) -> float:
        return 1.0 + self.slow.get((giver, taker), 0.0) * size / (1 << 20)

    def reduce(self, step: int, ranks: Sequence[int] = (), *, size: int = 1 << 20) -> None:
        """Reduce over a ring: each rank passes pieces on to the one before."""
        members = tuple(ranks) or tuple(range(self.world))
        count = len(members)
        times = [max(self.now_ns[rank] for rank in members)] * count
        for _ in range(2 * (count - 1)):
            times = [
                max(times[taker], times[(taker + 1) % count])
                + self.piece_ms(members[(taker + 1) % count], members[taker], size) * MS
                for taker in range(count)
            ]
        for rank, end_ns in zip(members, times, strict=True):
            self._log(rank, end_ns, step, members, in_bytes=size, out_bytes=size)

    def send(self, step: int, giver: int, taker: int) -> None:
        sent_ns = self.now_ns[giver]
        group = self._find_group(giver, tuple(range(self.world)))
        self.logged.op(
            [giver], "send", group=group, step=step, at_ns=int(sent_ns), takes_ns=MS // 2,
            peer=taker, **SIZE,
        )  # fmt: skip
        self.now_ns[giver] += MS
        end_ns = max(sent_ns, self.now_ns[taker]) + self.piece_ms(giver, taker) * MS
        self._log(taker, end_ns, step, tuple(range(self.world)), op="recv", peer=giver, **SIZE)

    def _log(
        self, rank: int, end_ns: float, step: int, members: Sequence[int], **more: Any
    ) -> None:
        """Record an op whose end lies between two looks, and go on after it."""
        came_ns = self.now_ns[rank]
        look_ns = LOOK_MS * MS
        before_ns = end_ns - self.random.random() * look_ns
        pending_ns = int(before_ns) if before_ns > came_ns else 0
        self.logged.op(
            [rank], group=self._find_group(rank, tuple(members)), step=step, at_ns=int(came_ns),
            takes_ns=int(max(before_ns + look_ns, end_ns) - came_ns), pending_ns=pending_ns, **more,
        )  # fmt: skip
        self.now_ns[rank] = end_ns


def even(_rank: int, _step: int) -> float:
    return 60


def train(job: Hosts, slow: dict[Way, float], work: Work = even) -> Report:
    for step in range(STEPS):
        job.slow = slow if step >= ONSET else {}
        job.work_all(work, step)
        job.reduce(step)
    return job.report()


def get_link(report: Report) -> Finding:
    (finding,) = report.findings
    assert (finding.code, finding.severity) == ("S303", Severity.WARNING)
    assert finding.culprits.ranks == []
    assert (report.verdict, finding.details["kind"]) == (Verdict.SLOW, "link")
    return finding


@pytest.mark.parametrize("taker", range(4))
def test_ring_tells_the_link_and_that_either_end_may_be_slow(taker: int) -> None:
    giver = (taker + 1) % 4
    finding = get_link(train(Hosts(seed=taker), {(giver, taker): 12.0}))

    assert finding.details == {
        "kind": "link", "pair": sorted([giver, taker]), "from": giver, "to": taker,
        "ends": sorted([giver, taker]), "direction": "", "interface": "link0",
        "step": pytest.approx(ONSET, abs=2),
    }  # fmt: skip
    assert "it cannot be told at which end" in finding.summary
    assert finding.confidence is Confidence.LIKELY
    assert finding.measures["lost_share"] == pytest.approx(0.5, abs=0.1)


def test_rank_that_works_longer_on_a_host_of_its_own_is_named_and_no_link() -> None:
    report = train(Hosts(), {}, lambda rank, step: 85 if (rank, step >= ONSET) == (2, True) else 60)
    (finding,) = report.findings

    assert (finding.code, finding.culprits.ranks) == ("S301", [2])


def test_slow_rank_beside_a_slow_link_is_named_too() -> None:
    report = train(
        Hosts(), {(2, 1): 12.0}, lambda rank, step: 100 if (rank, step >= 50) == (3, True) else 60
    )
    found = {one.code: one.culprits.ranks for one in report.findings}

    assert found == {"S301": [3], "S303": []}


def test_clocks_of_hosts_an_hour_apart_change_nothing() -> None:
    job = Hosts()
    for rank, ring in job.logged.rings.items():
        ring.host, ring.offset_ns = f"n{rank}", ring.offset_ns + rank * 3_600_000_000_000
    finding = get_link(train(job, {(2, 1): 12.0}))

    assert (finding.details["from"], finding.details["to"]) == (2, 1)


def test_ranks_of_one_host_have_no_link() -> None:
    job = Hosts()
    for ring in job.logged.rings.values():
        ring.about["network"] = "net:[1]"

    assert "S303" not in [one.code for one in train(job, {(2, 1): 12.0}).findings]


def train_stages(job: Hosts, slow: dict[Way, float], steps: int = STEPS, onset: int = 50) -> Report:
    """Pass data through stages and back."""
    for step in range(steps):
        job.slow = slow if step >= onset else {}
        for giver, taker in ((0, 1), (1, 2), (2, 3), (3, 2), (2, 1), (1, 0)):
            job.work(giver, 10)
            job.send(step, giver, taker)
        job.reduce(step, size=16)
    return job.report()


@pytest.mark.parametrize(
    ("ways", "ends", "direction"),
    [
        ([(2, 1), (2, 3)], [2], "out"),
        ([(1, 2), (3, 2)], [2], "in"),
        ([(1, 2), (3, 2), (2, 1), (2, 3)], [2], ""),
    ],
)
def test_sends_tell_which_end_is_slow(ways: list[Way], ends: list[int], direction: str) -> None:
    finding = get_link(train_stages(Hosts(), dict.fromkeys(ways, 40.0)))

    assert (finding.details["ends"], finding.details["direction"]) == (ends, direction)
    assert 2 in finding.details["pair"]


def test_sends_between_two_hosts_alone_leave_no_end() -> None:
    finding = get_link(train_stages(Hosts(), {(2, 1): 40.0, (1, 2): 40.0}))

    assert finding.details["pair"] == [1, 2]
    assert finding.details["ends"] == []


def test_link_that_is_slow_from_the_start_is_told_by_the_others() -> None:
    finding = get_link(train_stages(Hosts(), dict.fromkeys([(2, 1), (2, 3)], 40.0), onset=0))

    assert (finding.details["ends"], finding.details["direction"]) == ([2], "out")
    assert finding.details["step"] == -1


def test_groups_of_two_tell_the_host() -> None:
    job = Hosts()
    for step in range(STEPS):
        job.slow = {(2, 0): 25.0, (2, 3): 25.0} if step >= ONSET else {}
        for groups in (((0, 1), (2, 3)), ((0, 2), (1, 3))):
            job.work_all(lambda _rank, _step: 40, step)
            for ranks in groups:
                job.reduce(step, ranks)
    finding = get_link(job.report())

    assert (finding.details["ends"], finding.details["direction"]) == ([2], "out")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("since", range(2, 24))
def test_way_that_has_just_become_slow_is_told_right_or_not_at_all(since: int, seed: int) -> None:
    """What comes back waits for it; before, looks at one way were rarer than at the other."""
    job, usual_ms = Hosts(seed=seed), {(0, 1): 12.0}
    for step in range(STEPS):
        job.slow = {(0, 1): 120.0} if step >= STEPS - since else usual_ms
        for groups in (((0, 1), (2, 3)), ((0, 2), (1, 3))):
            job.work_all(lambda _rank, _step: 80, step)
            for ranks in groups:
                job.reduce(step, ranks)
    links = [one for one in job.report().findings if one.code == "S303"]

    assert [(one.details["from"], one.details["to"]) for one in links] in ([], [(0, 1)])
    assert links or since < 18


@pytest.mark.parametrize("kind", ["every", "noise", "short", "gone"])
def test_transfers_that_are_slow_on_all_links_or_for_a_while_are_no_slow_link(kind: str) -> None:
    job = Hosts()
    for step in range(STEPS):
        ring = [(giver, (giver - 1) % 4) for giver in range(4)]
        slow = {
            "every": dict.fromkeys(ring, 10.0) if step >= ONSET else {},
            "noise": {ring[step * 7919 % 11 % 4]: 10.0},
            "short": {(2, 1): 12.0} if step >= STEPS - 8 else {},
            "gone": {(2, 1): 12.0} if 30 <= step < 60 else {},
        }
        job.slow = slow[kind]
        job.work_all(even, step)
        job.reduce(step)

    assert not {"S301", "S303"} & {one.code for one in job.report().findings}


def test_several_ops_of_a_step_tell_the_link_too() -> None:
    job = Hosts()
    for step in range(STEPS):
        job.slow = {(3, 2): 12.0} if step >= ONSET else {}
        job.work_all(even, step)
        for _ in range(2):
            job.reduce(step)
    finding = get_link(job.report())

    assert (finding.details["from"], finding.details["to"]) == (3, 2)
