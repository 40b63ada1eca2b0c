"""The ops around the place that matters, with ranks and groups that did the same folded."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.diagnose.dumps import DONE, GLOO, SCHEDULED, STARTED, Dumps
from tests.diagnose.scenes import MODULE, Job, at
from tests.diagnose.test_torchfrtrace_cases import BLOCK, LOOP, MAIN, hang, loop
from tests.diagnose.test_torchfrtrace_defects import pipeline

from whystuck.diagnose.engine import diagnose
from whystuck.diagnose.summaries.ops_view import ALL, View
from whystuck.diagnose.summaries.recorded import make_tables
from whystuck.diagnose.summaries.timeline import list_groups
from whystuck.evidence.finding import Report, Verdict
from whystuck.evidence.ranks import parse_ranks
from whystuck.evidence.sections import Timeline
from whystuck.report.text import render_text


def states(timeline: Timeline) -> list[list[tuple[str, str]]]:
    return [[(part.ranks, part.state) for part in op.classes] for op in timeline.ops]


def test_window_is_around_the_divergence_not_at_the_end(tmp_path: Path) -> None:
    dumps = loop(Dumps(), 20).op([1], "all_reduce", (at(MAIN, 5, "save"), MODULE))
    for _ in range(10):
        dumps.op(range(4), "all_reduce", LOOP)
    hang(dumps, [1])
    [timeline] = dumps.report(tmp_path).timeline
    numbers = [op.sequence for op in timeline.ops]

    assert timeline.recorded == 52
    assert len(numbers) == 8
    assert {40, 41, 42, 52} <= set(numbers)
    assert [op.sequence for op in timeline.ops if op.mark == "divergence"] == [41]
    assert [op.sequence for op in timeline.ops if op.mark == "pending"] == [52]


def test_reports_of_other_causes_have_no_timeline(tmp_path: Path) -> None:
    seen = Job().of_kind("exit", command_exit=1).ends(2, signal=9)
    report = hang(loop(Dumps()), [0, 1, 3]).report(tmp_path, seen)

    assert [item.code for item in report.findings] == ["C201"]
    assert report.timeline == []
    assert loop(Dumps()).report(tmp_path).timeline == []


def test_ranks_that_did_the_same_are_one_class(tmp_path: Path) -> None:
    dumps = hang(loop(Dumps(64)), [rank for rank in range(64) if rank != 37])
    [timeline] = dumps.report(tmp_path).timeline

    assert timeline.columns == ["0-36,38-63", "37"]
    assert states(timeline)[0] == [("0-63", "done")]
    assert states(timeline)[-1] == [("0-36,38-63", "started"), ("37", "absent")]


def test_groups_that_look_the_same_are_one(tmp_path: Path) -> None:
    evidence = pipeline(4, steps=3, width=8).evidence(tmp_path)
    shown = list_groups(evidence)

    # All ranks; the 4 tensor-parallel groups; the transfers of the 8 pipeline groups.
    assert [(item.group, len(item.alike)) for item in shown] == [("0", 0), ("tp0", 3), ("pp0", 7)]
    assert shown[1].alike_ranks == "8-31"
    assert len(list_groups(evidence, view=View(fold=False))) == 13


def test_group_that_is_asked_for_is_shown_among_many(tmp_path: Path) -> None:
    groups = {f"g{number}": (f"kind {number}", (0, 1)) for number in range(1, 100)}
    dumps = hang(Dumps(2, groups=dict(groups)), [0])
    for name in groups:
        dumps.op([0, 1], "all_reduce", BLOCK, group=name)
    evidence = dumps.evidence(tmp_path)
    view = View(groups=("kind 77",))

    assert [item.group for item in diagnose(evidence, view=view).timeline] == ["g77"]
    assert [item.group for item in diagnose(evidence).timeline] == ["0"]


def test_sizes_that_may_differ_do_not_part_the_ranks(tmp_path: Path) -> None:
    dumps = Dumps()
    for rank in range(4):
        dumps.op([rank], "all_to_all", BLOCK, input_sizes=[[rank + 1]])
    [timeline] = list_groups(dumps.evidence(tmp_path))
    [told] = timeline.ops[0].classes

    assert (told.ranks, told.sizes, told.sizes_vary) == ("0-3", [[1]], True)
    assert timeline.mismatches == 0


def test_sizes_that_must_agree_part_the_ranks(tmp_path: Path) -> None:
    dumps = Dumps().op([0, 1, 3], "all_reduce", LOOP).op([2], "all_reduce", LOOP, input_sizes=[[5]])
    [timeline] = list_groups(dumps.evidence(tmp_path))

    assert states(timeline) == [[("0-1,3", "done"), ("2", "done")]]
    assert (timeline.mismatches, timeline.first_mismatches) == (1, [1])
    assert timeline.ops[0].mark == "mismatch"


def test_rank_without_a_dump_is_unknown(tmp_path: Path) -> None:
    evidence = hang(loop(Dumps(), 1), [0, 1]).evidence(tmp_path, leave_out=[3])
    [timeline] = list_groups(evidence)

    assert states(timeline)[-1] == [("0-1", "started"), ("2", "absent"), ("3", "unknown")]


def test_what_an_active_only_dump_lacks_is_over(tmp_path: Path) -> None:
    dumps = loop(Dumps(), 20).op([0, 1, 3], "all_reduce", LOOP)
    dumps.op([2], "all_reduce", LOOP, state=STARTED)
    dumps.op(range(4), "all_reduce", BLOCK, state=SCHEDULED)
    dumps.entries = {
        rank: [entry for entry in entries if not entry["retired"]]
        for rank, entries in dumps.entries.items()
    }
    [timeline] = list_groups(dumps.evidence(tmp_path))

    assert states(timeline) == [[("2", "started"), ("0-1,3", "done")], [("0-3", "pending")]]


def test_rings_that_wrapped_show_what_all_still_hold(tmp_path: Path) -> None:
    dumps = Dumps(3, ring=10, groups={"1": ("pair", (0, 1))})
    for _ in range(8):
        dumps.op([0, 1], "all_reduce", BLOCK, group="1").op(range(3), "all_reduce", LOOP)
    shown = {item.group: item for item in list_groups(dumps.evidence(tmp_path), view=View(ALL))}

    assert [op.sequence for op in shown["0"].ops] == [4, 5, 6, 7, 8]
    assert all(state == [("0-2", "done")] for state in states(shown["0"]))


def test_transfers_without_a_peer_have_one_end(tmp_path: Path) -> None:
    dumps = Dumps(2, form="xccl")
    dumps.op([0], "send", is_p2p=True, p2p_seq_id=1).op([1], "recv", is_p2p=True, p2p_seq_id=1)
    [timeline] = list_groups(dumps.evidence(tmp_path))

    assert {op.op for op in timeline.ops} <= {"0->?", "?->1", "0->1"}
    assert all(part.state == "done" for op in timeline.ops for part in op.classes)


def test_gloo_ops_have_neither_peers_nor_start_times(tmp_path: Path) -> None:
    dumps = hang(loop(Dumps(form=GLOO), 1).move(0, 1), [0, 1, 2])
    [timeline] = list_groups(dumps.evidence(tmp_path))

    assert states(timeline)[-1] == [("0-2", "pending"), ("3", "absent")]


def test_lines_marked_in_other_groups_are_not_those_of_the_divergence(tmp_path: Path) -> None:
    dumps = loop(Dumps(groups={"1": ("pair", (0, 1))}), 3)
    dumps.op([0, 1], "all_reduce", BLOCK, group="1", times=6)
    dumps.op([1], "barrier", (at(MAIN, 5, "save"), MODULE), state=STARTED)
    hang(dumps, [0, 2, 3])
    report = dumps.report(tmp_path)

    assert [item.code for item in report.findings] == ["H105"]
    assert [item.group for item in report.timeline] == ["0"]


OPS = st.tuples(
    st.sampled_from(["all_reduce", "broadcast", "all_to_all", "send", "recv"]),
    st.sampled_from(["0", "1"]),
    st.sampled_from([DONE, STARTED, SCHEDULED]),
    st.integers(0, 2),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(OPS, max_size=6), min_size=3, max_size=3), st.integers(1, 9))
def test_any_ops_give_classes_that_hold_each_member_once(
    ops: list[list[tuple[str, str, str, int]]], last: int
) -> None:
    dumps = Dumps(3, ring=4, groups={"1": ("pair", (0, 2))})
    for rank, mine in enumerate(ops):
        for op, group, state, size in mine:
            if group == "1" and rank == 1:
                continue
            if op in {"send", "recv"}:
                # Position 0 of a group sends, the others receive.
                form = "send 0->1" if rank == 0 else "recv 1<-0"
                dumps.op([rank], form, group=group, state=state, is_p2p=True, p2p_seq_id=size)
            else:
                site = (at(MAIN, size + 1), MODULE)
                dumps.op([rank], op, site, group=group, state=state, input_sizes=[[size]])
    with tempfile.TemporaryDirectory() as folder:
        evidence = dumps.evidence(Path(folder))
    shown = list_groups(evidence, view=View(last, fold=False))
    make_tables(evidence)

    assert render_text(
        Report(verdict=Verdict.HEALTHY, timeline=shown), color=False, width=80, ops=True
    )
    for item in shown:
        for told in item.ops:
            ranks = [rank for part in told.classes for rank in parse_ranks(part.ranks)]
            assert told.is_p2p or len(ranks) == len(set(ranks))
            assert told.is_p2p or set(ranks) == parse_ranks(item.members)
