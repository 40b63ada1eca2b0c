"""What torch prints of functions that it compiles again, and ranks that wait for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Severity, Verdict

AGAIN = [
    (
        "{0}V0704 {1}.204000 3771 torch/_dynamo/guards.py:3006] [2/{2}] [__recompiles] Recompiling "
        "function step in /w/net.py:61"
    ),
    (
        "{0}V0704 {1}.204000 3771 torch/_dynamo/guards.py:3006] [2/{2}] [__recompiles]     "
        "triggered by the following guard failure(s):"
    ),
    (
        "{0}V0704 {1}.204000 3771 torch/_dynamo/guards.py:3006] [2/{2}] [__recompiles]     - 2/1: "
        "self.length == 77"
    ),
]
LIMIT = (
    "{0}W0704 {1}.331000 3771 torch/_dynamo/convert_frame.py:964] [2/8] torch._dynamo hit "
    "config.{2} (8)"
)
WAIT = (
    "[rank{0}]:[E704 12:20:05.731100295 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, "
    "Timeout(ms)=600000) ran for 600004 milliseconds before timing out."
)


def again(at: str, *, count: int = 5, prefix: str = "") -> list[str]:
    return [line.format(prefix, at, count) for line in AGAIN]


@pytest.mark.parametrize("limit", ["recompile_limit", "cache_size_limit"])
@pytest.mark.parametrize("prefix", ["", "[rank0]:", "n3: "])
def test_function_that_is_compiled_up_to_the_limit(tmp_path: Path, limit: str, prefix: str) -> None:
    lines = [*again("12:10:00", prefix=prefix), LIMIT.format(prefix, "12:11:00", limit)]
    report = say(tmp_path, "step 4 41.2s", *lines)
    finding = first_of(report)

    assert report.verdict is Verdict.SLOW
    assert (finding.code, finding.culprits.ranks) == ("P508", [])
    assert "step (/w/net.py:61)" in finding.summary


@pytest.mark.parametrize(
    "lines",
    [again("12:10:00"), [LIMIT.format("", "12:11:00", "recompile_limit")], again("12:10:00")[1:]],
    ids=["once", "limit", "guard"],
)
def test_function_that_may_be_compiled_once_is_no_finding(tmp_path: Path, lines: list[str]) -> None:
    assert say(tmp_path, "step 4 41.2s", *lines).findings == []


def test_rank_that_compiled_when_the_others_began_to_wait(tmp_path: Path) -> None:
    lines = [*again("12:10:01", prefix="[rank2]:"), WAIT.format(0), WAIT.format(1)]
    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.ranks) == ("H119", [2])
    assert finding.victims.ranks == "0-1"


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(again("11:40:01", prefix="[rank2]:"), id="long-before"),
        pytest.param(again("12:19:01", prefix="[rank2]:"), id="behind"),
        pytest.param(again("12:10:01", prefix="[rank1]:"), id="waits"),
        pytest.param(
            [*again("12:10:01", prefix="[rank2]:"), *again("12:10:01", prefix="[rank3]:")],
            id="several",
        ),
        pytest.param(again("12:10:01"), id="nobody"),
    ],
)
def test_ranks_that_compiled_at_other_times_are_not_named(tmp_path: Path, lines: list[str]) -> None:
    report = say(tmp_path, *lines, WAIT.format(0), WAIT.format(1))
    told = [one for one in report.findings if one.severity is not Severity.NOTE]

    assert [one.code for one in told] == ["C211"]
    assert not told[0].culprits.ranks


# How torch 2.1 and 2.2 print it.
OLD = (
    "{0}[2026-07-04 {1},204] [2/{2}] torch._dynamo.guards.__recompiles: [DEBUG] Recompiling "
    "function step in /w/net.py:61"
)
UNITS = (
    "step {0} loss 2.118 time {1:.2f}s",
    "iter {0}: loss 2.1180, time {2:.2f}ms",
    ("{{'step': {0}, 'loss': 2.118, 'step_time': {1:.3f}}}"),
)
SLOW, WELL = 31.4, 0.62


def write_steps(
    *steps: tuple[int, float], form: str = UNITS[0], is_old: bool = False, prefix: str = ""
) -> list[str]:
    """Write a loop, of each step how often the function was compiled before it is done in it."""
    lines: list[str] = []
    for at, (count, seconds) in enumerate(steps):
        told = [OLD] if is_old else AGAIN
        lines += [line.format(prefix, f"12:1{at}:00", count) for line in told if count]
        lines.append(form.format(140 + at, seconds, seconds * 1000))
    return lines


STEPS = [(4, SLOW), (0, WELL), (0, WELL + 0.1), (5, SLOW + 3), (0, WELL)]


@pytest.mark.parametrize("form", UNITS)
@pytest.mark.parametrize("is_old", [True, False])
@pytest.mark.parametrize("prefix", ["", "[rank0]:"])
def test_slow_steps_are_those_in_which_a_function_is_compiled(
    tmp_path: Path, form: str, prefix: str, *, is_old: bool
) -> None:
    lines = write_steps(*STEPS, form=form, is_old=is_old, prefix=prefix)
    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.ranks) == ("P508", [])
    assert "take 32.9 s, others 0.62 s" in finding.summary


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([(1, SLOW), (0, WELL), (2, SLOW), (0, WELL)], id="first"),
        pytest.param([(4, SLOW), (0, WELL), (0, WELL), (0, WELL)], id="once"),
        pytest.param([(4, SLOW), (0, WELL), (5, WELL), (0, WELL)], id="cheap"),
        pytest.param([(4, SLOW), (0, SLOW), (5, SLOW), (0, WELL)], id="slow-without"),
        pytest.param([(4, SLOW), (5, SLOW), (6, SLOW)], id="no-others"),
        pytest.param([(4, 0.9), (0, 0.1), (5, 0.9), (0, 0.1)], id="short"),
    ],
)
def test_steps_that_do_not_tell_of_compiles(tmp_path: Path, steps: list[tuple[int, float]]) -> None:
    assert all(one.code != "P508" for one in say(tmp_path, *write_steps(*steps)).findings)


def test_step_that_all_ranks_print_is_one(tmp_path: Path) -> None:
    lines = [
        f"{prefix}{line}"
        for line in write_steps(*STEPS)
        for prefix in (["[rank0]:", "[rank1]:"] if line.startswith("step") else [""])
    ]

    assert first_of(say(tmp_path, *lines)).code == "P508"


# What torch prints at the limit without any option.
BLOCK = [
    LIMIT,
    (
        "{0}W0704 {1}.331000 3771 torch/_dynamo/convert_frame.py:964] [2/8]    function: "
        "'encode' (/w/net.py:61)"
    ),
    (
        "{0}W0704 {1}.331000 3771 torch/_dynamo/convert_frame.py:964] [2/8]    last reason: 2/7: "
        "tensor 'L['x']' size mismatch at index 1. expected 320, actual 344"
    ),
]
LIST = "step {0} | {1:.2f}s | "


def block(limit: str = "recompile_limit", prefix: str = "") -> list[str]:
    return [line.format(prefix, "12:11:00", limit) for line in BLOCK]


def loop(*seconds: float, form: str = UNITS[0], begin: int = 31, by: int = 1) -> list[str]:
    lines = [form.format(begin + by * at, s, s * 1000) for at, s in enumerate(seconds)]
    return ["".join(lines)] if form == LIST else lines


ODD = (WELL, SLOW, WELL, WELL + 0.1, SLOW + 6, WELL)


@pytest.mark.parametrize("limit", ["recompile_limit", "cache_size_limit"])
@pytest.mark.parametrize("prefix", ["", "[rank0]:"])
@pytest.mark.parametrize("form", [*UNITS, LIST])
@pytest.mark.parametrize("is_above", [True, False])
def test_slow_steps_beside_a_function_at_the_limit(
    tmp_path: Path, limit: str, prefix: str, form: str, *, is_above: bool
) -> None:
    steps, told = loop(*ODD, form=form), block(limit, prefix)
    finding = first_of(say(tmp_path, *([*steps, *told] if is_above else [*told, *steps])))

    assert (finding.code, finding.culprits.ranks) == ("P508", [])
    assert "encode (/w/net.py:61)" in finding.summary
    assert "size mismatch at index 1" in finding.summary


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(block(), id="no steps"),
        pytest.param([*block(), *loop(*[WELL] * 6)], id="even"),
        pytest.param([*block(), *loop(SLOW, SLOW, WELL, WELL, WELL)], id="begin"),
        pytest.param([*block(), *loop(WELL, SLOW, WELL, WELL)], id="once"),
        pytest.param([*block(), *loop(*ODD), "Saved checkpoint to /o/s3.pt, took 31 s"], id="save"),
        pytest.param([*block(), *loop(WELL, WELL, SLOW, WELL, WELL, SLOW, by=50)], id="far"),
        pytest.param(loop(*ODD), id="no limit"),
    ],
)
def test_limit_of_compiles_that_costs_nothing(tmp_path: Path, lines: list[str]) -> None:
    assert all(one.code != "P508" for one in say(tmp_path, *lines).findings)


GUARDS = [
    ["self.scale == 0.{0}11", "self.scale == 0.{0}12", "self.scale == 0.{0}13"],
    ["L['warm'] == 3{0}", "L['warm'] == 4{0}", "L['warm'] == 5{0}"],
    [
        f"tensor 'L['x']' size mismatch at index 1. expected 3{size}, actual 4{size}"
        for size in (20, 27, 31)
    ],
]


def write_each(
    reasons: list[str], *, seconds: float = 3.9, first: int = 4, by: int = 1, is_old: bool = False
) -> list[str]:
    """Write a loop that compiles in each of its steps, with what the compiler says it is for."""
    lines: list[str] = []
    for at, reason in enumerate(reasons):
        head, *more = [OLD] if is_old else AGAIN[:2]
        lines += [line.format("", f"12:1{at}:00", first + at) for line in (head, *more)]
        begin = AGAIN[2].partition("    - ")[0].format("", f"12:1{at}:00", first + at)
        lines.append(f"{begin}    - 2/{first + at - 1}: {reason.format(1)}")
        lines.append(f"step {60 + at * by} | loss 1.9 | {seconds:.2f} s/it")
    return lines


@pytest.mark.parametrize("reasons", GUARDS)
@pytest.mark.parametrize("is_old", [True, False])
def test_function_that_is_compiled_in_every_step_for_another_value(
    tmp_path: Path, reasons: list[str], *, is_old: bool
) -> None:
    finding = first_of(say(tmp_path, *write_each(reasons, is_old=is_old)))

    assert (finding.code, finding.culprits.ranks) == ("P508", [])
    assert "in every step" in finding.summary


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(write_each([GUARDS[0][0]] * 3), id="one-value"),
        pytest.param(write_each([GUARDS[0][0], GUARDS[1][1], GUARDS[0][2]]), id="other-guards"),
        pytest.param(write_each(GUARDS[0], seconds=0.4), id="cheap"),
        pytest.param(write_each(GUARDS[0][:2], first=1), id="first-sizes"),
        pytest.param(write_each(GUARDS[0], by=10), id="rare"),
        pytest.param(write_each(GUARDS[0][:1]), id="once"),
        pytest.param([*write_each(GUARDS[0]), "step 63 | 3.95 s/it"], id="slow-without"),
    ],
)
def test_compiles_that_do_not_make_every_step_slow(tmp_path: Path, lines: list[str]) -> None:
    assert all(one.code != "P508" for one in say(tmp_path, *lines).findings)
