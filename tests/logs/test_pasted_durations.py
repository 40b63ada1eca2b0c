"""An operation that takes longer each time, until its time limit ends it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

GLOO = (
    "[rank 1] RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:84] "
    "Timed out waiting {0}ms for recv operation to complete"
)
NCCL = (
    "[rank1]:[E602 11:17:52.400612945 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=17, OpType=BROADCAST, NumelIn=1, NumelOut=1, "
    "Timeout(ms)={0}) ran for {0} milliseconds before timing out."
)
GROWS = [80.4, 91.0, 101.7, 112.9]
FORMS = [
    "[rank 0] send_cache {size} GB over tcp: {took} s",
    "[2026-02-03 10:0{at}:11] INFO send_cache of {size} GB took {took}s",
    "rank 0: send_cache ({size} GB) done in {took} seconds",
    "[rank0]: broadcast weights {size} GB: {took} s",
]
BEGUN = [
    "[rank 0] send_cache 9.9 GB ... 700/812 chunks",
    "[2026-02-03 10:08:11] INFO send_cache of 9.9 GB begins",
    "rank 0: send_cache (9.9 GB) sent 7.1 GB",
    "[rank0]: broadcast weights 9.9 GB ...",
]


def show(form: str, times: Sequence[float]) -> list[str]:
    return [form.format(size=5.2 + at, took=took, at=at) for at, took in enumerate(times)]


@pytest.mark.parametrize(("form", "begun"), list(zip(FORMS, BEGUN, strict=True)))
@pytest.mark.parametrize("failed", [GLOO, NCCL])
def test_limit_is_too_short_for_what_grows(
    tmp_path: Path, form: str, begun: str, failed: str
) -> None:
    finding = first_of(say(tmp_path, *show(form, GROWS), begun, failed.format(120000)))

    assert (finding.code, finding.confidence, finding.culprits.ranks) == ("H125", "likely", [])
    assert "120 s" in finding.summary
    assert "80.4 to 112.9 s" in finding.summary


@pytest.mark.parametrize("form", FORMS)
def test_next_one_that_did_not_begin_is_possible(tmp_path: Path, form: str) -> None:
    finding = first_of(say(tmp_path, *show(form, GROWS), GLOO.format(120000)))

    assert (finding.code, finding.confidence) == ("H125", "possible")


@pytest.mark.parametrize(
    ("times", "limit"),
    [
        pytest.param(GROWS, 1800000, id="far from the limit"),
        pytest.param([112.9, 101.7, 91.0, 80.4], 120000, id="faster"),
        pytest.param([112.0, 112.4, 111.9, 112.2], 120000, id="even"),
        pytest.param([80.4, 112.9], 120000, id="too few"),
        pytest.param([110.2, 114.0, 119.1, 131.0], 120000, id="longer than the limit"),
        pytest.param([80.4, 60.0, 101.7, 112.9], 120000, id="up and down"),
    ],
)
def test_times_that_tell_nothing(tmp_path: Path, times: Sequence[float], limit: int) -> None:
    lines = [*show(FORMS[0], times), BEGUN[0], GLOO.format(limit)]

    assert first_of(say(tmp_path, *lines)).code == "C211"


def test_what_is_no_communication_must_have_begun(tmp_path: Path) -> None:
    lines = [*show(FORMS[0].replace("send_cache", "evaluate").replace(" over tcp", ""), GROWS)]

    assert first_of(say(tmp_path, *lines, GLOO.format(120000))).code == "C211"


def test_nobody_waited_until_a_limit(tmp_path: Path) -> None:
    assert say(tmp_path, *show(FORMS[0], GROWS), BEGUN[0]).findings == []


EVALUATED = [
    "rank0 INFO validation {at} took {took}s ({size} k samples)",
    "[rank0]: evaluate set {at}: {took} s",
    "[2026-02-03 10:0{at}:11] INFO rank 0 scoring round {at} took {took} s, (all {at} parts)",
]
NEAR = [104.2, 112.9]


@pytest.mark.parametrize("form", EVALUATED)
@pytest.mark.parametrize("failed", [GLOO, NCCL])
def test_what_was_done_after_the_limit_was_not_stuck(
    tmp_path: Path, form: str, failed: str
) -> None:
    first, second, last = show(form, [*NEAR, 131.4])
    report = say(tmp_path, first, second, failed.format(120000), last)
    finding = first_of(report)

    assert (finding.code, finding.confidence, finding.culprits.ranks) == ("H125", "likely", [])
    assert finding.victims.ranks == "1"
    assert "up to 112.9 s before and 131.4 s the last time" in finding.summary


@pytest.mark.parametrize(
    ("times", "limit"),
    [
        pytest.param([4.1, 4.0, 131.4], 120000, id="far"),
        pytest.param([104.2, 112.9, 118.0], 120000, id="within"),
        pytest.param([104.2, 112.9, 700.0], 120000, id="stuck"),
        pytest.param([104.2, 125.1, 131.4], 120000, id="longer-before"),
    ],
)
def test_what_was_done_later_and_tells_nothing(
    tmp_path: Path, times: Sequence[float], limit: int
) -> None:
    first, second, last = show(EVALUATED[0], times)

    assert first_of(say(tmp_path, first, second, GLOO.format(limit), last)).code == "C211"


def test_what_the_waiting_rank_itself_did_is_no_reason(tmp_path: Path) -> None:
    first, second, last = show(EVALUATED[1].replace("rank0", "rank1"), [*NEAR, 131.4])

    assert first_of(say(tmp_path, first, second, GLOO.format(120000), last)).code == "C211"


CLOSE = [113.0, 116.4, 118.9]
LONGER = [
    "with a longer timeout it went through and took 126.4 s",
    "Without any time limit the fourth one takes 2.1 min, the loss is fine",
    "under the default timeout (30 min) that broadcast needed 131 seconds",
]


@pytest.mark.parametrize("longer", LONGER)
def test_longer_limit_in_which_it_was_done_tells_that_this_one_is_too_short(
    tmp_path: Path, longer: str
) -> None:
    finding = first_of(say(tmp_path, *show(FORMS[0], CLOSE), NCCL.format(120000), longer))

    assert (finding.code, finding.confidence, finding.culprits.ranks) == ("H125", "likely", [])
    assert "where the limit is longer" in finding.summary


@pytest.mark.parametrize(
    "said",
    [
        "",
        "with a longer timeout it took 126.4 s and hangs there, too",
        "with a longer timeout it did not end, each step took 126.4 s",
        "with a longer timeout it takes 1800 s before the error",
        "with the default timeout a step takes 4.1 s",
    ],
)
def test_times_close_to_the_limit_alone_are_possible(tmp_path: Path, said: str) -> None:
    finding = first_of(say(tmp_path, *show(FORMS[0], CLOSE), NCCL.format(120000), said))

    assert (finding.code, finding.confidence) == ("H125", "possible")
