"""Models that torch compiles: with marks they are compiled as without, and as often."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from tests.probe.marks.test_marks import run_rank

COMPILED = """
import torch._dynamo as dynamo
from torch._dynamo.utils import counters
control = sys.modules["_whystuck_probe.rank"]
switch = sys.modules["_whystuck_probe.switch"]
graphs = []
def backend(graph, example):
    graphs.append(len(graph.graph.nodes))
    return graph.forward
def make():
    torch.manual_seed(3)
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
        def forward(self, value):
            return self.inner(value) + value
    return torch.nn.Sequential(Block(), torch.nn.Linear(8, 8), Block())
def flip(word, number):
    parts = dict.fromkeys(switch.MARKS, word)
    assert not switch.PARTS.apply(parts, number, 0), word
def train(flips):
    dynamo.reset()
    counters.clear()
    graphs.clear()
    model = make()
    call, forms = prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(24):
        if step in flips:
            flip(*flips[step])
        for form in range(forms):
            loss = call(torch.full((2 + form, 8), 1 / (step + 1))).square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    breaks = {str(reason): count for reason, count in counters["graph_break"].items()}
    stats = dict(counters["stats"])
    return weights, sorted(graphs), breaks, stats.get("unique_graphs"), len(graphs)
off = {0: ("off", 2)}
plain = train(off)
assert plain[3], plain
for flips in (
    {0: ("on", 3)},
    {0: ("off", 4), 6: ("on", 5), 16: ("off", 6)},
    {0: ("on", 7), 6: ("off", 8), 7: ("on", 9), 9: ("off", 10), 10: ("on", 11)},
):
    marked = train(flips)
    assert all(one.isfinite().all() for one in plain[0])
    for one, other in zip(plain[0], marked[0]):
        assert torch.equal(one, other)
    assert plain[1:] == marked[1:], (flips, plain[1:], marked[1:])
"""

WAYS = {
    "wrapped": """
def prepare(model):
    return torch.compile(model, backend=backend), 1
""",
    "whole": """
def prepare(model):
    return torch.compile(model, backend=backend, fullgraph=True), 1
""",
    "in-place": """
def prepare(model):
    model.compile(backend=backend)
    return model, 1
""",
    "inside": """
def prepare(model):
    model[0].compile(backend=backend)
    model[2] = torch.compile(model[2], backend=backend)
    return model, 1
""",
    "function": """
def prepare(model):
    def call(value):
        return model(value) * 2
    return torch.compile(call, backend=backend), 1
""",
    "function-that-breaks": """
def prepare(model):
    def call(value):
        dynamo.graph_break()
        made = model(value) * 2
        print(end="")
        return made + model(value)
    return torch.compile(call, backend=backend), 1
""",
    "step": """
def prepare(model):
    def call(value):
        made = model(value)
        made.square().mean().backward()
        return made.detach().requires_grad_()
    return torch.compile(call, backend=backend), 1
""",
    "forms": """
def prepare(model):
    return torch.compile(model, backend=backend), 3
""",
    "ddp": """
import logging
logging.getLogger("torch._dynamo").setLevel(logging.ERROR)  # it tells of a profiler in DDP
def prepare(model):
    return torch.compile(torch.nn.parallel.DistributedDataParallel(model), backend=backend), 1
""",
    "in-ddp": """
def prepare(model):
    return torch.nn.parallel.DistributedDataParallel(torch.compile(model, backend=backend)), 1
""",
}
FORWARDS = {"wrapped": 24, "whole": 24, "in-place": 24, "inside": 24, "forms": 72, "ddp": 24}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_compiled_model_is_compiled_as_without_marks(tmp_path: Path, way: str) -> None:
    script = WAYS[way] + COMPILED
    found = run_rank(tmp_path, script, json.dumps({"generation": 1, "marks": "off", "step": "on"}))
    first = [mark for mark in found.marks if mark.step < 48 and mark.step >= 24]
    counts = Counter(mark.kind for mark in first)
    backwards = {"forms": 3, "step": 2}.get(way, 1)
    assert (counts["backward"], counts["optimizer"]) == (24 * backwards, 24)
    if way in FORWARDS:
        assert counts["forward"] == FORWARDS[way]


@pytest.mark.slow
def test_model_that_the_default_backend_compiles_is_trained_alike(tmp_path: Path) -> None:
    script = "def prepare(model):\n    return torch.compile(model), 1\n" + COMPILED
    script = script.replace("assert plain[3], plain", "plain = (*plain[:1], *plain[1:])")
    run_rank(tmp_path, script, json.dumps({"generation": 1, "step": "on"}))


def test_marks_of_the_job_in_compiled_code_are_none_and_part_no_graph(tmp_path: Path) -> None:
    found = run_rank(
        tmp_path,
        """
import whystuck
from torch._dynamo.utils import counters
def instant(value):
    whystuck.mark("compiled")
    return value + 1
def range_(value):
    mark = whystuck.mark("compiled").begin()
    made = value + 1
    mark.end()
    return made
def step(value):
    whystuck.step()
    return value + 1
for one in (instant, range_, step):
    call = torch.compile(one, backend="eager", fullgraph=True)
    for size in (1, 2, 3):
        assert torch.equal(call(torch.ones(size)), torch.full((size,), 2.0))
assert not counters["graph_break"]
whystuck.mark("not compiled")
""",
    )
    assert [mark.name for mark in found.of("user")] == ["not compiled"]
    assert not found.of("step")
