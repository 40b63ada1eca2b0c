"""The jobs on which torchfrtrace 2.13 fails, says nothing, or names a victim.

Each is judged from the dumps as NCCL and as gloo write them; what gloo does not record comes from
the stacks of the ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.dumps import DONE, GLOO, NCCL, OP_NS, SCHEDULED, STARTED, Dumps
from tests.diagnose.scenes import MODULE, TORCH, WAITING, Job, at
from tests.parse.dumps.builders import as_pickle

from whystuck.evidence.finding import Confidence, Finding, Report, Severity
from whystuck.evidence.ops.collectives import Frame
from whystuck.pipeline import diagnose_paths

MAIN = "/job/train.py"
LOOP = (at(MAIN, 22), MODULE)
BLOCK = (at(MAIN, 23), MODULE)
EXTRA = (at(MAIN, 5, "save"), at(MAIN, 24), MODULE)
AFTER = (at(MAIN, 40), MODULE)
GONE = RuntimeError.__name__, "Connection closed by peer [127.0.0.1]:4321"

both_forms = pytest.mark.parametrize("form", [NCCL, GLOO])


def loop(dumps: Dumps, steps: int = 5) -> Dumps:
    for _ in range(steps):
        dumps.op(range(dumps.world), "all_reduce", LOOP)
        dumps.op(range(dumps.world), "all_reduce", BLOCK, input_sizes=[[8]], output_sizes=[[8]])
    return dumps


def hang(dumps: Dumps, ranks: list[int], op: str = "all_reduce", **changes: object) -> Dumps:
    return dumps.op(ranks, op, changes.pop("site", LOOP), state=STARTED, **changes)  # type: ignore[arg-type]


def others(world: int, *ranks: int) -> list[int]:
    return [rank for rank in range(world) if rank not in ranks]


def root(report: Report, code: str, ranks: list[int]) -> Finding:
    """The one finding there is, and whom it names."""
    found = [(item.code, item.culprits.ranks) for item in report.findings]
    assert found == [(code, ranks)]
    return report.findings[0]


def blamed(report: Report) -> set[int]:
    return {rank for item in report.findings for rank in item.culprits.ranks}


def waiting(job: Job, ranks: list[int], line: int = 22) -> Job:
    for rank in ranks:
        job.stands(rank, (*WAITING, at(MAIN, line), MODULE))
    return job


# ---------------------------------------------------------------- one rank is missing, or elsewhere


@both_forms
def test_a_missing_rank_is_named_with_the_line_it_is_at(form: str, tmp_path: Path) -> None:
    dumps = hang(loop(Dumps(form=form)), [0, 1, 3])
    seen = waiting(Job(), [0, 1, 3]).stands(2, (at(MAIN, 50, "elsewhere"), MODULE))
    finding = root(dumps.report(tmp_path, seen), "H101", [2])

    assert finding.where[0].line == 50
    assert finding.victims.ranks == "0-1,3"


@both_forms
def test_a_missing_rank_is_named_without_stacks_too(form: str, tmp_path: Path) -> None:
    finding = root(hang(loop(Dumps(form=form)), [0, 1, 3]).report(tmp_path), "H101", [2])

    assert finding.severity is Severity.ERROR


@both_forms
def test_h_user_stall_of_the_dataset_is_the_rank_and_its_line(form: str, tmp_path: Path) -> None:
    data = (
        at("/job/data.py", 7, "__getitem__"),
        Frame("fetch", f"{TORCH}/utils/data/_utils/fetch.py", 52),
        Frame("__next__", f"{TORCH}/utils/data/dataloader.py", 700),
        MODULE,
    )
    dumps = hang(loop(Dumps(form=form)), [0, 1, 2])
    finding = root(dumps.report(tmp_path, waiting(Job(), [0, 1, 2]).stands(3, data)), "H111", [3])

    assert (finding.where[0].file, finding.where[0].line) == ("/job/data.py", 7)


@both_forms
def test_i2_exception_that_does_not_end_its_rank(form: str, tmp_path: Path) -> None:
    seen = waiting(Job(), [0, 1, 3]).stands(2, (at("/lib/threading.py", 1590, "_shutdown"),))
    seen.raises(2, "ValueError", "bad sample", [at(MAIN, 26), MODULE])
    finding = root(hang(loop(Dumps(form=form)), [0, 1, 3]).report(tmp_path, seen), "H120", [2])

    assert finding.where[0].line == 26


@both_forms
def test_i_crash_names_the_killed_rank_and_no_victim(form: str, tmp_path: Path) -> None:
    dumps = hang(loop(Dumps(form=form)), [0, 1, 3])
    seen = Job().of_kind("exit", command_exit=1).ends(2, signal=9)
    for rank in (0, 1, 3):
        seen.raises(rank, *GONE, [at(MAIN, 22), MODULE])

    root(dumps.report(tmp_path, seen, leave_out=[2]), "C201", [2])


@both_forms
def test_o_many_queued_ops_are_one_finding(form: str, tmp_path: Path) -> None:
    dumps = loop(Dumps(2, form=form)).op([0], "all_reduce", LOOP, state=SCHEDULED, times=4)

    root(dumps.report(tmp_path), "H101", [1])


@both_forms
def test_k_ring_that_wrapped_at_another_place(form: str, tmp_path: Path) -> None:
    dumps = Dumps(3, form=form, ring=10, groups={"1": ("pair", (0, 1))})
    for _ in range(8):
        dumps.op([0, 1], "all_reduce", BLOCK, group="1")
        dumps.op(range(3), "all_reduce", LOOP)

    root(hang(dumps, [0, 2]).report(tmp_path), "H101", [1])


def tensor_and_data_parallel(form: str) -> Dumps:
    """8 ranks: tensor parallel pairs, and data parallel groups of 4."""
    pairs = {f"tp{i}": (f"tensor {i}", (2 * i, 2 * i + 1)) for i in range(4)}
    dumps = Dumps(8, form=form, groups={**pairs, "dp0": ("data", (0, 2, 4, 6)),
                                        "dp1": ("data", (1, 3, 5, 7))})  # fmt: skip
    for _ in range(4):
        for name in [*pairs, "dp0", "dp1"]:
            dumps.op(dumps.groups[name][1], "all_reduce", LOOP if "dp" in name else BLOCK,
                     group=name)  # fmt: skip
    return dumps


@both_forms
def test_j_cascade_is_one_finding_and_all_else_are_victims(form: str, tmp_path: Path) -> None:
    dumps = tensor_and_data_parallel(form)
    for name in ("tp0", "tp1", "tp3"):
        dumps.op(dumps.groups[name][1], "all_reduce", BLOCK, group=name)
    hang(dumps, [4], group="tp2", site=BLOCK)
    hang(dumps, [0, 2, 6], group="dp0")
    hang(dumps, [1, 3, 7], group="dp1")
    seen = waiting(waiting(Job(8), [0, 1, 2, 3, 6, 7]), [4], line=23)
    seen.stands(5, (at(MAIN, 50, "elsewhere"), MODULE))
    finding = root(dumps.report(tmp_path, seen), "H101", [5])

    assert finding.victims.ranks == "0-4,6-7"


# ------------------------------------------------------------------------------ ops do not match


@both_forms
def test_b_extra_op_is_named_where_the_ranks_part(form: str, tmp_path: Path) -> None:
    dumps = loop(Dumps(form=form), 2)
    dumps.op([1], "all_reduce", EXTRA, input_sizes=[[8]], output_sizes=[[8]])
    dumps.op([1], "all_reduce", LOOP)
    dumps.op([0, 2, 3], "all_reduce", LOOP)
    dumps.op([0, 2, 3], "all_reduce", BLOCK, input_sizes=[[8]], output_sizes=[[8]])
    hang(dumps, [1], site=BLOCK, input_sizes=[[8]], output_sizes=[[8]])
    hang(dumps, [0, 2, 3], "broadcast", site=AFTER)
    finding = root(dumps.report(tmp_path), "H102", [1])

    assert finding.where[0].line == 5
    assert finding.details["sequence"] == 5


@both_forms
def test_c_shape_of_one_rank_when_another_aborts(form: str, tmp_path: Path) -> None:
    dumps = hang(loop(Dumps(form=form)), [1], input_sizes=[[5, 4]])
    hang(dumps, [0, 2, 3])
    seen = Job().of_kind("exit", command_exit=1).ends(0, signal=6)
    seen.raises(2, *GONE, [at(MAIN, 22), MODULE])
    finding = root(dumps.report(tmp_path, seen, leave_out=[0]), "H106", [1])

    assert finding.details["shapes"]["1"] == [5, 4]


@both_forms
def test_c2_dump_of_the_culprit_itself_is_lost(form: str, tmp_path: Path) -> None:
    dumps = hang(loop(Dumps(form=form)), [0, 2, 3], "all_gather")
    seen = Job().of_kind("exit", command_exit=1).ends(1, signal=6)
    for rank in (0, 2, 3):
        seen.raises(rank, *GONE, [at(MAIN, 22), MODULE])

    assert blamed(dumps.report(tmp_path, seen, leave_out=[1])) == {1}


@both_forms
def test_d_dtype_of_one_rank_when_another_aborts(form: str, tmp_path: Path) -> None:
    dumps = hang(loop(Dumps(form=form)), [1], input_dtypes=["Double"], output_dtypes=["Double"])
    hang(dumps, [0, 2, 3])
    seen = Job().of_kind("exit", command_exit=1).ends(0, signal=6)
    finding = root(dumps.report(tmp_path, seen, leave_out=[0]), "H107", [1])

    assert finding.where[0].line == 22


@both_forms
@pytest.mark.parametrize("op", ["broadcast", "all_gather"])
def test_e_other_op_of_one_rank(form: str, op: str, tmp_path: Path) -> None:
    text = "\n" * 20 + f"if usual:\n    dist.all_reduce(x)\nelse:\n    dist.{op}(x)\n"
    dumps = hang(loop(Dumps(form=form)), [1], op, site=(at(MAIN, 24), MODULE))
    report = hang(dumps, [0, 2, 3]).report(tmp_path, Job().of_kind("files").source(MAIN, text))
    finding = root(report, "H105", [1])

    assert finding.where[0].line == 24


@both_forms
def test_p_rank_that_is_past_the_loop(form: str, tmp_path: Path) -> None:
    source = "\n" * 20 + "for batch in data:\n    reduce(batch)\n    reduce(loss)\n" + "\n" * 16
    dumps = hang(loop(Dumps(form=form)), [3], "barrier", site=AFTER)
    seen = waiting(waiting(Job(), [0, 1, 2]), [3], line=40).source(MAIN, source + "barrier()\n")
    finding = root(hang(dumps, [0, 1, 2]).report(tmp_path, seen), "H103", [3])

    assert finding.where[0].line == 40


@both_forms
def test_m_split_that_no_dump_shows_blames_no_innocent(form: str, tmp_path: Path) -> None:
    dumps = hang(loop(Dumps(form=form)), [0, 1, 2], "all_to_all")
    seen = Job().of_kind("exit", command_exit=1).ends(3, signal=6)
    for rank in (0, 1, 2):
        seen.raises(rank, *GONE, [at(MAIN, 22), MODULE])
    report = dumps.report(tmp_path, seen, leave_out=[3])

    # The recorder keeps no split sizes. Rank 3 aborted; that it did is all that is certain.
    assert blamed(report) <= {1, 3}
    assert not any(item.code in {"H105", "H106", "H107"} for item in report.findings)


# ------------------------------------------------------------------------------------- deadlocks


@both_forms
def test_g_groups_in_another_order_are_a_cycle(form: str, tmp_path: Path) -> None:
    dumps = Dumps(2, form=form, groups={"1": ("A", (0, 1)), "2": ("B", (0, 1))})
    dumps.op([0, 1], "all_reduce", LOOP, group="1", times=3)
    dumps.op([0, 1], "all_reduce", BLOCK, group="2", times=3)
    hang(dumps, [0], group="1")
    hang(dumps, [1], group="2", site=BLOCK)
    finding = root(dumps.report(tmp_path), "H104", [0, 1])

    assert finding.culprits.groups == ["1", "2"]
    assert {(place.rank, place.line) for place in finding.where} >= {(0, 22), (1, 23)}


def test_g_transfer_whose_other_half_waits_in_a_collective(tmp_path: Path) -> None:
    dumps = loop(Dumps(2)).move(0, 1, BLOCK)
    dumps.send(0, 1, BLOCK, state=STARTED)
    hang(dumps, [1])
    finding = root(dumps.report(tmp_path), "H110", [1])

    # Where the rank is that does not receive, and the send that has no partner.
    places = [(place.rank, place.line) for place in finding.where]
    assert places[0] == (1, 22)
    assert places[-1] == (0, 23)


@pytest.mark.parametrize("world", [3, 4])
def test_f_ring_of_receives_in_the_dumps_is_a_cycle(world: int, tmp_path: Path) -> None:
    dumps = loop(Dumps(world))
    for rank in range(world):
        dumps.recv(rank, (rank - 1) % world, BLOCK, state=STARTED)
    finding = root(dumps.report(tmp_path), "H109", list(range(world)))

    assert {place.line for place in finding.where} >= {23}


@pytest.mark.parametrize("world", [3, 4])
def test_f_ring_of_receives_on_gloo_is_seen_in_the_stacks(world: int, tmp_path: Path) -> None:
    text = "\n" * 22 + "dist.recv(x, src=(rank - 1) % world)\n"
    seen = Job(world).source(MAIN, text)
    for rank in range(world):
        seen.stands(rank, (*receiving("recv"), at(MAIN, 23), MODULE))
    report = loop(Dumps(world, form=GLOO)).report(tmp_path, seen)

    root(report, "H109", list(range(world)))


def test_f_receive_that_nobody_sends_names_the_rank_that_does_not(tmp_path: Path) -> None:
    dumps = loop(Dumps()).move(1, 2, BLOCK)
    dumps.recv(2, 1, BLOCK, state=STARTED)
    seen = waiting(Job(), [2], line=23).stands(1, (at(MAIN, 50, "elsewhere"), MODULE))
    for rank in (0, 3):
        seen.stands(rank, (at(MAIN, 60, "work"), MODULE))
    finding = root(dumps.report(tmp_path, seen), "H110", [1])

    assert finding.victims.ranks == "2"


def receiving(name: str) -> tuple[Frame, ...]:
    c10d = f"{TORCH}/distributed/distributed_c10d.py"
    return (Frame(name, c10d, 2500), Frame("wrapper", f"{TORCH}/distributed/c10d_logger.py", 81))


# ------------------------------------------------------------------------ stalls that ranks share


def test_all_entered_and_none_finished_is_a_stalled_transfer(tmp_path: Path) -> None:
    report = hang(loop(Dumps()), [0, 1, 2, 3]).report(tmp_path)

    root(report, "H122", [])


def test_rank_that_has_not_completed_what_its_peers_have(tmp_path: Path) -> None:
    dumps = loop(Dumps(), 2).op([0, 1, 3], "all_reduce", LOOP)
    hang(dumps, [2])
    hang(dumps, [0, 1, 3], site=BLOCK)
    dumps.op([2], "all_reduce", BLOCK, state=SCHEDULED)

    root(dumps.report(tmp_path), "H123", [2])


@both_forms
def test_l_rank_that_is_always_late_is_slow(form: str, tmp_path: Path) -> None:
    dumps = Dumps(form=form)
    for _ in range(21):
        for rank in range(4):
            dumps.clock_ns.setdefault(rank, 1_790_000_000_000_000_000)
            # All wait for the late one, and start their next step at the same time.
            begin_ns = max(dumps.clock_ns.values())
        for rank in range(4):
            dumps.clock_ns[rank] = begin_ns + (96_000_000 if rank == 2 else 0)
        over_ns = max(dumps.clock_ns.values()) + OP_NS + 2000
        changes: dict[str, Any] = {}
        if form == NCCL:
            changes = {"time_discovered_completed_ns": over_ns}
        dumps.op(range(4), "all_reduce", LOOP, **changes)
    report = dumps.report(tmp_path)

    finding = root(report, "S301", [2])
    assert finding.severity is Severity.WARNING


@both_forms
def test_q_group_that_some_ranks_never_use(form: str, tmp_path: Path) -> None:
    dumps = loop(Dumps(form=form, groups={"1": ("part", (0, 1, 2))}))
    dumps.op([0, 1, 2], "all_reduce", BLOCK, group="1", times=3)

    assert loop(dumps).report(tmp_path).findings == []


def test_confidence_without_stacks_is_never_certain_about_a_silent_rank(tmp_path: Path) -> None:
    finding = hang(loop(Dumps()), [0, 1, 3]).report(tmp_path).findings[0]

    assert finding.confidence is not Confidence.CERTAIN


def test_the_states_of_the_helper_are_those_of_the_recorder() -> None:
    assert (DONE, STARTED, SCHEDULED) == ("completed", "started", "scheduled")


def test_f_transfers_that_gloo_only_counts_are_a_gap_and_a_doubt(tmp_path: Path) -> None:
    dumps = hang(loop(Dumps(form=GLOO)), [0, 1, 3])
    dumps.write(tmp_path)
    content = dumps.dump(2)
    content["pg_status"]["0"]["last_enqueued_collective"] += 11
    (tmp_path / "nccl_trace_rank_2").write_bytes(as_pickle(content))
    report = diagnose_paths([tmp_path])

    # Rank 2 may wait in a receive, which nothing here would show.
    finding = root(report, "H101", [2])
    assert (finding.severity, finding.confidence) == (Severity.WARNING, Confidence.POSSIBLE)
    assert [gap.what for gap in report.gaps] == ["sends and receives"]


def test_two_recorders_of_a_rank_count_by_themselves(tmp_path: Path) -> None:
    device = hang(loop(Dumps(), 7), [0, 1, 3])
    host = Dumps(form=GLOO).op(range(4), "broadcast", BLOCK, times=40)
    for rank in range(4):
        folder = tmp_path / "n0" / f"rank-{rank}"
        folder.mkdir(parents=True)
        (folder / "fr.pickle").write_bytes(as_pickle(device.dump(rank)))
        (folder / "fr_gloo.pickle").write_bytes(as_pickle(host.dump(rank)))
    report = diagnose_paths([tmp_path])

    root(report, "H101", [2])
    assert report.gaps == []
