"""When a job is started again, and which code it ends with: pure decisions."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from whystuck.evidence.errors import UsageError
from whystuck.launch.restarts.ending import RootCause, RoundEnd, decode_end
from whystuck.launch.restarts.exit_codes import ExitCodes, read_exit_codes
from whystuck.launch.restarts.policy import RestartPolicy
from whystuck.launch.restarts.progress import find_printed_step

RAISED = RootCause(code="C204", summary="rank 1: ValueError", place="train.py:3 main", ranks=(1,))
KILLED = RootCause(code="C201", summary="rank 1 ended by SIGKILL", ranks=(1,))
BROKEN = RootCause(code="C208", summary="Xid 79", nodes=("n3",), is_sure=True)


def end(cause: RootCause | None, *, code: int = 1, steps: int = 0, printed: int = -1) -> RoundEnd:
    return RoundEnd(code, cause, steps=steps, printed_step=printed)


def test_restarts_are_counted() -> None:
    policy = RestartPolicy(2)
    assert policy.why_not(end(None)) == ""
    assert policy.why_not(end(None)) == ""
    assert policy.why_not(end(None)) == "all 2 restarts are used"


@pytest.mark.parametrize(
    ("first", "second", "is_over"),
    [
        (end(RAISED, steps=5), end(RAISED, steps=5), True),
        (end(RAISED, steps=5), end(RAISED, steps=4), True),
        (end(RAISED, steps=5), end(RAISED, steps=6), False),
        (end(RAISED, steps=5, printed=5), end(RAISED, steps=5, printed=10), False),
        (end(RAISED), end(KILLED), False),
        (end(KILLED), end(RootCause(code="C201", summary="", ranks=(2,))), False),
        (end(RAISED), end(RootCause(code="C204", place=RAISED.place, ranks=(2,))), True),
        (end(None), end(None), False),
    ],
)
def test_the_same_cause_without_progress_is_the_end(
    first: RoundEnd, second: RoundEnd, *, is_over: bool
) -> None:
    policy = RestartPolicy(9)
    assert policy.why_not(first) == ""
    assert bool(policy.why_not(second)) is is_over


def test_progress_is_measured_from_the_furthest_round() -> None:
    policy = RestartPolicy(9)
    for steps, is_over in ((9, False), (3, True)):
        assert bool(policy.why_not(end(RAISED, steps=steps))) is is_over
    policy = RestartPolicy(9)
    assert policy.why_not(end(RAISED, steps=9)) == ""
    assert policy.why_not(end(KILLED, steps=2)) == ""
    assert policy.why_not(end(KILLED, steps=8)) != ""


def test_causes_that_take_turns_are_no_progress() -> None:
    policy = RestartPolicy(9)
    assert policy.why_not(end(RAISED, steps=5)) == ""
    assert policy.why_not(end(KILLED, steps=5)) == ""
    assert "the same cause" in policy.why_not(end(RAISED, steps=5))


@pytest.mark.parametrize("code", [129, 130, 131, 143])
def test_ends_by_a_signal_that_asks_for_it_are_no_failures(code: int) -> None:
    assert "signal" in RestartPolicy(3).why_not(end(None, code=code))


def test_hardware_and_a_job_that_was_ended_from_outside_are_not_tried_again() -> None:
    assert RestartPolicy(3).why_not(end(BROKEN)).startswith("this node is not fit: C208")
    outside = RootCause(code="C207", summary="ended from outside")
    assert "outside" in RestartPolicy(3).why_not(end(outside))


@pytest.mark.parametrize(
    ("code", "wanted"),
    [("C208", 200), ("N411", 200), ("C201", 201), ("C209", 201), ("C211", 202), ("C204", 100),
     ("H102", 100), ("V502", 100), ("Z999", 1)],
)  # fmt: skip
def test_root_causes_have_codes_by_class(code: str, wanted: int) -> None:
    codes = ExitCodes(is_root_cause=True)
    assert codes.choose(end(RootCause(code=code, summary="", is_sure=True))) == wanted


def test_codes_of_a_map_go_before_classes_and_alone_change_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "codes.toml"
    path.write_text("C204 = 77\nhardware = 210\nunknown = 99\n")
    alone, both = read_exit_codes(None, path), read_exit_codes("root-cause", path)
    for codes in (alone, both):
        assert codes.choose(end(RAISED)) == 77
        assert codes.choose(end(BROKEN)) == 210
        assert codes.choose(end(None)) == 99
        assert codes.choose(end(RAISED, code=0)) == 0
    assert alone.choose(end(KILLED)) == 1
    assert both.choose(end(KILLED)) == 201


def test_by_default_the_code_is_that_of_the_command() -> None:
    assert read_exit_codes(None, None).choose(end(BROKEN, code=42)) == 42


@pytest.mark.parametrize(
    "text", ["C204 = 0", "C204 = 256", 'C204 = "x"', "nonsense = 3", "=", "C204 = true"]
)
def test_a_map_that_is_wrong_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "codes.toml"
    path.write_text(text)
    with pytest.raises(UsageError):
        read_exit_codes(None, path)


@pytest.mark.parametrize(
    ("text", "step"),
    [
        (b"step 3\nstep 12 loss 0.1\n", 12),
        (b"12:00:01.123 out [Epoch 1] iteration: 40/1000\n", 40),
        (b"global_step=7, lr=3\n", 7),
        (b"steps per second 12.3\nnothing\n", -1),
        (b"step 99999999999999999999\n", -1),
        (b"", -1),
    ],
)
def test_step_is_read_from_what_the_job_prints(text: bytes, step: int) -> None:
    assert find_printed_step(text) == step


@pytest.mark.parametrize("told", [None, [], {}, {"code": "x"}, {"code": 3, "cause": {"code": 1}}])
def test_an_end_that_cannot_be_read_keeps_its_code(told: object) -> None:
    assert decode_end(told, 7) == RoundEnd(7)


def test_an_end_comes_through_as_it_was_told() -> None:
    told = end(RAISED, code=3, steps=5, printed=6)
    assert decode_end(msgspec.json.decode(msgspec.json.encode(told)), 9) == told
