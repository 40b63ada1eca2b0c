"""Ranges that a job makes with other libraries, read as marks of its own."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from tests.probe.marks.mark_file import MarkFile
from tests.probe.marks.test_marks import run_rank

# A CPU build of torch lacks what draws ranges for NVIDIA's tools.
NVTX = """
import torch.cuda.nvtx as nvtx
calls = []
class Native:
    def __getattr__(self, name):
        def call(*args):
            calls.append((name, *args))
            return len(calls)
        return call
nvtx._nvtx = Native()
"""
# What torch has of Ascend, as a library of that name.
MSTX = """
import types
npu = types.ModuleType("torch_npu.npu.mstx")
exec('''
class mstx:
    @staticmethod
    def range_start(message, stream=None, domain="default"):
        calls.append(("start", message, stream))
        return len(calls)
    @staticmethod
    def range_end(range_id, domain="default"):
        calls.append(("end", range_id))
    @staticmethod
    def mark(message, stream=None, domain="default"):
        calls.append(("mark", message))
''', npu.__dict__)
npu.calls = calls = []
sys.modules["torch_npu.npu.mstx"] = npu
mstx = npu.mstx
"""
FLIP = """
switch = sys.modules["_whystuck_probe.switch"]
def flip(word, number):
    assert not switch.PARTS.apply(dict.fromkeys(switch.MARKS, word), number, 0), word
"""


def list_users(found: MarkFile) -> list[tuple[str, bool]]:
    """Return name of each mark of the job's own, and whether it is over."""
    users = sorted(found.of("user"), key=lambda mark: mark.number)
    return [(mark.name, mark.end_ns > 0) for mark in users]


def test_record_function_is_a_mark_and_what_torch_makes_itself_is_none(tmp_path: Path) -> None:
    found = run_rank(
        tmp_path,
        """
from torch.profiler import record_function
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
@record_function("decorated")
def call():
    return model(torch.ones(2, 4)).sum()
for batch in torch.utils.data.DataLoader(torch.ones(2, 4)):
    with record_function("outer"):
        with record_function("inner"):
            loss = call()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
try:
    with record_function("raises"):
        raise ValueError
except ValueError:
    pass
""",
    )
    names = ["outer", "inner", "decorated"]
    assert list_users(found) == [(name, True) for name in [*names, *names, "raises"]]
    outer, inner = found.of("user")[:2]
    assert outer.begin_ns < inner.begin_ns < inner.end_ns < outer.end_ns


def test_nvtx_and_itt_of_torch_are_marks_and_called_as_before(tmp_path: Path) -> None:
    found = run_rank(
        tmp_path,
        NVTX
        + """
from torch.profiler import itt
nvtx.range_pop()  # of a range that began before marks were on
nvtx.range_push("one")
nvtx.range_push(msg="two")
itt.range_push("of itt")
nvtx.range_pop()
with nvtx.range("{} {}", "three", 3):
    nvtx.mark("now")
handles = [nvtx.range_start("from"), nvtx.range_start("to")]
thread = threading.Thread(target=lambda: nvtx.range_end(handles[0]))
thread.start()
thread.join()
nvtx.range_end(handles[1])
nvtx.range_end(4711)
itt.range_pop()
itt.mark("an instant")
nvtx.range_push("left")
assert [name for name, *_ in calls].count("rangePushA") == 4
assert ("rangeEnd", handles[0]) in calls
""",
    )
    assert list_users(found) == [
        ("one", False), ("two", True), ("of itt", True), ("three 3", True), ("now", True),
        ("from", True), ("to", True), ("an instant", True), ("left", False),
    ]  # fmt: skip


def test_call_that_raises_is_no_mark_and_raises_as_before(tmp_path: Path) -> None:
    found = run_rank(
        tmp_path,
        """
import torch.cuda.nvtx as nvtx
for _ in range(2):
    try:
        nvtx.range_push("absent")
    except RuntimeError as error:
        assert "NVTX functions not installed" in str(error)
    else:
        assert torch.version.cuda
""",
    )
    assert not [mark for mark in found.of("user") if mark.end_ns]


def test_mstx_that_is_imported_later_is_read(tmp_path: Path) -> None:
    found = run_rank(
        tmp_path,
        MSTX
        + FLIP
        + """
flip("off", 2)
plain = dict(vars(mstx))
flip("on", 3)
stream = object()
handle = mstx.range_start("step 7", stream)
mstx.mark("here")
mstx().range_end(handle)
flip("off", 4)
assert dict(vars(mstx)) == plain
mstx.range_start("not seen", stream)
assert calls == [
    ("start", "step 7", stream), ("mark", "here"), ("end", 1), ("start", "not seen", stream)
]
""",
    )
    assert list_users(found) == [("step 7", True), ("here", True)]


def test_library_of_nvtx_is_read(tmp_path: Path) -> None:
    pytest.importorskip("nvtx")
    found = run_rank(
        tmp_path,
        """
import nvtx  # while marks are on
with nvtx.annotate("annotated"):
    nvtx.push_range("pushed")
    nvtx.pop_range()
both = nvtx.start_range("first"), nvtx.start_range("second")
for one in both:
    nvtx.end_range(one)
nvtx.mark("here")
""",
    )
    assert Counter(list_users(found)) == Counter(
        (name, True) for name in ("annotated", "pushed", "first", "second", "here")
    )


def test_nothing_is_left_of_it_when_marks_go_off(tmp_path: Path) -> None:
    found = run_rank(
        tmp_path,
        FLIP
        + """
from torch.autograd.profiler import record_function
from torch.profiler import itt
import torch.cuda.nvtx as nvtx
def look():
    return [
        record_function.__enter__, record_function.__exit__, itt.range_push, itt.range_pop,
        nvtx.range_push, nvtx.range_pop, nvtx.range_start, nvtx.range_end, nvtx.mark, itt.mark,
    ]
def is_ours(functions):
    return ["/probe/marks/" in one.__code__.co_filename for one in functions]
assert all(is_ours(look()))
itt.range_push("over a change")
flip("off", 2)
plain = look()
assert not any(is_ours(plain))
itt.range_pop()
flip("on", 3)
itt.range_pop()
with record_function("on"):
    flip("off", 4)
assert look() == plain
with record_function("off"):
    pass
""",
        json.dumps({"generation": 1, "step": "on"}),
    )
    assert list_users(found) == [("over a change", False), ("on", False)]


def test_script_and_compiler_take_record_function_as_before(tmp_path: Path) -> None:
    found = run_rank(
        tmp_path,
        """
from torch.autograd.profiler import record_function
def call(value):
    with record_function("scripted"):
        return value + 1
path = "scripted.py"
open(path, "w").write(
    "import torch\\ndef call(value: torch.Tensor):\\n"
    "    with torch.autograd.profiler.record_function('scripted'):\\n        return value + 1\\n"
)
sys.path.insert(0, ".")
import scripted
assert torch.jit.script(scripted.call)(torch.ones(1)) == 2
graphs = []
def backend(graph, example):
    graphs.append(graph)
    return graph.forward
import warnings
warnings.simplefilter("ignore")
import logging
logging.disable(logging.CRITICAL)
assert torch.compile(call, backend=backend, fullgraph=True)(torch.ones(1)) == 2
assert len(graphs) == 1
""",
    )
    assert len(found.of("user")) <= 1


def test_names_with_numbers_are_one_when_there_are_many(tmp_path: Path) -> None:
    found = run_rank(
        tmp_path,
        """
import whystuck
for step in range(3000):
    with whystuck.mark(f"step {step} of epoch {step // 100}"):
        pass
for step in range(5000):
    whystuck.mark("x" * 150 + "".join(chr(97 + (step >> bit & 1)) for bit in range(20)))
""",
    )
    names = [mark.name for mark in sorted(found.of("user"), key=lambda mark: mark.number)]
    assert names[:2] == ["step 0 of epoch 0", "step 1 of epoch 0"]
    assert names[2999] == "step # of epoch #"
    assert "" in names[3000:]
    assert len(names) == 8000


def test_marks_are_shown_to_tools_that_were_asked_for(tmp_path: Path) -> None:
    found = run_rank(
        tmp_path,
        NVTX.replace("calls = []", "calls = sys.calls = []")
        + """
import torch.profiler.itt as itt
tasks, depth = [], 0
class Tasks:
    def rangePush(self, text):
        tasks.append(text)
    def rangePop(self):
        tasks.append(None)
    def mark(self, text):
        tasks.append("mark " + text)
itt._itt = Tasks()
import whystuck
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    with whystuck.mark("outer"):
        model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
one, two = whystuck.mark("one").begin(), whystuck.mark("two").begin()
one.end()
two.end()
nvtx.range_push("of the job")
nvtx.range_pop()
step = [
    "mark outer", "outer", "forward: Linear", None, "backward: backward", None, None,
    "optimizer: SGD", None, "mark step",
]
assert tasks == [
    *step[:-1], "mark step", *step, "mark one", "one", "mark two", "two", None, None
], tasks
shown = [call[1] for call in calls if call[0] == "rangeStartA"]
assert shown == [*["outer", "forward: Linear", "backward: backward", "optimizer: SGD"] * 2,
                 "one", "two"], shown
assert len([call for call in calls if call[0] == "rangeEnd"]) == len(shown)
assert [call[1] for call in calls if call[0] == "rangePushA"] == ["of the job"]
""",
        WHYSTUCK_MIRROR_MARKS="nvtx,itt,mstx",
    )
    assert Counter(name for name, _ in list_users(found)) == {
        "outer": 2, "one": 1, "two": 1, "of the job": 1,
    }  # fmt: skip


def test_tool_that_is_not_there_is_left(tmp_path: Path) -> None:
    found = run_rank(
        tmp_path,
        """
import whystuck
for _ in range(3):
    with whystuck.mark("range"):
        torch.nn.Linear(4, 1)(torch.ones(2, 4))
""",
        WHYSTUCK_MIRROR_MARKS="mstx,unknown,nvtx",
    )
    assert list_users(found) == [("range", True)] * 3
