"""Sends and receives that never meet: the rank that departed from its habit is named."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
from tests.diagnose.op_scenes import MS, Logged
from tests.diagnose.scenes import MODULE, Job, at

from whystuck.diagnose.algorithms.transfers.odd_transfers import extend
from whystuck.diagnose.engine import diagnose
from whystuck.evidence.finding import Confidence, Finding, Report
from whystuck.evidence.live import PeerCount, PeerWait
from whystuck.evidence.ops.collectives import Frame

SEND_LINE, RECV_LINE, LOSS_LINE = 20, 30, 40


def send(logged: Logged, rank: int, peer: int, line: int = SEND_LINE, **more: Any) -> None:
    """Post a send that nobody waits for long, as gloo's of small tensors are."""
    logged.op([rank], "send", peer=peer, line=line, **more)


def recv(logged: Logged, rank: int, peer: int, line: int = RECV_LINE, **more: Any) -> None:
    logged.op([rank], "recv", peer=peer, line=line, **more)


def lose(logged: Logged, ranks: Iterable[int], *, waits: bool = False) -> None:
    logged.op(ranks, line=LOSS_LINE, takes_ns=None if waits else MS)


def go_around(logged: Logged, times: int, tag: Callable[[int], int] = lambda _: 0) -> Logged:
    """Let each rank send to the next one, and reduce the loss, step after step."""
    world = logged.world
    for step in range(times):
        for rank in range(world):
            send(logged, rank, (rank + 1) % world, tag=tag(step), step=step)
            recv(logged, rank, (rank - 1) % world, tag=tag(step), step=step)
        lose(logged, range(world))
    return logged


def only(logged: Logged) -> Finding:
    finding = logged.finding()
    assert finding.code == "H110", finding.summary
    return finding


def lines_of(finding: Finding) -> list[tuple[int, int]]:
    return [(place.rank, place.line) for place in finding.where if place.line != 99]


@pytest.mark.parametrize("culprit", range(4))
def test_send_to_another_peer(culprit: int) -> None:
    logged = go_around(Logged(4), 6)
    for rank in range(4):
        send(logged, rank, (rank + (2 if rank == culprit else 1)) % 4)
        starved = rank == (culprit + 1) % 4
        recv(logged, rank, (rank - 1) % 4, takes_ns=None if starved else MS)
    lose(logged, set(range(4)) - {(culprit + 1) % 4}, waits=True)
    finding = only(logged)

    assert finding.culprits.ranks == [culprit]
    assert finding.confidence is Confidence.CERTAIN
    assert finding.details["departure"] == "peer"
    assert lines_of(finding) == [(culprit, SEND_LINE)]
    assert f"always posted send {culprit}->{(culprit + 1) % 4}" in finding.summary


def test_large_send_to_another_peer_is_no_cycle() -> None:
    """Sends of large tensors end when they are received, so that all ranks wait in transfers."""
    logged = Logged(3)
    for _ in range(6):
        send(logged, 0, 1)
        for rank in (1, 2):
            recv(logged, rank, rank - 1)
            send(logged, rank, (rank + 1) % 3)
        recv(logged, 0, 2)
        lose(logged, range(3))
    logged.waits([0], "send", peer=2, line=SEND_LINE)
    for rank in (1, 2):
        logged.waits([rank], "recv", peer=rank - 1, line=RECV_LINE)
    finding = only(logged)

    assert finding.culprits.ranks == [0]
    assert lines_of(finding) == [(0, SEND_LINE)]


def test_receive_from_another_peer() -> None:
    logged = go_around(Logged(4), 6)
    for rank in range(4):
        send(logged, rank, (rank + 1) % 4)
        if rank == 2:
            logged.waits([2], "recv", peer=0, line=RECV_LINE)
        else:
            recv(logged, rank, (rank - 1) % 4)
    lose(logged, [0, 1, 3], waits=True)
    finding = only(logged)

    assert (finding.culprits.ranks, finding.details["departure"]) == ([2], "peer")
    assert lines_of(finding) == [(2, RECV_LINE)]


@pytest.mark.parametrize("tag", [lambda _: 7, lambda step: 100 + step, lambda step: step % 2])
@pytest.mark.parametrize("is_sender", [True, False])
def test_tag_that_does_not_go_on_as_before(tag: Callable[[int], int], is_sender: bool) -> None:
    logged = go_around(Logged(4), 7, tag)
    right, wrong = tag(7), tag(7) + 3
    for rank in range(4):
        send(logged, rank, (rank + 1) % 4, tag=wrong if is_sender and rank == 1 else right)
        if rank != 2:
            recv(logged, rank, (rank - 1) % 4, tag=right)
    logged.waits([2], "recv", peer=1, line=RECV_LINE, tag=right if is_sender else wrong)
    lose(logged, [0, 1, 3], waits=True)
    finding = only(logged)

    assert finding.culprits.ranks == [1 if is_sender else 2]
    assert finding.confidence is Confidence.CERTAIN
    assert finding.details["tags"] == {"used": wrong, "expected": right}
    assert f"tag {wrong}" in finding.summary
    assert f"tag {right}" in finding.summary
    assert lines_of(finding) == [(1, SEND_LINE) if is_sender else (2, RECV_LINE)]


def test_tags_that_never_agreed_are_either_ranks_mistake() -> None:
    logged = Logged(2).steps()
    send(logged, 0, 1, tag=3)
    logged.waits([1], "recv", peer=0, tag=4, line=RECV_LINE)
    lose(logged, [0], waits=True)
    finding = only(logged)

    assert (finding.culprits.ranks, finding.confidence) == ([0, 1], Confidence.POSSIBLE)
    assert finding.details["tags"] == {"used": 4, "expected": 3}


def test_one_receive_too_many() -> None:
    logged = Logged(3)
    for step in range(7):
        for rank in range(3):
            for _ in range(2):
                send(logged, rank, (rank + 1) % 3)
            for _ in range(2):
                recv(logged, rank, (rank - 1) % 3)
        if step < 6:
            lose(logged, range(3))
    logged.waits([1], "recv", peer=0, line=RECV_LINE)
    lose(logged, [0, 2], waits=True)
    finding = only(logged)

    assert (finding.culprits.ranks, finding.details["departure"]) == ([1], "too many")
    assert finding.confidence is not Confidence.CERTAIN
    assert lines_of(finding) == [(1, RECV_LINE)]


def test_micro_batch_that_a_stage_does_not_hand_on() -> None:
    logged = Logged(2)
    for _ in range(6):
        for _ in range(3):
            send(logged, 0, 1)
            recv(logged, 1, 0)
        for _ in range(3):
            send(logged, 1, 0, line=50)
            recv(logged, 0, 1, line=60)
    for _ in range(2):
        send(logged, 0, 1)
        recv(logged, 1, 0)
    logged.waits([0], "recv", peer=1, line=60).waits([1], "recv", peer=0, line=RECV_LINE)
    finding = only(logged)

    assert (finding.culprits.ranks, finding.details["departure"]) == ([0], "left out")
    assert lines_of(finding) == [(0, SEND_LINE), (0, 60)]


def test_order_that_all_ranks_changed_is_a_cycle() -> None:
    logged = go_around(Logged(4), 6)
    for rank in range(4):
        logged.waits([rank], "recv", peer=(rank - 1) % 4, line=31)

    assert logged.finding().code == "H109"


def test_order_that_a_pair_changed_is_a_cycle_of_the_pair() -> None:
    logged = go_around(Logged(4), 6)
    logged.waits([0], "send", peer=1, line=70).waits([1], "send", peer=0, line=70)
    for rank in (2, 3):
        send(logged, rank, (rank + 1) % 4)
        logged.waits([rank], "recv", peer=rank - 1, line=RECV_LINE)
    finding = logged.report().findings[0]

    assert finding.code == "H109"
    assert finding.culprits.ranks == [0, 1]


def test_ranks_without_a_habit_are_never_certain() -> None:
    draw = random.Random(5)
    logged = Logged(3, capacity=512)
    for _ in range(40):
        first, second = draw.sample(range(3), 2)
        line = draw.randrange(100, 200)
        send(logged, first, second, line=line)
        recv(logged, second, first, line=line + 100)
    logged.waits([0], "recv", peer=1, line=300)
    lose(logged, [1, 2], waits=True)

    assert all(one.confidence is not Confidence.CERTAIN for one in logged.report().findings)


def test_ring_that_has_lost_the_first_steps_still_tells_who_departed() -> None:
    logged = go_around(Logged(4, capacity=32), 30)
    for rank in range(4):
        send(logged, rank, (rank + (2 if rank == 3 else 1)) % 4, step=30)
        starved = rank == 0
        recv(logged, rank, (rank - 1) % 4, takes_ns=None if starved else MS, step=30)
    lose(logged, [1, 2, 3], waits=True)

    assert only(logged).culprits.ranks == [3]


def play(seed: int) -> tuple[Logged, int]:
    """Make a job of any size, with evaluations at times, in which one rank makes one mistake."""
    draw = random.Random(seed)
    world, parts = draw.randint(2, 5), draw.randint(1, 3)
    culprit, mistake = draw.randrange(world), draw.choice(["peer", "skip", "extra", "tag"])
    if mistake == "peer" and world == len("ab"):
        mistake = "tag"  # there is no other peer
    evaluates, last = draw.choice([0, 4, 5]), draw.randint(4, 14)
    logged = Logged(world, capacity=1024)
    for step in range(last):
        for rank in range(world):
            exchange(logged, rank, parts, step)
        lose(logged, range(world))
        if evaluates and step % evaluates == evaluates - 1:
            logged.op(range(world), "all_gather", line=80)
    starved = culprit if mistake == "extra" else (culprit + 1) % world
    for rank in range(world):
        own = mistake if rank == culprit else ""
        exchange(logged, rank, parts, last, own, starved=rank == starved != culprit)
    if mistake == "extra":
        logged.waits(
            [culprit], "recv", peer=(culprit - 1) % world, tag=4 + parts, line=RECV_LINE, step=last
        )
    lose(logged, set(range(world)) - {starved}, waits=True)
    return logged, culprit


def exchange(
    logged: Logged, rank: int, parts: int, step: int, mistake: str = "", *, starved: bool = False
) -> None:
    """Send some parts to the next rank and receive as many; the last part may go wrong."""
    world = logged.world
    for part in range(parts):
        own = mistake if part == parts - 1 else ""
        if own != "skip":
            peer, tag = rank + 1 + (own == "peer"), 5 + part + 9 * (own == "tag")
            send(logged, rank, peer % world, tag=tag, step=step)
    for part in range(parts):
        takes_ns = None if starved and part == parts - 1 else MS
        recv(logged, rank, (rank - 1) % world, tag=5 + part, step=step, takes_ns=takes_ns)


@pytest.mark.parametrize("seed", range(60))
def test_no_innocent_rank_is_named(seed: int) -> None:
    logged, culprit = play(seed)
    finding = logged.report().findings[0]

    assert finding.code == "H110", finding.summary
    if finding.confidence is Confidence.POSSIBLE:
        assert culprit in finding.culprits.ranks
    elif finding.details.get("departure"):
        assert finding.culprits.ranks == [culprit], finding.summary
    else:
        assert finding.confidence is not Confidence.CERTAIN


def test_most_mistakes_are_known_by_the_habit() -> None:
    known = [logged.report().findings[0].details for logged, _ in map(play, range(60))]

    assert sum("departure" in details for details in known) >= 45


@pytest.mark.parametrize(
    ("tags", "following"),
    [
        ([], -1),
        ([3], -1),
        ([3, 3], 3),
        ([3, 4], -1),
        ([3, 4, 5], 6),
        ([10, 8, 6], 4),
        ([0, 1, 2, 3, 0, 1, 2, 3], 0),
        ([0, 1, 0, 1, 0], 1),
        ([5, 1, 9, 2], -1),
        ([0, 1, 2, 10, 11, 12, 20, 21], 22),
        ([0, 1, 2, 10, 11, 12, 20, 21, 22], 30),
    ],
)
def test_how_tags_go_on(tags: list[int], following: int) -> None:
    assert extend(tags) == following


def test_collective_that_was_left_out_before_a_receive_is_no_receive_too_many() -> None:
    """A step begins with a receive: what came after the loss that was left out is as ever."""
    logged = Logged(3)
    for _ in range(6):
        for rank in (1, 2):
            recv(logged, rank, rank - 1)
        for rank in (0, 1):
            send(logged, rank, rank + 1)
        lose(logged, range(3))
    for rank in (1, 2):
        recv(logged, rank, rank - 1)
    for rank in (0, 1):
        send(logged, rank, rank + 1)
    logged.waits([2], "recv", peer=1, line=RECV_LINE)
    lose(logged, [0, 1], waits=True)

    assert all("departure" not in one.details for one in logged.report().findings)


def test_rank_that_keeps_to_the_old_peers_while_all_others_change_is_not_called_right() -> None:
    """All ranks but one follow a new plan: its peers are not at fault."""
    logged = go_around(Logged(4), 6)
    for rank in (0, 2, 3):
        send(logged, rank, (rank - 1) % 4)
        takes_ns = None if rank in (0, 2) else MS
        recv(logged, rank, (rank + 1) % 4, takes_ns=takes_ns)
    send(logged, 1, 2)
    logged.waits([1], "recv", peer=0, line=RECV_LINE)
    lose(logged, [3], waits=True)

    for one in logged.report().findings:
        assert "departure" not in one.details
        assert one.confidence is not Confidence.CERTAIN or 1 in one.culprits.ranks


def test_tags_that_most_ranks_changed_are_either_ranks_mistake() -> None:
    logged = go_around(Logged(4), 6, lambda _: 7)
    for rank in range(4):
        send(logged, rank, (rank + 1) % 4, tag=7 if rank == 1 else 9)
        if rank in (0, 3):
            recv(logged, rank, (rank - 1) % 4, tag=9)
    logged.waits([1], "recv", peer=0, tag=7, line=RECV_LINE)
    logged.waits([2], "recv", peer=1, tag=9, line=RECV_LINE)
    lose(logged, [0, 3], waits=True)

    for one in logged.report().findings:
        assert one.confidence is Confidence.POSSIBLE
        assert 1 in one.culprits.ranks


def _count(rank: int, kind: str, peer: int, count: int, site: tuple[Frame, ...]) -> PeerCount:
    return PeerCount(
        rank=rank, kind=kind, peer=peer, group="0", count=count, site=site, artifact="peers.json"
    )


def look(*, count: int = 6, strayed: int = 1, line: int = SEND_LINE) -> Report:
    """Look into four ranks without op logs, of which rank 1 has sent to rank 3 last."""
    job, waits, counts = Job(world=4), [], []
    site = (at("/job/halo.py", SEND_LINE, "exchange"), MODULE)
    for rank in range(4):
        right, left = (rank + 1) % 4, (rank - 1) % 4
        sent = count - 1 if rank == 1 else count
        counts.append(_count(rank, "send", right, sent, site))
        counts.append(_count(rank, "recv", left, count, site))
        sends_to = {1: 3}.get(rank)
        kind, peer = ("send", sends_to) if sends_to else ("recv", left)
        frames = (at("/venv/torch/distributed/distributed_c10d.py", 9, kind), *site)
        waits.append(PeerWait(
            rank=rank, kind=kind, peer=peer, group="0", count=1 if sends_to else count,
            frames=frames, site=site, artifact="peers.json",
        ))  # fmt: skip
        job.stands(rank, frames)
    other = (at("/job/halo.py", line, "exchange"), MODULE)
    counts.append(_count(1, "send", 3, strayed, other))
    known = replace(job.evidence(), peer_waits=tuple(waits), peer_counts=tuple(counts))
    return diagnose(known)


def test_counts_of_the_probe_tell_of_another_peer_where_there_is_no_op_log() -> None:
    (finding,) = look().findings

    assert (finding.code, finding.culprits.ranks) == ("H110", [1])
    assert finding.confidence is Confidence.LIKELY
    assert lines_of(finding)[0] == (1, SEND_LINE)
    assert "send to rank 3" in finding.summary


@pytest.mark.parametrize("more", [{"count": 2}, {"strayed": 4}, {"line": 77}])
def test_counts_that_show_no_habit_of_one_peer_tell_nothing_of_it(more: dict[str, int]) -> None:
    assert all("departure" not in one.details for one in look(**more).findings)
