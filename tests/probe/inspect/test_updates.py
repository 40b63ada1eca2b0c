"""Updates that scalers and checks of a job skip, in real training loops of one process."""

from __future__ import annotations

import itertools
import json
import math
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from whystuck.probe import progress
from whystuck.probe.inspect import guard
from whystuck.probe.inspect import updates as counting
from whystuck.probe.inspect.deepspeed import DeepSpeedWatch
from whystuck.probe.inspect.guard import GuardWatch
from whystuck.probe.inspect.lines import Lines
from whystuck.probe.inspect.scaler import ScalerWatch
from whystuck.probe.inspect.updates import Updates

torch = pytest.importorskip("torch")

INF = float("inf")


class Watched:
    """Both watches, installed in this process, and the lines that they wrote."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = Lines(str(path))
        self.newest = 0
        scalers = ScalerWatch(self._lines, self._defer, lambda: self.newest)
        guards = GuardWatch(self._lines, self._defer, lambda: self.newest, scalers)
        self.deepspeed = DeepSpeedWatch(self._lines, self._defer, scalers)
        self.parts: list[Any] = [scalers, guards, self.deepspeed]
        self.asked = 0
        for part in self.parts:
            part.install()

    def _defer(self, task: Callable[[], bool]) -> None:
        self.asked += 1
        assert task()

    def remove(self) -> None:
        for part in self.parts:
            part.remove()

    def read(self, source: str, series: int = 0) -> list[dict[str, Any]]:
        """Return the lines of one source, the last one with the final counts."""
        for part in self.parts:
            part.close()
        lines = [json.loads(line) for line in self._path.read_text().splitlines()]
        return [one for one in lines if (one["source"], one["series"]) == (source, series)]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    def count(*_: object) -> None:
        progress.COUNTS.optimizer_steps += 1

    from torch.optim.optimizer import register_optimizer_step_post_hook

    hook = register_optimizer_step_post_hook(count)
    made = Watched(tmp_path / "inspect")
    yield made
    made.remove()
    hook.remove()


class Loop:
    """A model, its optimizer, and ways to make one step of training."""

    def __init__(self, optimizer: Any = None) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Linear(4, 2)
        self.optimizer = (optimizer or torch.optim.SGD)(self.model.parameters(), lr=0.01)

    def backward(self, factor: float = 1.0, scaler: Any = None) -> None:
        loss = self.model(torch.ones(3, 4)).sum() * factor
        (scaler.scale(loss) if scaler else loss).backward()

    def scaled(self, scaler: Any, factor: float = 1.0) -> None:
        self.optimizer.zero_grad()
        self.backward(factor, scaler)
        scaler.step(self.optimizer)
        scaler.update()

    def guarded(self, factor: float = 1.0) -> None:
        self.backward(factor)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if torch.isfinite(norm):
            self.optimizer.step()
        self.optimizer.zero_grad()


def _skips(lines: list[dict[str, Any]]) -> list[int]:
    return [line["updates"] for line in lines if line["skipped"]]


def test_scaler_when_some_updates_overflow_then_each_is_counted(watched: Watched) -> None:
    loop, scaler = Loop(), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for number in range(1, 31):
        watched.newest += 2
        loop.scaled(scaler, INF if number in (3, 4, 9) else 1.0)
    lines = watched.read("scaler")
    assert _skips(lines) == [3, 4, 9]
    assert [line["scale"] for line in lines if line["skipped"]] == [1024.0, 512.0, 256.0]
    assert [line["step"] - lines[0]["step"] for line in lines if line["skipped"]] == [1, 1, 5]
    assert [(one["first_op"], one["last_op"]) for one in lines if one["skipped"]] == [
        (5, 6), (7, 8), (17, 18),
    ]  # fmt: skip
    assert (lines[-1]["updates"], lines[-1]["skips"], lines[-1]["init"]) == (30, 3, 1024.0)
    assert lines[-1]["scale"] == 128.0


def test_scaler_when_nothing_overflows_then_has_few_lines(watched: Watched) -> None:
    loop, scaler = Loop(), torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(1200):
        loop.scaled(scaler)
    lines = watched.read("scaler")
    assert [line["updates"] for line in lines] == [1, 501, 1001, 1200]
    assert _skips(lines) == []
    assert watched.read("guard") == []


def test_scaler_when_there_are_two_then_each_has_its_own_count(watched: Watched) -> None:
    loops = [Loop(), Loop()]
    scalers = [torch.amp.GradScaler("cpu", init_scale=scale) for scale in (8.0, 16.0)]
    for number in range(6):
        loops[0].scaled(scalers[0])
        loops[1].scaled(scalers[1], INF if number else 1.0)
    assert _skips(watched.read("scaler", 0)) == []
    assert _skips(watched.read("scaler", 1)) == [2, 3, 4, 5, 6]
    assert watched.read("scaler", 1)[-1]["init"] == 16.0


def test_scaler_when_it_is_one_of_fsdp_then_is_followed_too(watched: Watched) -> None:
    import torch.distributed as dist
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    store = dist.HashStore()
    dist.init_process_group("gloo", rank=0, world_size=1, store=store)
    try:
        loop, scaler = Loop(), ShardedGradScaler("cpu", process_group=dist.group.WORLD)
        for number in range(5):
            loop.scaled(scaler, INF if number == 2 else 1.0)
    finally:
        dist.destroy_process_group()
    assert _skips(watched.read("scaler")) == [3]


def test_scaler_when_it_is_disabled_then_is_passed_over(watched: Watched) -> None:
    loop, scaler = Loop(), torch.amp.GradScaler("cpu", enabled=False)
    loop.scaled(scaler)
    assert watched.read("scaler") == []


def test_scaler_when_the_watch_is_over_then_torch_has_its_own_function_back(
    watched: Watched,
) -> None:
    patched = (
        (torch.amp.GradScaler, "_check_scale_growth_tracker"),
        (torch.optim.Optimizer, "zero_grad"),
        (torch.nn.Module, "zero_grad"),
    )
    assert all(hasattr(getattr(owner, name), "__wrapped__") for owner, name in patched[::2])
    before = [getattr(owner, name).__wrapped__ for owner, name in patched]
    watched.remove()
    assert [getattr(owner, name) for owner, name in patched] == before


def test_scaler_when_it_is_gone_then_is_not_kept(watched: Watched) -> None:
    loop, scaler = Loop(), torch.amp.GradScaler("cpu")
    loop.scaled(scaler)
    seen, seen_optimizer = weakref.ref(scaler), weakref.ref(loop.optimizer)
    del scaler, loop
    assert (seen(), seen_optimizer()) == (None, None)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("by_model", [True, False])
def test_guard_when_gradients_that_are_not_finite_are_dropped_then_counts_them(
    watched: Watched, *, set_to_none: bool, by_model: bool
) -> None:
    loop = Loop()
    for number in range(1, 41):
        watched.newest += 3
        loop.backward(INF if number % 8 == 0 else 1.0)
        norm = torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
        if math.isfinite(norm):
            loop.optimizer.step()
        (loop.model if by_model else loop.optimizer).zero_grad(set_to_none=set_to_none)
    lines = watched.read("guard")
    assert _skips(lines) == [8, 16, 24, 32, 40]
    assert [(one["first_op"], one["last_op"]) for one in lines if one["skipped"]][:2] == [
        (22, 24), (46, 48),
    ]  # fmt: skip
    assert (lines[-1]["updates"], lines[-1]["scale"]) == (40, None)


def test_guard_when_the_loop_clears_first_then_is_seen_too(watched: Watched) -> None:
    loop = Loop(torch.optim.AdamW)
    for number in range(20):
        loop.optimizer.zero_grad()
        loop.backward(math.nan if number in (3, 4) else 1.0)
        if all(torch.isfinite(p.grad).all() for p in loop.model.parameters()):
            loop.optimizer.step()
    assert _skips(watched.read("guard")) == [4, 5]


def _accumulate(loop: Loop) -> None:
    for number in range(32):
        loop.backward()
        if number % 4 == 3:
            loop.optimizer.step()
            loop.optimizer.zero_grad()


def _attack(loop: Loop) -> None:
    for _ in range(8):
        for _ in range(3):  # on the inputs, by backward
            loop.backward()
            loop.model.zero_grad()
        loop.backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()


def _play(loop: Loop) -> None:
    other = Loop()
    for number in range(8):
        for one in (loop, other):
            one.optimizer.zero_grad()
        loop.backward()
        loop.optimizer.step()
        if number % 2:
            other.backward()
            other.optimizer.step()


def _diverge(loop: Loop) -> None:
    for _ in range(8):  # nobody checks: each step is made
        loop.optimizer.zero_grad()
        loop.backward(math.nan)
        loop.optimizer.step()


def _scale(loop: Loop) -> None:
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(8):  # the scaler skips it, and says so itself
        loop.scaled(scaler, INF)


@pytest.mark.parametrize("train", [_accumulate, _attack, _play, _diverge, _scale])
def test_guard_when_no_check_has_skipped_anything_then_is_silent(
    watched: Watched, train: Callable[[Loop], None]
) -> None:
    train(Loop())
    assert watched.read("guard") == []


def test_guard_when_steps_are_made_then_no_gradient_is_read(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop()
    read: list[Any] = []
    monkeypatch.setattr(guard, "_measure_largest", read.append)
    for _ in range(6):
        loop.guarded()
    assert read == []
    loop.guarded(INF)
    assert len(read) == 1


def test_guard_when_looking_fails_then_gradients_are_cleared(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop()
    monkeypatch.setattr(guard, "_measure_largest", None)
    for factor in (1.0, INF, 1.0):
        loop.guarded(factor)
        assert [p.grad for p in loop.model.parameters()] == [None, None]
    assert watched.read("guard") == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_guard_when_gradients_are_of_any_type_then_are_read(watched: Watched, dtype: str) -> None:
    kind = getattr(torch, dtype)
    weights = [torch.nn.Parameter(torch.ones(3, dtype=kind)) for _ in range(3)]
    empty = torch.nn.Parameter(torch.ones(0, dtype=kind))
    optimizer = torch.optim.SGD([*weights, empty], lr=0.1)
    for value in (1.0, INF, 1.0):
        for one in (*weights, empty):
            one.grad = torch.full_like(one, value)
        if math.isfinite(value):
            optimizer.step()
        optimizer.zero_grad()
    assert _skips(watched.read("guard")) == [2]


def test_job_when_it_is_watched_then_computes_the_same(tmp_path: Path) -> None:
    def train() -> list[Any]:
        loop, scaler = Loop(torch.optim.AdamW), torch.amp.GradScaler("cpu")
        for number in range(20):
            loop.scaled(scaler, INF if number % 5 == 1 else 1.0)
        for number in range(20):
            loop.guarded(math.nan if number % 5 == 1 else 1.0)
        return [*(p.detach().clone() for p in loop.model.parameters()), scaler.get_scale()]

    alone = train()
    watched = Watched(tmp_path / "inspect")
    try:
        seen = train()
    finally:
        watched.remove()
    assert len(alone) == len(seen) == 3
    for mine, theirs in zip(seen, alone, strict=True):
        assert torch.equal(torch.as_tensor(mine), torch.as_tensor(theirs))
    assert watched.asked


def test_function_when_it_is_compiled_as_one_graph_then_may_clear_gradients(
    watched: Watched,
) -> None:
    loop = Loop()

    def step(data: Any) -> Any:
        loop.model.zero_grad()
        return loop.model(data) * 2

    made = torch.compile(step, backend="eager", fullgraph=True)
    assert made(torch.ones(3, 4)).shape == (3, 2)
    del watched


# ------------------------------------------------------------------------------------- DeepSpeed

# As in DeepSpeed 0.16: the one of ZeRO, and an optimizer that keeps its scale itself.
LOSS_SCALER = """
class LossScalerBase:
    def __init__(self, cur_scale):
        self.cur_scale = cur_scale
    def update_scale(self, overflow):
        pass
class DynamicLossScaler(LossScalerBase):
    def update_scale(self, overflow):
        self.cur_scale = max(self.cur_scale / 2, 1) if overflow else self.cur_scale
"""
FUSED = """
class FP16_Optimizer:
    cur_scale = 65536
    def _update_scale(self, skip):
        if skip:
            self.cur_scale /= 2
"""


def _load(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> Any:
    module = types.ModuleType(f"deepspeed.runtime.fp16.{name}")
    exec(text, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_deepspeed_when_it_is_imported_later_then_its_scalers_are_followed(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = _load(monkeypatch, "loss_scaler", LOSS_SCALER)
    fused = _load(monkeypatch, "fused_optimizer", FUSED)
    watched.deepspeed.look()
    patched = module.DynamicLossScaler.update_scale
    watched.deepspeed.look()
    assert module.DynamicLossScaler.update_scale is patched
    scaler, optimizer = module.DynamicLossScaler(65536), fused.FP16_Optimizer()
    for number in range(1, 7):
        scaler.update_scale(number in (2, 3))
        optimizer._update_scale(skip=number == 5)
    lines = watched.read("deepspeed", 0)
    assert _skips(lines) == [2, 3]
    assert [line["scale"] for line in lines if line["skipped"]] == [65536, 32768]
    assert (scaler.cur_scale, optimizer.cur_scale) == (16384, 32768)
    assert _skips(watched.read("deepspeed", 1)) == [5]
    watched.remove()
    assert not hasattr(module.DynamicLossScaler.update_scale, "__wrapped__")
    assert not hasattr(fused.FP16_Optimizer._update_scale, "__wrapped__")


def test_deepspeed_when_it_is_half_imported_then_is_looked_at_again(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = _load(monkeypatch, "loss_scaler", "")
    watched.deepspeed.look()
    exec(LOSS_SCALER, module.__dict__)
    watched.deepspeed.look()
    module.LossScalerBase(1.0).update_scale(torch.ones(1))  # what may be on a device is not read
    module.LossScalerBase(1.0).update_scale(True)
    assert _skips(watched.read("deepspeed")) == [1]


# ------------------------------------------------------------------------------- what is written


def _count(tmp_path: Path, skips: Callable[[int], bool], count: int) -> list[dict[str, Any]]:
    path = tmp_path / "lines"
    made = Updates(Lines(str(path)), "scaler")
    for number in range(1, count + 1):
        made.add(number, (number, number), is_skipped=skips(number), scale=1.0)
    made.write()
    return [json.loads(line) for line in path.read_text().splitlines()]


def _count_last(lines: list[dict[str, Any]], last: int = 100) -> int:
    """Count the skips among the last updates, as the lines tell."""
    start = lines[-1]["updates"] - last
    before = max((one["skips"] for one in lines if one["updates"] <= start), default=0)
    return int(lines[-1]["skips"]) - before


@pytest.mark.parametrize("every", [1, 2, 5, 30])
@pytest.mark.parametrize("count", [100, 137, 5000])
def test_lines_when_updates_are_skipped_then_tell_those_of_the_last_100(
    tmp_path: Path, every: int, count: int
) -> None:
    lines = _count(tmp_path, lambda number: number % every == 0, count)
    found = _count_last(lines)
    exact = sum(number % every == 0 for number in range(count - 99, count + 1))
    assert abs(found - exact) <= (counting._BATCH if count > 4000 and every < 3 else 0)
    assert lines[-1]["updates"] >= count - counting._BATCH


def test_lines_when_skips_are_over_then_are_few(tmp_path: Path) -> None:
    lines = _count(tmp_path, lambda number: number < 5, 100_000)
    assert len(lines) < 5 + 200 // counting._BATCH + 100_000 // 500 + 2
    assert lines[-1]["updates"] == 100_000  # from the end of the process
    assert _count_last(lines) == 0
    assert _count_last(lines[:-1]) == 0  # as when it was killed


def test_lines_when_every_update_is_skipped_for_long_then_are_few(tmp_path: Path) -> None:
    lines = _count(tmp_path, lambda _: True, 100_000)
    assert len(lines) < 2000 + 98_000 / counting._BATCH + 2
    # no op is left out
    ranges = [(one["first_op"], one["last_op"]) for one in lines]
    assert all(a[1] + 1 == b[0] for a, b in itertools.pairwise(ranges))
