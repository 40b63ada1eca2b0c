"""What torchfrtrace 2.13 gets wrong for a reason that is not one job: 15 defects, a test each.

And healthy dumps on which it reports errors. ``test_torchfrtrace_cases.py`` has the jobs.
"""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import pytest
from tests.diagnose.dumps import DONE, GLOO, SCHEDULED, STARTED, Dumps
from tests.diagnose.scenes import MODULE, Job, at
from tests.diagnose.test_torchfrtrace_cases import (
    BLOCK,
    GONE,
    LOOP,
    MAIN,
    blamed,
    both_forms,
    hang,
    loop,
    root,
    tensor_and_data_parallel,
)
from tests.parse.dumps.builders import as_json, as_pickle

from whystuck.evidence.finding import Report, Verdict
from whystuck.pipeline import diagnose_paths


def healthy(report: Report) -> None:
    assert [(item.code, item.culprits.ranks) for item in report.findings] == []


# ----------------------------------------------------------------------------------- 15 defects


def test_1_complete_dumps_of_gloo_are_judged(tmp_path: Path) -> None:
    report = diagnose_paths([hang(loop(Dumps(form=GLOO)), [0, 1, 2]).write(tmp_path)])

    root(report, "H101", [3])
    assert report.gaps == []


def test_2_rings_that_wrapped_at_other_places_are_not_divergence(tmp_path: Path) -> None:
    healthy(pipeline(4, steps=12, ring=20, skew=2).report(tmp_path))


def test_3_transfers_in_a_group_of_four(tmp_path: Path) -> None:
    dumps = loop(Dumps())
    for _ in range(3):
        dumps.move(0, 1, BLOCK).move(2, 3, BLOCK).move(1, 2, BLOCK)

    healthy(loop(dumps).report(tmp_path))


@pytest.mark.parametrize("version", ["2.5", "2.10"])
def test_4_coalesced_ops(version: str, tmp_path: Path) -> None:
    dumps = Dumps(version=version)
    for _ in range(3):
        dumps.op(range(4), "all_reduce", LOOP)
        if version == "2.10":
            dumps.op(range(4), "all_reduce", BLOCK, times=2)
        dumps.op(range(4), "coalesced", BLOCK, input_sizes=[], output_sizes=[])

    healthy(dumps.report(tmp_path))


@both_forms
def test_5_size_of_all_gather_base(form: str, tmp_path: Path) -> None:
    dumps = hang(loop(Dumps(form=form)), [0, 1, 3], "_all_gather_base", output_sizes=[[16]])
    hang(dumps, [2], "_all_gather_base", input_sizes=[[5]], output_sizes=[[20]])

    root(dumps.report(tmp_path), "H106", [2])


@both_forms
@pytest.mark.parametrize("culprit", range(4))
def test_6_culprit_does_not_depend_on_the_order_of_files(
    form: str, culprit: int, tmp_path: Path
) -> None:
    dumps = hang(loop(Dumps(form=form)), [culprit], input_sizes=[[41]])
    hang(dumps, [rank for rank in range(4) if rank != culprit])

    root(dumps.report(tmp_path), "H106", [culprit])


def test_7_ranks_in_another_state_of_one_op_are_no_culprits(tmp_path: Path) -> None:
    dumps = loop(Dumps()).op([0, 1], "all_reduce", LOOP, state=DONE)
    dumps.op([2], "all_reduce", LOOP, state=STARTED).op([3], "all_reduce", LOOP, state=SCHEDULED)
    report = dumps.report(tmp_path, Job().of_kind("snapshot"))

    assert not any(item.code in {"H102", "H105", "H106", "H107"} for item in report.findings)
    assert blamed(report) & {0, 1} == set()


@both_forms
def test_8_missing_dump_of_a_healthy_job_is_a_gap(form: str, tmp_path: Path) -> None:
    loop(Dumps(form=form, groups={"1": ("pair", (0, 1))})).write(tmp_path, leave_out=[2])
    report = diagnose_paths([tmp_path])

    healthy(report)
    assert [gap.rank for gap in report.gaps if gap.rank is not None] == [2]
    assert report.verdict in {Verdict.HEALTHY, Verdict.INCONCLUSIVE}


@both_forms
def test_9_stall_that_all_ranks_share_is_not_passed_over(form: str, tmp_path: Path) -> None:
    report = hang(loop(Dumps(form=form)), [0, 1, 2, 3]).report(tmp_path)

    assert [item.code for item in report.findings] == ["H122"]
    assert report.verdict is Verdict.STUCK


@both_forms
def test_10_all_to_all_with_equal_totals_accuses_nobody(form: str, tmp_path: Path) -> None:
    # The recorder has no split sizes, so that which pair differs cannot be known from it.
    report = hang(loop(Dumps(form=form)), [0, 1, 2, 3], "all_to_all").report(tmp_path)

    assert blamed(report) == set()
    assert report.verdict is not Verdict.HEALTHY


def test_11_bad_files_are_gaps_and_the_rest_is_judged(tmp_path: Path) -> None:
    dumps = hang(loop(Dumps(6)), [0, 1, 2, 4, 5])
    dumps.write(tmp_path)
    (tmp_path / "nccl_trace_rank_1").write_bytes(as_json(dumps.dump(1)))
    cut = (tmp_path / "nccl_trace_rank_4").read_bytes()[:500]
    (tmp_path / "nccl_trace_rank_4").write_bytes(cut)
    (tmp_path / "nccl_trace_rank_5").write_bytes(as_pickle(dumps.dump(5) | {"version": "2.4"}))
    report = diagnose_paths([tmp_path])

    root(report, "H101", [3])
    assert [gap.rank for gap in report.gaps] == [4]


@both_forms
@pytest.mark.parametrize("op", ["all_reduce_of_tomorrow", "weird op: 3"])
@pytest.mark.parametrize("backend", ["newccl", ""])
def test_11_ops_and_backends_nobody_knows(form: str, op: str, backend: str, tmp_path: Path) -> None:
    dumps = loop(Dumps(form=form))
    dumps.op(range(4), op, BLOCK, profiling_name=f"{backend}:{op}", times=3)
    hang(dumps, [0, 1, 2])

    root(dumps.report(tmp_path), "H101", [3])


@pytest.mark.parametrize("name", ["x_container-node02_{}", "{}.pkl", "n{}/nccl_trace_rank_{}"])
def test_12_names_of_files(name: str, tmp_path: Path) -> None:
    dumps = hang(loop(Dumps()), [0, 1, 2])
    for rank in range(4):
        path = tmp_path / name.replace("{}", str(rank))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(as_pickle(dumps.dump(rank)))

    root(diagnose_paths([tmp_path]), "H101", [3])


def test_12_compressed_files(tmp_path: Path) -> None:
    dumps = hang(loop(Dumps()), [0, 1, 2])
    for rank in range(4):
        data = gzip.compress(as_pickle(dumps.dump(rank)))
        (tmp_path / f"nccl_trace_rank_{rank}.gz").write_bytes(data)

    root(diagnose_paths([tmp_path]), "H101", [3])


class Payload:
    """Leaves a file behind when it is unpickled by a reader that obeys."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.mark,)  # type: ignore[return-value]


def test_13_nothing_in_a_dump_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    folder = tmp_path / "dumps"
    folder.mkdir()
    dumps = hang(loop(Dumps()), [0, 1, 2])
    dumps.write(folder)
    evil = dumps.dump(2) | {"extra": Payload(mark)}
    (folder / "nccl_trace_rank_2").write_bytes(pickle.dumps(evil))
    evaluated = dumps.dump(1)
    evaluated["pg_config"]["0"]["ranks"] = f"open({str(mark)!r}, 'w') or [0, 1, 2, 3]"
    (folder / "nccl_trace_rank_1").write_bytes(as_pickle(evaluated))
    report = diagnose_paths([folder])

    assert not mark.exists()
    assert 2 in {gap.rank for gap in report.gaps}
    assert blamed(report) <= {3}


def test_14_counters_tell_who_lags_when_entries_do_not(tmp_path: Path) -> None:
    # An active-only dump has nothing of what is done; its counters have.
    dumps = loop(Dumps(), 20).op([0, 1, 3], "all_reduce", LOOP)
    hang(dumps, [2])
    hang(dumps, [0, 1, 3], site=BLOCK)
    for rank in range(4):
        content = dumps.dump(rank)
        content["entries"] = [item for item in content["entries"] if not item["retired"]]
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(as_pickle(content))

    root(diagnose_paths([tmp_path]), "H123", [2])


@both_forms
def test_15_victims_are_not_listed_like_culprits(form: str, tmp_path: Path) -> None:
    dumps = tensor_and_data_parallel(form)
    hang(dumps, [4], group="tp2", site=BLOCK)
    hang(dumps, [0, 2, 6], group="dp0")
    hang(dumps, [1, 3, 7], group="dp1")
    report = dumps.report(tmp_path)

    root(report, "H101", [5])
    assert report.findings[0].victims.ranks == "0-4,6-7"


# -------------------------------------------------------------------------------------- healthy


def pipeline(stages: int, *, steps: int, ring: int = 2000, skew: int = 0, batch: bool = False,
             width: int = 2) -> Dumps:  # fmt: skip
    """A pipeline of ``stages``, each a tensor-parallel group; rank = stage * width + column."""
    world = stages * width
    groups: dict[str, tuple[str, tuple[int, ...]]] = {}
    for stage in range(stages):
        groups[f"tp{stage}"] = ("tensor", tuple(range(stage * width, stage * width + width)))
    for column in range(width):
        groups[f"pp{column}"] = ("pipeline", tuple(range(column, world, width)))
    dumps = Dumps(world, ring=ring, groups=dict(groups))
    for _ in range(steps):
        for stage in range(stages):
            if stage:
                transfer(dumps, stage - 1, stage, width, batch=batch)
            more = skew if stage == stages - 1 else 0
            dumps.op(groups[f"tp{stage}"][1], "all_reduce", BLOCK, group=f"tp{stage}",
                     times=2 + more)  # fmt: skip
        dumps.op(range(world), "all_reduce", LOOP)
    return dumps


def transfer(dumps: Dumps, source: int, target: int, width: int, *, batch: bool) -> None:
    for column in range(width):
        group = f"pp{column}"
        dumps.move(source, target, BLOCK, group=group)
        if batch:
            ends = [dumps.groups[group][1][end] for end in (source, target)]
            for rank in ends:
                number = dumps.entries[rank][-1]["p2p_seq_id"]
                dumps.op([rank], "coalesced", BLOCK, group=group, is_p2p=True, input_sizes=[],
                         output_sizes=[], p2p_seq_id=number)  # fmt: skip


@pytest.mark.parametrize("batch", [False, True], ids=["single", "batch"])
@pytest.mark.parametrize("ring", [2000, 25], ids=["whole", "wrapped"])
def test_pipeline(ring: int, batch: bool, tmp_path: Path) -> None:
    healthy(pipeline(4, steps=8, ring=ring, batch=batch).report(tmp_path))


def test_pipeline_of_64_ranks_with_uneven_stages(tmp_path: Path) -> None:
    dumps = pipeline(4, steps=6, skew=3, width=16, ring=30)
    report = dumps.report(tmp_path)

    healthy(report)
    assert report.verdict is Verdict.HEALTHY


@both_forms
def test_sub_groups_of_several_sizes(form: str, tmp_path: Path) -> None:
    groups = {"1": ("half", (0, 1, 2)), "2": ("pair", (4, 5)), "3": ("other", (0, 5))}
    dumps = Dumps(6, form=form, groups=dict(groups), ring=11)
    for _ in range(6):
        dumps.op(range(6), "all_reduce", LOOP)
        for name, (_, members) in groups.items():
            dumps.op(members, "broadcast", BLOCK, group=name, times=int(name))

    healthy(dumps.report(tmp_path))


@both_forms
def test_call_sites_that_differ_by_role_are_legal(form: str, tmp_path: Path) -> None:
    dumps = Dumps(form=form)
    for _ in range(5):
        dumps.op([0], "broadcast", [at(MAIN, 12, "lead"), MODULE])
        dumps.op([1, 2, 3], "broadcast", [at(MAIN, 14, "follow"), MODULE])
        dumps.op(range(4), "all_reduce", LOOP)

    healthy(dumps.report(tmp_path))


@both_forms
def test_uneven_sizes_where_they_are_legal(form: str, tmp_path: Path) -> None:
    dumps = loop(Dumps(form=form))
    for rank in range(4):
        dumps.op([rank], "all_to_all", BLOCK, input_sizes=[[rank + 1]], output_sizes=[[4 - rank]])
        dumps.op([rank], "gather", BLOCK, output_sizes=[[4]] * 4 if rank == 0 else [])

    healthy(loop(dumps, 2).report(tmp_path))


def test_victims_with_lost_connections_are_not_the_cause(tmp_path: Path) -> None:
    seen = Job().of_kind("exit", command_exit=1).ends(2, signal=9).raises(0, *GONE, [MODULE])

    root(hang(loop(Dumps()), [0, 1, 3]).report(tmp_path, seen), "C201", [2])
