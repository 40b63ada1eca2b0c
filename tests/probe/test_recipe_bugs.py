"""The usual recipe for looking into a job has 17 bugs, and we have none of them.

The recipe replaces the functions of ``torch.distributed`` by wrappers that count, print and take
means of tensors, and traces lines. Each test is named after what goes wrong in a job that does so;
B1 to B17 say why. Three jobs are shared: one that issues ops in every way and checks itself, one
without a device that ends in errors, and one that hangs.
"""

from __future__ import annotations

import builtins
import dis
import gzip
import importlib
import json
import pkgutil
import re
import subprocess
import types
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.launch.running import clean_environment, run_whystuck, torchrun
from tests.probe.inspect.inspected import Inspected, inspect_job
from tests.probe.oplog.op_log_file import ISSUE_FAILED, Op, OpLogFile, read_op_log
from tests.probe.recipe_jobs import CHECK, HANGS, NO_DEVICE, WAYS

import whystuck.probe

pytestmark = [pytest.mark.slow]

RANKS = range(2)


@dataclass
class Ways:
    """The first job: what was seen of its tensors, and its op logs by rank."""

    job: Inspected
    logs: dict[int, OpLogFile]

    def assert_passed(self, *parts: str) -> None:
        """Both ranks came through these parts of the job."""
        for rank in RANKS:
            for one in parts:
                assert f"ok {one} rank {rank}\n" in self.job.out, self.job.out

    def find(self, rank: int, value: float, side: str = "in") -> list[str]:
        """Return the names of the ops with a tensor of this mean."""
        return [
            line["name"]
            for line in self.job.of_kind(rank, side)
            if value in [tensor.get("mean") for tensor in line["tensors"]]
        ]

    def ops(self, rank: int) -> list[Op]:
        return self.logs[rank].ops


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Ways:
    folder = tmp_path_factory.mktemp("ways")
    job = inspect_job(folder, "stats,finite,weights:grads,amp,print", WAYS, keep=folder)
    logs = [read_op_log(path) for path in folder.glob("ops-*")]
    return Ways(job, {log.about["rank"]: log for log in logs})


def test_statistics_when_the_first_tensor_is_counted_then_no_rank_dies(ways: Ways) -> None:
    # B1 A counter of the module is added to in a function that never said it is not a local one.
    # The first tensor ends rank 0, and rank 1 dies of the connection that is gone.
    ways.assert_passed("B1")
    assert ways.job.code == 0, ways.job.out
    assert "Connection closed by peer" not in ways.job.out
    assert "Traceback" not in ways.job.out
    assert "UserWarning" not in ways.job.out
    assert ways.job.errors == ["", ""]
    for rank in RANKS:
        first = ways.job.of_kind(rank, "in")[0]["tensors"]
        assert [(tensor["count"], tensor["mean"]) for tensor in first] == [(4, 1.0)]
    # An error of our own, in the counts of rank 0, stays there.
    assert ways.find(0, 1.5) == []
    assert ways.find(1, 1.5) == ["all_reduce"]


def test_functions_when_inspection_ends_then_are_each_their_own_again(ways: Ways) -> None:
    # B2 Every turn of a loop puts the function of one op in the place of the table of all of them:
    # what is left is the last, `irecv`, and nothing can be put back. Counts have no name either.
    ways.assert_passed("B2")
    for rank in RANKS:
        assert ways.find(rank, 2.0 + rank) == [], "recorded while off"
        assert ways.find(rank, 2.5) == ["all_reduce"]
        assert [op.op for op in ways.ops(rank)][-1] == "all_reduce"
        counts = _read_counts(ways.job.out, rank)
        assert len(counts) > 10
        assert all(found == list(range(1, len(found) + 1)) for found in counts.values())


def _read_counts(out: str, rank: int) -> dict[str, list[int]]:
    """Return the numbers of calls that were printed, by op."""
    counts: dict[str, list[int]] = {}
    for name, count in re.findall(rf"rank {rank} step \d+ (\w+) \d+ of .* call (\d+)", out):
        counts.setdefault(name, []).append(int(count))
    return counts


def test_ops_when_there_is_no_device_then_are_inspected_in_every_way(plain: Plain) -> None:
    # B3 The wrapper waits for a device that a torch of the CPU does not have: the first op raises.
    assert plain.inspected.code == 0, plain.inspected.out
    for rank in RANKS:
        assert f"ok B3 rank {rank}\n" in plain.inspected.stdout, plain.inspected.out
        kinds = {line["kind"] for line in plain.inspected.lines[rank]}
        assert {"in", "out", "weights", "amp", "said", "tensors"} <= kinds
        printed = rf"rank {rank} step \d+ all_reduce \d+ of group 0 .* mean "
        assert re.search(printed, plain.inspected.out)


def test_rank_when_there_is_no_group_yet_or_a_smaller_one_then_is_right(ways: Ways) -> None:
    # B4 The rank is asked for before there is a group, which raises; and it is the one of the
    # whole job, where a root is one of its group.
    ways.assert_passed("B4-early", "B4-group", "B4-late")
    for rank in RANKS:
        assert ways.job.of_kind(rank, "start")[0]["rank"] == rank
        assert ways.logs[rank].about["rank"] == rank
        weights = ways.job.of_kind(rank, "weights")
        assert [line["step"] for line in weights if line["when"] == "after"] == [1, 2]
    assert ways.find(1, 4.0) == ["broadcast"], "the root of a group gives"
    (line,) = [one for one in ways.job.of_kind(1, "in") if one["name"] == "broadcast"
               and one["tensors"][0]["mean"] == 4.0]  # fmt: skip
    assert line["group"] != "0"
    assert f"rank 1 step 1 broadcast 1 of group {line['group']} [4] float32, mean 4" in ways.job.out


def test_arguments_when_given_by_keyword_then_are_taken(ways: Ways) -> None:
    # B5 The wrapper calls its first argument `tensor`, so `all_gather(tensor_list=..., tensor=...)`
    # gives it two of that name.
    ways.assert_passed("B5")
    for rank in RANKS:
        assert ways.find(rank, 5 + rank / 8) == ["all_gather"]
        assert ways.find(rank, 5.5) == ["all_reduce"]
        assert ways.find(rank, 5.25) == ["all_gather_base"]


def test_batch_when_it_names_isend_then_is_one_of_sends(ways: Ways) -> None:
    # B6 `P2POp` takes torch's own `isend` and `irecv` and nothing else: with wrappers in their
    # place, no batch of sends and receives can be made.
    ways.assert_passed("B6")
    for rank in RANKS:
        assert ways.find(rank, 6.0) == ["send"]
        batch = [op.op for op in ways.ops(rank) if op.op in ("send", "recv")][:2]
        assert batch == ["send", "recv"]


def test_ops_when_called_by_another_name_then_are_seen(ways: Ways) -> None:
    # B7 Only the attribute of the package is replaced: functions imported before, those of the
    # module that defines them, and all that C++ issues go by.
    ways.assert_passed("B7")
    for rank in RANKS:
        for value in (7.125, 7.25, 7.375, 7.5, 7.625):
            assert ways.find(rank, value) == ["all_reduce"], value
        assert [name[:15] for name in ways.find(rank, 7.75)] == ["all_gather_base"]
        assert ways.find(rank, 7.875) == ["all_reduce"], "the gradients that DDP's C++ reduces"


def test_ops_when_of_a_rare_kind_then_are_on_record(ways: Ways) -> None:
    # B8 The list of functions to replace leaves out barriers, ops into one tensor, those of
    # objects, and coalesced ones.
    ways.assert_passed("B8")
    for rank in RANKS:
        names = Counter(op.op for op in ways.ops(rank))
        assert {
            "barrier", "monitored_barrier", "all_gather_base", "reduce_scatter_base",
            "all_to_all_base", "all_reduce_coalesced", "reduce", "gather", "scatter",
            "broadcast", "all_gather", "reduce_scatter",
        } <= set(names)  # fmt: skip
        assert names["all_reduce_coalesced"] == 2
        # of objects: their sizes, and they themselves
        assert [op.form["dtypes"] for op in ways.ops(rank)].count(["uint8"]) >= 4
        assert {line["name"] for line in ways.job.of_kind(rank, "in")} >= {
            "all_gather_base", "reduce_scatter_base", "all_to_all_base", "all_reduce_coalesced",
            "reduce", "gather",
        }  # fmt: skip
    assert "recv_any" in {op.op for op in ways.ops(1)}


def test_async_op_when_issued_then_runs_on_and_its_output_is_the_one_at_its_end(ways: Ways) -> None:
    # B9 "Output" is read when the op was issued, not when it is over; or the wrapper waits, and
    # nothing runs beside an op any more.
    ways.assert_passed("B9")
    for rank in RANKS:
        (op,) = [
            line
            for line in ways.job.of_kind(rank, "in")
            if line["name"] == "all_reduce" and line["tensors"][0]["mean"] == 9.0 * (rank + 1)
        ]
        (after,) = [line for line in ways.job.of_kind(rank, "out") if line["op"] == op["op"]]
        assert [tensor["mean"] for tensor in after["tensors"]] == [27.0]


def test_log_when_another_rank_than_the_first_has_the_trouble_then_it_has_one(
    ways: Ways, hang: Hang
) -> None:
    # B10 Only rank 0 writes anything.
    assert sorted(ways.logs) == sorted(ways.job.lines) == list(RANKS)
    keys = [
        {(op.group["name"], op.seq, op.op) for op in ways.ops(rank) if op.group["name"] == "0"
         and op.op not in ("send", "recv", "recv_any")}
        for rank in RANKS
    ]  # fmt: skip
    assert keys[0] == keys[1]
    assert len(keys[0]) > 20
    assert all(_read_counts(ways.job.out, rank) for rank in RANKS)
    # rank 1 hangs, and rank 0 does not
    assert [op.op for op in hang.pending[1]] == ["all_reduce"]
    assert hang.pending[0] == []


def test_statistics_when_a_tensor_is_large_then_it_is_not_copied_nor_a_device_waited_for(
    ways: Ways,
) -> None:
    # B11 Two waits for the device at each op end all overlap and hide races; a copy of the whole
    # tensor as float32 may not fit in its memory.
    ways.assert_passed("B11")
    for rank in RANKS:
        assert ways.find(rank, 11.0) == ["all_reduce"]
        assert ways.find(rank, 11.0, "out") == ["all_reduce"]


def test_buffers_when_an_op_only_fills_them_then_are_not_taken_for_inputs(ways: Ways) -> None:
    # B12 The first argument of `recv` or `all_gather` is what the op fills, and so is the tensor of
    # a broadcast on all ranks but its root: "Input" is whatever the memory held.
    ways.assert_passed("B12")
    for rank in RANKS:
        for line in ways.job.of_kind(rank, "in", "out"):
            assert all(tensor["nan"] == 0 for tensor in line["tensors"]), line
        expected = ["all_gather", "reduce_scatter", "gather"]
        if rank == 0:
            expected += ["broadcast", "send", "send", "scatter"]
        assert sorted(ways.find(rank, 12.0)) == sorted(expected)
        assert ways.job.find(rank, "in", "recv") == []
    assert "scatter" in ways.find(1, 12.0, "out")
    assert "broadcast" in ways.find(1, 12.0, "out")


def test_op_when_it_hangs_then_its_input_its_stack_and_its_cause_are_told(hang: Hang) -> None:
    # B13 After "Input" comes nothing: no time-out, no other thread that reports, no stack.
    assert hang.code == 124, hang.out
    (op,) = hang.pending[1]
    assert [(frame[0], frame[2]) for frame in op.frames][:1] == [("reduce", hang.line)]
    (line,) = [one for one in hang.lines[1] if one["kind"] == "in"]
    assert (line["name"], line["seq"], line["tensors"][0]["mean"]) == ("all_reduce", op.seq, 13.0)
    assert [one for one in hang.lines[1] if one["kind"] == "out"] == []
    assert ("reduce", hang.line) in hang.frames, "its stack was taken from outside"
    assert hang.report["findings"][0]["culprits"]["ranks"] == [0]


def test_op_when_it_raises_then_its_record_stays_and_torch_knows_its_functions(
    ways: Ways, plain: Plain
) -> None:
    # B14 An error goes past the lines that keep the record; and the functions have lost their
    # names, so that torch.compile no longer finds them in its table.
    ways.assert_passed("B14")
    assert ways.job.stdout.count("caught ") == 2
    for rank in RANKS:
        (failed,) = [op for op in ways.ops(rank) if op.flags & ISSUE_FAILED]
        assert failed.op == "all_gather"
        assert ways.find(rank, 14.0) == ["all_gather"]
        assert ways.find(rank, 14.5) == ["all_reduce"], "of the compiled function"
    # of an op that fails when it is waited for, too
    last = plain.inspected.of_kind(0, "in")[-1]
    assert [tensor["mean"] for tensor in last["tensors"]] == [14.75]
    assert [line["op"] for line in plain.inspected.of_kind(0, "out")].count(last["op"]) == 0
    assert plain.inspected.of_kind(0, "said")[-1]["text"] == "it failed"


def test_code_when_run_then_has_all_it_names_and_uses_what_it_counts(ways: Ways) -> None:
    # B15 Calls are counted and never shown, modules it uses are not imported, and functions it
    # calls are nowhere.
    for rank in RANKS:
        made = Counter(op.op for op in ways.ops(rank))
        # All but the one at which our own error was.
        made["all_reduce"] -= rank == 0
        shown = {name: found[-1] for name, found in _read_counts(ways.job.out, rank).items()}
        assert shown == dict(made)
    for info in pkgutil.walk_packages(whystuck.probe.__path__, "whystuck.probe."):
        if ".site" not in info.name:
            module = importlib.import_module(info.name)
            _assert_names_exist(module)


def _assert_names_exist(module: types.ModuleType) -> None:
    assert module.__file__ is not None
    text = Path(module.__file__).read_text()
    codes = [compile(text, module.__file__, "exec", dont_inherit=True)]
    for code in codes:
        codes += [one for one in code.co_consts if isinstance(one, types.CodeType)]
        for step in dis.get_instructions(code):
            if step.opname == "LOAD_GLOBAL":
                assert hasattr(module, step.argval) or hasattr(builtins, step.argval), step


def test_lines_when_ops_are_followed_then_none_is_traced(ways: Ways) -> None:
    # B16 A trace function runs at each line of the job and prints it on standard output: many times
    # the CPU time, of one thread only, with the lines of all ranks mixed up.
    ways.assert_passed("B16")
    known = re.compile(r"(ok B\d+(-\w+)? rank [01]|caught \w+|)\n")
    other = [line for line in ways.job.stdout.splitlines(keepends=True) if not known.match(line)]
    assert other == [], "nothing of ours is on standard output"
    for rank in RANKS:
        assert ways.find(rank, 16.0) == ["all_reduce"]
        assert "other-thread" in {op.thread.get("name") for op in ways.ops(rank)}
    # Two ranks write to one standard error, and each line is whole.
    whole = re.compile(r"whystuck: rank [01] step \d \w+ \d+ of group \d+( .*)?, call \d+")
    printed = [line for line in ways.job.out.splitlines() if "whystuck: rank " in line]
    assert len(printed) > 90
    assert all(whole.fullmatch(line) for line in printed), printed


@dataclass
class Plain:
    """The second job: with every inspection, and as it is without whystuck."""

    inspected: Inspected
    script: str
    alone: str


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    folder = tmp_path_factory.mktemp("plain")
    (folder / "checks.py").write_text(CHECK)
    spec = "stats,finite,weights:grads,amp,print,sync,call:checks:Check"
    inspected = inspect_job(folder, spec, NO_DEVICE, CUDA_VISIBLE_DEVICES="")
    alone = subprocess.run(
        torchrun(2, folder / "train.py"),
        cwd=folder,
        env=clean_environment(CUDA_VISIBLE_DEVICES=""),
        stdout=subprocess.PIPE,
        timeout=100,
        check=True,
        text=True,
    )
    return Plain(inspected, (folder / "train.py").read_text(), alone.stdout)


def test_script_when_inspected_then_is_the_one_that_runs_without(plain: Plain) -> None:
    # B17 "No change to your code": the training script has to be run inside the tracer, by lines
    # that are put into it.
    assert plain.script == NO_DEVICE
    assert "whystuck" not in plain.script
    assert plain.inspected.of_kind(0, "in")
    assert sorted(plain.inspected.stdout.splitlines()) == sorted(plain.alone.splitlines())
    assert plain.alone.count("loss") == 6
    assert plain.alone.count("no device") == 2


@dataclass
class Hang:
    """The third job: rank 1 waits in an op for rank 0, which does not come."""

    code: int
    out: str
    report: dict[str, Any]
    lines: dict[int, list[dict[str, Any]]]
    pending: dict[int, list[Op]]
    frames: list[tuple[str, int]]
    line: int = 5


@pytest.fixture(scope="module")
def hang(tmp_path_factory: pytest.TempPathFactory) -> Hang:
    folder = tmp_path_factory.mktemp("hang")
    (folder / "train.py").write_text(HANGS)
    done = run_whystuck(
        *("run", "--evidence", folder / "ev", "--stall-after", "3", "--on-stall", "kill"),
        *("--inspect", "stats", "--", *torchrun(2, folder / "train.py")),
        cwd=folder,
    )
    (incident,) = (folder / "ev/incidents").iterdir()
    ranks = {rank: next((folder / "ev/rounds/0").glob(f"*/rank-{rank}")) for rank in RANKS}
    return Hang(
        done.returncode,
        (done.stdout + done.stderr).decode(),
        json.loads((incident / "report.json").read_text()),
        {
            rank: [json.loads(line) for line in (at / "inspect.jsonl").read_text().splitlines()]
            for rank, at in ranks.items()
        },
        {rank: _find_pending(incident, rank, folder) for rank in RANKS},
        [
            (frame["name"], frame["line"])
            for path in incident.glob("*/rank-1/stacks*.json")
            for thread in json.loads(path.read_text())
            for frame in thread["frames"]
        ],
    )


def _find_pending(incident: Path, rank: int, folder: Path) -> list[Op]:
    """Return the ops of a rank that were not over at the incident."""
    (packed,) = incident.glob(f"*/rank-{rank}/ops.ring.gz")
    path = folder / f"ops-{rank}"
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    return [op for op in read_op_log(path).ops if not op.done_ns]
