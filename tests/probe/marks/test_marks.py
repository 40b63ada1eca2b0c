"""What a rank marks, with no change of its code; jobs of one rank, and the files they leave."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.probe.job import job_dir, start_rank
from tests.probe.marks.mark_file import KINDS, MarkFile, assert_apart, read_marks

ALL_ON = '{"generation": 1, "marks": "on"}'

BEGIN = """
import os, sys, threading, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
marks = sys.modules["_whystuck_probe.marks.control"]
"""
END = """
dist.destroy_process_group()
"""


def run_rank(
    tmp_path: Path, script: str, switch: str = ALL_ON, fails: bool = False, **environment: str
) -> MarkFile:
    """Run a script as rank 0 of 1; it must print what it is to, and nothing of ours."""
    with job_dir() as folder:
        (folder / "switch.json").write_text(switch)
        process = start_rank(tmp_path, folder, script=BEGIN + script + END, extra=environment)
        out, err = process.communicate(timeout=280)
        (tmp_path / "out").write_bytes(out + err)
        assert (process.returncode != 0) == fails, err.decode()[-3000:]
        assert fails or not err, err.decode()[-3000:]
        return read_marks(folder / f"marks-{process.pid}")


def test_phases_of_each_step_are_marked_apart_and_in_order(tmp_path: Path) -> None:
    found = run_rank(
        tmp_path,
        """
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(torch.ones(24, 4), batch_size=4)
for epoch in range(2):
    for batch in loader:
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.save(model.state_dict(), "model.pt")
""",
    )
    assert found.about["rank"] == 0
    assert_apart(found.marks)
    counts = Counter((mark.kind, mark.name) for mark in found.marks)
    # 6 batches and the end, in each of two epochs; the first step begins where marks do.
    assert counts == {
        ("step", ""): 12,
        ("dataloader", "iter"): 2,
        ("dataloader", "next"): 14,
        ("forward", "Sequential"): 12,
        ("backward", "backward"): 12,
        ("optimizer", "SGD"): 12,
        ("checkpoint", "torch.save"): 2,
    }
    steps = found.of("step")
    assert [mark.step for mark in steps] == list(range(12))
    assert found.step == 12
    for kind, name in enumerate(KINDS):
        spent_ns = sum(mark.end_ns - mark.begin_ns for mark in found.of(name))
        assert found.totals[2 * kind : 2 * kind + 2] == (spent_ns, len(found.of(name)))
    for step in steps:
        kinds = [mark.kind for mark in found.marks if mark.step == step.step]
        wanted = ["dataloader", "forward", "backward", "optimizer", "step"]
        if step.step == 6:
            wanted[:1] = ["dataloader", "checkpoint", "dataloader", "dataloader"]
        if step.step == 0:
            wanted[:1] = ["dataloader", "dataloader"]
        assert Counter(kinds) == Counter(wanted), step.step
        inside = [mark for mark in found.marks if mark.step == step.step and mark is not step]
        assert all(step.begin_ns <= mark.begin_ns for mark in inside)
        assert all(mark.end_ns <= step.end_ns for mark in inside)


def test_accumulation_and_two_optimizers_are_counted_as_steps_are(tmp_path: Path) -> None:
    found = run_rank(
        tmp_path,
        """
one, two = torch.nn.Linear(4, 4), torch.nn.Bilinear(4, 4, 1)
first = torch.optim.SGD(one.parameters(), lr=0.1)
second = torch.optim.Adam(two.parameters(), lr=0.1)
for _ in range(4):
    for _ in range(3):
        made = one(torch.ones(2, 4))
        two(made, made).sum().backward()
    first.step()
    second.step()
""",
    )
    assert_apart(found.marks)
    counts = Counter((mark.kind, mark.name) for mark in found.marks)
    assert counts == {
        ("step", ""): 8,
        ("forward", "Linear"): 12,
        ("forward", "Bilinear"): 12,
        ("backward", "backward"): 12,
        ("optimizer", "SGD"): 4,
        ("optimizer", "Adam"): 4,
    }
    assert [mark.step for mark in found.of("step")] == list(range(8))
    assert {mark.step for mark in found.of("forward")} == {0, 2, 4, 6}


@pytest.mark.slow
def test_closure_of_an_optimizer_interrupts_its_step(tmp_path: Path) -> None:
    found = run_rank(
        tmp_path,
        """
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def closure():
    optimizer.zero_grad()
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    return loss
for _ in range(3):
    optimizer.step(closure)
""",
    )
    assert_apart(found.marks)
    kinds = [mark.kind for mark in found.marks if mark.kind != "step"]
    assert kinds == ["optimizer", "forward", "optimizer", "backward", "optimizer"] * 3


def test_call_that_raises_ends_its_phase(tmp_path: Path) -> None:
    found = run_rank(
        tmp_path,
        """
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        if index == 2:
            raise KeyError("record 2")
        return torch.ones(4)
for workers in (0, 2):
    try:
        for _ in torch.utils.data.DataLoader(Data(), num_workers=workers):
            pass
    except KeyError as error:
        assert "record 2" in str(error)
    else:
        raise SystemExit("nothing was raised")
class Model(torch.nn.Module):
    def forward(self, value):
        raise ValueError("a shape")
for _ in range(3):
    try:
        Model()(torch.ones(1))
    except ValueError:
        pass
try:
    torch.save(lambda: 0, "x.pt")
except Exception:
    pass
optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1)
def closure():
    raise ValueError
for _ in range(2):
    try:
        optimizer.step(closure)
    except ValueError:
        pass
    next(iter(torch.utils.data.DataLoader(torch.ones(1))))
""",
    )
    counts = Counter(mark.kind for mark in found.marks)
    assert counts == {"dataloader": 12, "forward": 3, "checkpoint": 1, "optimizer": 2}
    assert [mark.kind for mark in found.marks if not mark.end_ns] == ["optimizer", "optimizer"]
    assert_apart([mark for mark in found.marks if mark.kind != "optimizer"])


def test_job_that_dies_in_a_phase_leaves_it_open(tmp_path: Path) -> None:
    found = run_rank(
        tmp_path,
        """
class Data(torch.utils.data.IterableDataset):
    def __iter__(self):
        yield torch.ones(1)
        os.kill(os.getpid(), 9)
for _ in torch.utils.data.DataLoader(Data()):
    pass
""",
        fails=True,
    )
    assert [(mark.name, mark.end_ns > 0) for mark in found.marks] == [
        ("iter", True),
        ("next", True),
        ("next", False),
    ]


def test_what_the_thread_that_trains_does_not_do_is_not_marked(tmp_path: Path) -> None:
    found = run_rank(
        tmp_path,
        """
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    for _ in range(4):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
def evaluate():
    for _ in range(50):
        torch.nn.Linear(4, 1)(torch.ones(2, 4)).sum().backward()
        torch.save(torch.ones(1), "evaluated.pt")
        list(torch.utils.data.DataLoader(torch.ones(1)))
def train_and_evaluate():
    train()
    # Beside the thread that trains: the number of one that has ended would be used again.
    other = threading.Thread(target=evaluate)
    other.start()
    other.join()
thread = threading.Thread(target=train_and_evaluate)
thread.start()
thread.join()
""",
    )
    # Of the first step, nobody knew yet which thread trains.
    counts = Counter(mark.kind for mark in found.marks)
    assert counts == {"step": 4, "forward": 3, "backward": 3, "optimizer": 3}


def test_forked_child_writes_nothing_and_goes_on(tmp_path: Path) -> None:
    found = run_rank(
        tmp_path,
        """
import whystuck
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
outer = whystuck.mark("outer").begin()
for _ in range(3):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
pid = os.fork()
if not pid:
    code = 1
    try:
        outer.end()
        with whystuck.mark("child"):
            for _ in torch.utils.data.DataLoader(torch.ones(4)):
                model(torch.ones(2, 4)).sum().backward()
                optimizer.step()
                torch.save(torch.ones(1), "child.pt")
        code = 0
    finally:
        os._exit(code)
assert os.waitpid(pid, 0)[1] == 0
outer.end()
""",
    )
    counts = Counter(mark.kind for mark in found.marks)
    assert counts == {"step": 3, "forward": 3, "backward": 3, "optimizer": 3, "user": 1}
    assert found.of("user")[0].end_ns > found.of("step")[-1].end_ns


def test_marks_of_the_job_are_instants_and_ranges(tmp_path: Path) -> None:
    found = run_rank(
        tmp_path,
        """
import whystuck
whystuck.mark("instant")
with whystuck.mark("range") as mark:
    time.sleep(0.01)
mark.begin()
mark.end()
mark.end()
try:
    with whystuck.mark("raises"):
        raise ValueError
except ValueError:
    pass
whystuck.mark("open").begin()
for _ in range(3):
    whystuck.step()
whystuck.step(9)
whystuck.step(2)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
whystuck.step("nonsense")
whystuck.mark(object)
""",
    )
    users = found.of("user")
    assert [mark.name for mark in users[:5]] == ["instant", "range", "range", "raises", "open"]
    assert users[0].begin_ns == users[0].end_ns
    assert users[1].end_ns - users[1].begin_ns >= 10_000_000
    assert (users[3].end_ns > 0, users[4].end_ns) == (True, 0)
    assert [mark.step for mark in found.of("step")] == [0, 1, 2, 9, 10]
    assert [mark.step for mark in found.of("optimizer")] == [11]


def test_range_that_outlives_the_ring_is_written_anew(tmp_path: Path) -> None:
    found = run_rank(
        tmp_path,
        """
import whystuck
with whystuck.mark("long"):
    for _ in range(40000):
        whystuck.mark("short")
""",
    )
    names = Counter(mark.name for mark in found.marks)
    assert names == {"short": 32766, "long": 1}
    assert found.marks[0].name == "long"
    assert found.marks[0].end_ns == max(mark.end_ns for mark in found.marks)


@pytest.mark.slow
def test_what_the_job_replaces_itself_stays_when_marks_go_off(tmp_path: Path) -> None:
    found = run_rank(
        tmp_path,
        """
import pickle
from torch.utils.data.dataloader import _BaseDataLoaderIter as Iterator
switch = sys.modules["_whystuck_probe.switch"]
def flip(word, number):
    assert not switch.PARTS.apply(dict.fromkeys(switch.MARKS, word), number, 0), word
flip("off", 2)
plain = torch.save, Iterator.__next__, torch.utils.data.DataLoader.__iter__
engine = torch.autograd._engine_run_backward
assert torch.save is torch.serialization.save
assert "/probe/marks/" not in torch.save.__code__.co_filename
def whole():
    assert (torch.save, Iterator.__next__, torch.utils.data.DataLoader.__iter__) == plain
    assert torch.autograd._engine_run_backward is engine
    assert torch.nn.Module.__dict__["_compiled_call_impl"] is None
    assert "_compiled_call_impl" not in vars(torch.nn.Linear)
flip("on", 3)
assert torch.save is not plain[0]
for one in (torch.save, plain[0]):
    assert pickle.loads(pickle.dumps(one)) is one
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps):
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
train(5)
assert torch.nn.Module.__dict__["_compiled_call_impl"] is None
assert "_compiled_call_impl" in vars(torch.nn.Linear)
flip("off", 4)
whole()
flip("on", 5)
calls, ours = [], torch.save
def mine(*args):
    calls.append(args)
    return ours(*args)
torch.save = mine
torch.save(model, "a.pt")
flip("off", 6)
assert torch.save is mine
assert torch.serialization.save is plain[0]
torch.save(model, "b.pt")
flip("on", 7)
assert torch.save is not mine
torch.save(model, "c.pt")
flip("off", 8)
assert torch.save is mine
torch.save = plain[0]
whole()
assert len(calls) == 3
for name in ("a", "b", "c"):
    assert torch.equal(torch.load(f"{name}.pt", weights_only=False).weight, model.weight)
""",
    )
    assert len(found.of("checkpoint")) == 2
    assert len(found.of("forward")) == 5


def test_modules_are_copied_and_exported_as_without_marks(tmp_path: Path) -> None:
    found = run_rank(
        tmp_path,
        """
import copy, io, pickle, warnings
warnings.simplefilter("ignore")
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    def forward(self, value):
        return self.inner(value) * 2
model, value = Model(), torch.ones(2, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
wanted = model(value)
for turn in range(4):
    for other in (
        copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model)),
        torch.jit.trace(model, value), torch.jit.script(model), torch.fx.symbolic_trace(model),
        torch.export.export(model, (value,)).module(),
    ):
        assert torch.equal(other(value), wanted)
        assert "_compiled_call_impl" not in vars(other)
    replica = model._replicate_for_data_parallel()
    replica.inner = torch.nn.Identity()
    assert torch.equal(replica(value), value * 2), "the replica is called, not the model"
    parameters = {name: torch.zeros_like(one) for name, one in model.named_parameters()}
    assert not torch.func.functional_call(model, parameters, (value,)).any()
    torch.nn.DataParallel(model)(value)
    model.compile(backend="eager")
    assert torch.equal(model(value), wanted)
    del model._compiled_call_impl
    assert not hasattr(pickle.loads(pickle.dumps(model)), "nothing")
    stream = io.BytesIO()
    torch.save(model, stream)
    assert b"_whystuck_probe" not in stream.getvalue()
    model(value).sum().backward()
    optimizer.step()
""",
    )
    assert_apart(found.marks)
    assert len(found.of("forward")) > 20


def test_modules_are_called_from_many_threads_while_marks_flap(tmp_path: Path) -> None:
    run_rank(
        tmp_path,
        """
sys.setswitchinterval(1e-5)
switch = sys.modules["_whystuck_probe.switch"]
model = torch.nn.Sequential(torch.nn.Identity(), torch.nn.Identity())
value, problems, is_over = torch.ones(1), [], threading.Event()
def call():
    while not is_over.is_set():
        try:
            for _ in range(50):
                model(value)
        except BaseException as error:
            problems.append(error)
            return
progress = sys.modules["_whystuck_probe.progress"]
def step():
    while not is_over.is_set():
        model(value)
        progress.tell_step()
threads = [threading.Thread(target=one) for one in (call, call, step, step)]
for thread in threads:
    thread.start()
for turn in range(400):
    word = ("on", "off")[turn % 2]
    assert not switch.PARTS.apply(dict.fromkeys(switch.MARKS, word), turn + 2, 0)
    for _ in range(20):
        model(value)
is_over.set()
for thread in threads:
    thread.join()
assert not problems, problems
""",
    )


@pytest.mark.parametrize(
    "key",
    [
        "step",
        pytest.param("dataloader", marks=pytest.mark.slow),
        "forward",
        pytest.param("checkpoint", marks=pytest.mark.slow),
    ],
)
def test_key_marks_its_own_kinds(tmp_path: Path, key: str) -> None:
    kinds = {
        "step": {"step", "optimizer", "user"},
        "dataloader": {"dataloader"},
        "forward": {"forward", "backward"},
        "checkpoint": {"checkpoint"},
    }
    found = run_rank(
        tmp_path,
        """
import whystuck
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(torch.ones(8, 4)):
    model(batch).sum().backward()
    with whystuck.mark("mine"):
        optimizer.step()
    torch.save(batch, "batch.pt")
""",
        json.dumps({"generation": 3, key: "on"}),
    )
    assert {mark.kind for mark in found.marks} == kinds[key]
    assert (found.generation, len(found.switched)) == (3, 1)


@pytest.fixture
def no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith("_whystuck_probe"):
            monkeypatch.delitem(sys.modules, name)


@pytest.mark.usefixtures("no_probe")
def test_public_calls_do_nothing_without_a_probe() -> None:
    import whystuck

    whystuck.step()
    whystuck.step(3)
    whystuck.mark("instant")
    with whystuck.mark("range") as mark:
        mark.begin().end()


def test_classes_change_a_few_hundred_times_in_a_job_of_weeks(tmp_path: Path) -> None:
    """From Python 3.13 on, a class that has changed 1,000 times is slow for good."""
    run_rank(
        tmp_path,
        """
model = torch.nn.Linear(4, 4)
model(torch.ones(2, 4))
forward = sys.modules["_whystuck_probe.progress"].COUNTS.marks._forward
changes, placed = 0, None
for _ in range(3_000_000):
    forward.step_ended()
    if forward._placed is not placed:
        changes, placed = changes + 1, forward._placed
assert 200 < changes < 260, changes
""",
    )
