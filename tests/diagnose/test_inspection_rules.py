"""V501 and V502, on what ranks would have written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from whystuck.diagnose.algorithms.stacks.positions import Doing, locate
from whystuck.diagnose.engine import diagnose
from whystuck.evidence.finding import Confidence, Finding, Severity, Verdict
from whystuck.evidence.live import ExitRecord, PythonException
from whystuck.evidence.model import Evidence, Incident, Topology
from whystuck.evidence.ops.collectives import Frame
from whystuck.evidence.ops.inspection import (
    Checksums,
    Inspection,
    NotFinite,
    OpResult,
    ScalerUpdate,
    TensorSet,
)
from whystuck.evidence.ops.log import Ops, OpTeam

MODEL = TensorSet(("a.weight", "a.bias", "b.weight"), ((2, 2), (2,), (3,)), ("float32",) * 3)
Looks = Mapping[tuple[int, str], Sequence[int]]


def _weights(rank: int, looks: Looks, tensors: TensorSet = MODEL) -> Inspection:
    made = tuple(
        Checksums(rank, 1, 0, step, when, tensors, np.array(values, dtype=np.uint64))
        for (step, when), values in looks.items()
    )
    return Inspection(rank, "weights", checksums=made)


def _healthy(steps: int, salt: int = 0) -> dict[tuple[int, str], list[int]]:
    """Return what a rank sees whose three tensors change at each step."""
    looks = {(0, "before"): [1, 0, 3]}
    for step in range(1, steps + 1):
        values = [100 * step + place + salt for place in range(3)]
        looks[step, "after"] = values
        looks[step, "before"] = values
    return looks


def _report(*inspections: Inspection) -> tuple[Verdict, list[Finding]]:
    evidence = Evidence(inspections=inspections, incident=Incident(kind="inspection"))
    report = diagnose(evidence)
    return report.verdict, list(report.findings)


def _find(*inspections: Inspection) -> Finding:
    verdict, findings = _report(*inspections)
    assert verdict is Verdict.DIVERGED
    (finding,) = findings
    return finding


def test_weights_when_replicas_stay_equal_then_nothing_is_found() -> None:
    assert _report(*(_weights(rank, _healthy(9)) for rank in range(4)))[1] == []


def test_weights_when_one_of_two_changes_between_steps_then_it_is_certain() -> None:
    looks = _healthy(3)
    looks[2, "before"] = [200, 999, 202]
    looks[3, "after"] = [7, 8, 9]
    finding = _find(_weights(0, _healthy(3)), _weights(1, looks))
    assert (finding.code, finding.confidence, finding.severity) == (
        "V501",
        Confidence.CERTAIN,
        Severity.ERROR,
    )
    assert finding.culprits.ranks == [1]
    assert finding.details["tensor"] == "a.bias"
    assert (finding.details["step"], finding.details["when"]) == (2, "before")
    assert finding.details["equal_after_step"] == 2
    assert "rank 1 changed `a.bias` between step 2 and the next one" in finding.summary


def test_weights_when_one_of_three_differs_after_a_step_then_it_is_likely() -> None:
    looks = _healthy(5)
    for step in (4, 5):
        looks[step, "after"] = looks[step, "before"] = [1, 2, 3]
    finding = _find(*(_weights(rank, looks if rank == 2 else _healthy(5)) for rank in range(3)))
    assert (finding.culprits.ranks, finding.confidence) == ([2], Confidence.LIKELY)
    assert (finding.details["tensor"], finding.details["tensors"]) == ("a.weight", 3)
    assert finding.details["step"] == 4
    assert finding.victims.ranks == "0-1"


def test_weights_when_two_differ_after_a_step_then_neither_is_named_for_sure() -> None:
    looks = _healthy(5)
    looks[4, "after"] = looks[4, "before"] = [400, 401, 7]
    finding = _find(_weights(0, _healthy(5)), _weights(1, looks))
    assert (finding.culprits.ranks, finding.confidence) == ([0, 1], Confidence.POSSIBLE)
    assert finding.severity is Severity.WARNING
    assert finding.details["tensor"] == "b.weight"


def test_weights_when_all_ranks_change_theirs_between_steps_then_nothing_is_found() -> None:
    looks = _healthy(4)
    looks[2, "before"] = [5, 6, 7]  # as clipping or loading does
    assert _report(_weights(0, looks), _weights(1, looks))[1] == []


def test_weights_when_shards_begin_with_the_same_values_then_they_are_not_compared() -> None:
    ranks = [_weights(rank, _healthy(5, salt=10_000 * rank)) for rank in range(4)]
    assert _report(*ranks)[1] == []


def test_weights_when_the_first_steps_change_nothing_then_shards_are_still_told_apart() -> None:
    # a warm-up that begins with a learning rate of 0
    def looks(rank: int) -> dict[tuple[int, str], list[int]]:
        made = _healthy(5, salt=10_000 * rank)
        for step in (1, 2):
            made[step, "after"] = made[step, "before"] = [1, 0, 3]
        return made

    assert _report(*(_weights(rank, looks(rank)) for rank in range(2)))[1] == []


def test_weights_when_two_replicas_of_each_shard_are_there_then_only_these_are_compared() -> None:
    ranks = [_healthy(5, salt=10_000 * (rank % 2)) for rank in range(4)]
    ranks[3][3, "before"] = [1, 1, 1]
    finding = _find(*(_weights(rank, looks) for rank, looks in enumerate(ranks)))
    assert finding.culprits.ranks == [3]
    assert finding.details["replicas"] == [1, 3]


def test_weights_when_ranks_hold_other_tensors_then_they_are_not_compared() -> None:
    other = TensorSet(MODEL.names, ((2, 2), (2,), (4,)), MODEL.dtypes)
    inspections = _weights(0, _healthy(5)), _weights(1, _healthy(5, salt=5), other)
    assert _report(*inspections)[1] == []


def test_weights_when_a_rank_is_switched_on_later_then_it_is_no_replica() -> None:
    looks = {key: value for key, value in _healthy(5, salt=3).items() if key[0] > 2}
    assert _report(_weights(0, _healthy(5)), _weights(1, looks))[1] == []


def test_weights_when_gradients_differ_first_then_says_so() -> None:
    def looks(rank: int) -> dict[tuple[int, str], list[int]]:
        made = _healthy(4, salt=77 if rank == 1 else 0)
        healthy = _healthy(4)
        for step in (0, 1, 2):
            made[step, "grads"] = [50 + step, 60 + step, 70 + step]
            for when in ("after", "before"):
                if (step, when) in healthy:
                    made[step, when] = healthy[step, when]
        made[3, "after"] = made[3, "before"] = healthy[3, "after"]
        made[3, "grads"] = [9, 9 + (rank == 1), 9]
        return made

    finding = _find(*(_weights(rank, looks(rank)) for rank in range(3)))
    assert (finding.culprits.ranks, finding.details["when"]) == ([1], "grads")
    assert "the gradient of `a.bias`" in finding.summary


# ------------------------------------------------------------------------------------------ V502


def _event(rank: int, number: int, **changes: object) -> NotFinite:
    values: dict[str, object] = {
        "rank": rank, "side": "in", "number": number, "name": "all_reduce", "group": "0",
        "seq": number, "step": 5, "place": 0, "shape": (4,), "dtype": "float32", "nan": 1, "inf": 0,
    }  # fmt: skip
    return NotFinite(**values | changes)  # type: ignore[arg-type] # spread from a dict


def _seen(rank: int, *events: NotFinite, scaler: tuple[ScalerUpdate, ...] = ()) -> Inspection:
    return Inspection(rank, "finite", not_finite=events, scaler=scaler)


def test_not_finite_when_one_rank_gives_it_first_then_it_is_named() -> None:
    finding = _find(
        _seen(0, _event(0, 21, step=6)),
        _seen(1, _event(1, 20), _event(1, 21, step=6)),
        _seen(2, _event(2, 20, side="out"), _event(2, 21, step=6)),
    )
    assert (finding.code, finding.confidence) == ("V502", Confidence.LIKELY)
    assert finding.culprits.ranks == [1]
    assert [one.split()[0] for one in finding.remedies] == ["look"]
    assert (finding.details["step"], finding.details["seq"], finding.details["op"]) == (
        5,
        20,
        "all_reduce",
    )


@pytest.mark.parametrize(
    ("message", "code"), [("loss is not finite", "V502"), ("index 7 is out of range", "C205")]
)
def test_not_finite_when_all_ranks_end_for_it_then_it_comes_first(message: str, code: str) -> None:
    raised = tuple(PythonException(rank, "ValueError", message, ()) for rank in range(2))
    evidence = Evidence(
        inspections=(_seen(0, _event(0, 21, step=6)), _seen(1, _event(1, 20))),
        exceptions=raised,
        exits=tuple(ExitRecord(rank=rank, pid=rank + 7, code=1) for rank in range(2)),
        incident=Incident(kind="exit", command_exit=1),
        topology=Topology(world_size=2),
    )
    found = diagnose(evidence).findings
    assert found[0].code == code
    assert {one.code for one in found} == {"V502", "C205"}


def test_not_finite_when_a_later_op_of_the_same_step_has_some_too_then_only_the_first_counts() -> (
    None
):
    finding = _find(_seen(0, _event(0, 21)), _seen(1, _event(1, 20)), _seen(2))
    assert finding.culprits.ranks == [1]


def test_not_finite_when_all_ranks_give_it_at_once_then_no_rank_is_blamed() -> None:
    finding = _find(*(_seen(rank, _event(rank, 20)) for rank in range(3)))
    assert finding.culprits.ranks == []
    assert "no rank had them first" in finding.summary


def test_not_finite_when_it_is_inf_only_then_is_possible() -> None:
    finding = _find(_seen(0, _event(0, 20, nan=0, inf=2)), _seen(1))
    assert (finding.confidence, finding.severity) == (Confidence.POSSIBLE, Severity.WARNING)


def test_not_finite_when_a_scaler_skips_the_step_then_nothing_is_found() -> None:
    skipped = ScalerUpdate(0, 5, 65536.0, True, 18, 22)
    assert _report(_seen(0, _event(0, 20), scaler=(skipped,)), _seen(1))[1] == []


def test_not_finite_when_the_scaler_has_not_decided_yet_then_nothing_is_found() -> None:
    before = ScalerUpdate(0, 4, 65536.0, True, 10, 17)
    assert _report(_seen(0, _event(0, 20), scaler=(before,)), _seen(1))[1] == []


def test_not_finite_when_the_scaler_takes_the_step_then_it_counts() -> None:
    taken = ScalerUpdate(0, 5, 65536.0, False, 18, 22)
    finding = _find(_seen(0, _event(0, 20), scaler=(taken,)), _seen(1))
    assert finding.culprits.ranks == [0]


def test_not_finite_when_two_ranks_send_it_in_one_step_then_is_only_possible() -> None:
    finding = _find(
        _seen(0, _event(0, 20, name="send", seq=3)), _seen(1, _event(1, 30, name="send", seq=3)),
        _seen(2),
    )  # fmt: skip
    assert finding.confidence is Confidence.POSSIBLE


def test_not_finite_when_the_rank_had_received_it_then_is_not_named() -> None:
    finding = _find(
        _seen(0, _event(0, 19, side="out", group="1"), _event(0, 20)),
        _seen(1, _event(1, 40, group="1", seq=8)),
    )
    assert finding.culprits.ranks == [1]


def test_not_finite_when_an_op_makes_it_of_finite_values_then_the_op_is_named() -> None:
    changes = {"side": "out", "dtype": "float16", "nan": 0, "inf": 8}
    finding = _find(
        *(
            _seen(rank, _event(rank, 20, **changes), _event(rank, 21), _event(rank, 21, side="out"))
            for rank in range(2)
        )
    )
    assert (finding.confidence, finding.severity) == (Confidence.LIKELY, Severity.ERROR)
    assert finding.culprits.ranks == []
    assert (finding.details["seq"], finding.details["step"], finding.details["side"]) == (
        20, 5, "out",
    )  # fmt: skip
    assert "no rank gave it any: the result is too large for float16" in finding.summary
    assert [one.split()[0] for one in finding.remedies] == ["when"]


def test_not_finite_when_one_rank_gets_it_of_finite_values_then_is_only_possible() -> None:
    finding = _find(_seen(0), _seen(1, _event(1, 20, side="out", name="all_gather")), _seen(2))
    assert (finding.confidence, finding.culprits.ranks) == (Confidence.POSSIBLE, [1])
    assert "to rank 1, though no rank that was looked at gave it any" in finding.summary
    assert [one.split()[0] for one in finding.remedies] == ["look", "when"]


def test_not_finite_when_only_some_sizes_are_looked_at_then_what_an_op_made_is_possible() -> None:
    events = [_event(rank, 20, side="out", nan=0, inf=1) for rank in range(2)]
    seen = [Inspection(one.rank, "finite:min=4k", not_finite=(one,)) for one in events]
    assert _find(*seen).confidence is Confidence.POSSIBLE


def test_not_finite_when_not_all_ranks_are_there_then_what_an_op_made_is_possible() -> None:
    seen = tuple(_seen(rank, _event(rank, 20, side="out", nan=0, inf=1)) for rank in range(2))
    incident = Incident(kind="inspection")

    def judge(*members: int) -> tuple[Confidence, list[int]]:
        ops = Ops(teams=(OpTeam("0", members, 0, 0),))
        evidence = Evidence(inspections=seen, incident=incident, ops=ops)
        (finding,) = diagnose(evidence).findings
        return finding.confidence, finding.culprits.ranks

    assert judge(0, 1) == (Confidence.LIKELY, [])
    assert judge(0, 1, 2) == (Confidence.POSSIBLE, [0, 1])


def _send(rank: int, number: int, peer: int, passed: int, **changes: object) -> NotFinite:
    return _event(rank, number, name="send", peer=peer, passed=passed, **changes)


def test_not_finite_when_a_pipeline_passes_it_on_then_its_first_stage_is_named() -> None:
    finding = _find(
        _seen(0, _send(0, 7, 1, 4, received={1: 3}), _send(0, 9, 1, 5, received={1: 4})),
        _seen(1, _send(1, 14, 2, 4, received={0: 4, 2: 3}), _send(1, 16, 0, 4, received={0: 4})),
        _seen(2, _send(2, 8, 1, 4, received={1: 4})),
    )
    assert (finding.culprits.ranks, finding.confidence) == ([0], Confidence.LIKELY)
    assert (finding.details["op"], finding.details["step"]) == ("send", 5)
    assert finding.victims.ranks == "1-2"


def test_not_finite_when_a_middle_stage_makes_it_then_the_one_behind_is_not_named() -> None:
    finding = _find(
        _seen(0, _send(0, 9, 1, 5, received={1: 4})),
        _seen(1, _send(1, 14, 2, 4, received={0: 4, 2: 3}), _send(1, 16, 0, 4, received={0: 4})),
        _seen(2, _send(2, 8, 1, 4, received={1: 4})),
    )
    assert finding.culprits.ranks == [1]


def test_not_finite_when_receives_are_asked_for_ahead_then_the_clocks_tell() -> None:
    finding = _find(
        _seen(0, _send(0, 7, 1, 4, received={1: 4}, time_ns=100)),
        _seen(1, _send(1, 8, 0, 4, received={0: 4}, time_ns=200)),
    )
    assert finding.culprits.ranks == [0]


def test_not_finite_when_all_ranks_give_it_to_other_ops_then_the_first_is_unknown() -> None:
    finding = _find(_seen(0, _send(0, 7, 1, 4)), _seen(1, _send(1, 8, 0, 4)))
    assert (finding.culprits.ranks, finding.confidence) == ([], Confidence.POSSIBLE)
    assert "it is not known which rank had them first" in finding.summary


def test_position_when_the_probe_waits_for_the_op_then_the_rank_is_in_the_op() -> None:
    probe = "/venv/lib/python3.11/site-packages/whystuck/probe"
    c10d = Frame("all_reduce", "/venv/lib/python3.11/site-packages/torch/distributed/c10d.py", 9)
    user = Frame("<module>", "/job/train.py", 3)
    ours = (
        Frame("Inspector._wait", f"{probe}/inspect/inspector.py", 1),
        Frame("Inspector.after", f"{probe}/inspect/inspector.py", 1),
        Frame("look", f"{probe}/wanted.py", 1),
        Frame("kernel", f"{probe}/oplog/dispatcher.py", 1),
    )
    position = locate((*ours, c10d, user))
    assert (position.doing, position.frames) == (Doing.COLLECTIVE, (c10d, user))
    assert locate((*ours, user)).doing is Doing.USER


# ---------------------------------------------------------------------------------- V501, results


def _results(rank: int, sums: Sequence[int], **changes: object) -> Inspection:
    made = tuple(
        OpResult(rank, seq, "all_reduce", "0", seq, seq // 2, (4,), "float32", value)
        for seq, value in enumerate(sums, 1)
    )
    return Inspection(rank, "results", results=made, **changes)  # type: ignore[arg-type] # spread


def _judge_results(
    *inspections: Inspection, members: Sequence[tuple[int, ...]] = ()
) -> list[Finding]:
    groups = members or [tuple(one.rank for one in inspections)]
    evidence = Evidence(
        inspections=inspections,
        incident=Incident(kind="inspection"),
        ops=Ops(teams=tuple(OpTeam("0", ranks, 0, 0) for ranks in groups)),
    )
    return list(diagnose(evidence).findings)


def test_results_when_all_ranks_get_the_same_then_nothing_is_found() -> None:
    assert _judge_results(*(_results(rank, range(50)) for rank in range(4))) == []


def test_results_when_one_rank_gets_another_then_it_is_named() -> None:
    sums = [list(range(20)) for _ in range(4)]
    sums[2][11:] = range(100, 109)
    (finding,) = _judge_results(*(_results(rank, row) for rank, row in enumerate(sums)))
    assert (finding.code, finding.confidence) == ("V501", Confidence.LIKELY)
    assert (finding.culprits.ranks, finding.culprits.groups) == ([2], ["0"])
    assert finding.victims.ranks == "0-1,3"
    assert finding.summary == (
        "rank 2 got another result from all_reduce #12 of group 0 after 6 optimizer steps than "
        "ranks 0-1,3"
    )
    assert (finding.details["when"], finding.details["seq"]) == ("result", 12)


def test_results_when_two_ranks_get_different_ones_then_neither_is_named_for_sure() -> None:
    (finding,) = _judge_results(_results(0, [1, 2, 3]), _results(1, [1, 2, 4]))
    assert (finding.culprits.ranks, finding.confidence) == ([0, 1], Confidence.POSSIBLE)
    assert finding.severity is Severity.WARNING


def test_results_when_every_rank_rounds_its_own_way_then_nothing_is_found() -> None:
    ranks = [_results(rank, [10 * seq + rank for seq in range(9)]) for rank in range(4)]
    assert _judge_results(*ranks) == []


def test_results_when_groups_share_a_name_then_only_members_are_compared() -> None:
    ranks = [_results(rank, [100 * (rank // 2) + seq for seq in range(9)]) for rank in range(4)]
    assert _judge_results(*ranks, members=[(0, 1), (2, 3)]) == []
    assert _judge_results(*ranks, members=[(4, 5)]) == []


def test_results_when_a_rank_has_not_all_of_them_then_the_others_are_compared() -> None:
    rows = [_results(rank, range(9)) for rank in range(3)]
    short = Inspection(1, "results", results=rows[1].results[::2])
    assert _judge_results(rows[0], short, rows[2]) == []


def test_results_when_a_group_is_made_anew_then_each_life_is_compared_for_itself() -> None:
    def make(rank: int, count: int) -> Inspection:
        first = _results(rank, range(9)).results
        second = (
            OpResult(rank, 10 + seq, "all_reduce", "0", seq, 0, (4,), "float32", 100 + seq)
            for seq in range(1, count)
        )
        return Inspection(rank, "results", results=(*first, *second))

    assert _judge_results(make(0, 9), make(1, 3), make(2, 9)) == []


def test_results_when_they_are_not_finite_then_are_left_alone() -> None:
    event = (_event(1, 5, side="out", nan=1),)
    rows = [_results(0, range(9)), _results(1, [0, 1, 2, 3, 40, 5, 6, 7, 8], not_finite=event)]
    assert [one.code for one in _judge_results(*rows)] == ["V502"]


@pytest.mark.parametrize(("weights_step", "when"), [(4, "result"), (2, "after")])
def test_results_when_parameters_differ_too_then_the_first_is_told(
    weights_step: int, when: str
) -> None:
    def rank(number: int) -> Inspection:
        looks = _healthy(5)
        if number == 1:
            for step in range(weights_step, 6):
                looks[step, "after"] = looks[step, "before"] = [7 + step, 8, 9]
        sums = [1, 2, 3, 4, 5, 60 if number == 1 else 6]  # after 3 optimizer steps
        results = _results(number, sums).results
        checksums = _weights(number, looks).checksums
        return Inspection(number, "results,weights", results=results, checksums=checksums)

    (finding,) = _judge_results(*(rank(number) for number in range(3)))
    assert (finding.code, finding.culprits.ranks) == ("V501", [1])
    assert finding.details["when"] == when
