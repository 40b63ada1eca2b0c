"""Checksums and figures of tensors, against what numpy and plain Python say."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import pytest

from whystuck.probe.inspect import checksums as sums
from whystuck.probe.inspect import tensors as figures
from whystuck.probe.inspect.checksums import Checksums
from whystuck.probe.inspect.pieces import HOST_PIECE
from whystuck.probe.oplog.completion import Completion
from whystuck.probe.oplog.ring import Ring

torch = pytest.importorskip("torch")

DTYPES = (
    "float32",
    "float64",
    "float16",
    "bfloat16",
    "int64",
    "int32",
    "int8",
    "bool",
    "complex64",
)


def _make(dtype: str, count: int, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    kind = getattr(torch, dtype)
    if dtype == "bool":
        return torch.randint(0, 2, (count,), generator=generator).bool()
    if kind.is_floating_point or kind.is_complex:
        return torch.randn(count, generator=generator, dtype=torch.float64).to(kind)
    return torch.randint(-100, 100, (count,), generator=generator, dtype=torch.int64).to(kind)


_CHECKSUMS = Checksums()


def _sum(tensor: Any, checksums: Checksums = _CHECKSUMS) -> int:
    return sums.as_unsigned(int(checksums.sum_up(tensor)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_checksum_when_any_bit_flips_then_differs(dtype: str) -> None:
    tensor = _make(dtype, 7)
    before, seen = _sum(tensor), set()
    raw = tensor.view(torch.uint8)
    for place in range(raw.numel()):
        for bit in range(1 if dtype == "bool" else 8):
            raw[place] ^= 1 << bit
            seen.add(_sum(tensor))
            raw[place] ^= 1 << bit
    assert before not in seen
    assert len(seen) == raw.numel() * (1 if dtype == "bool" else 8)
    assert _sum(tensor) == before


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_checksum_when_two_elements_change_places_then_differs(dtype: str) -> None:
    # round numbers, whose lower bits are all zero, and numbers that differ in their sign only
    tensor = torch.tensor([0.0, 1.0, 2.0, -2.0, -1.0, 4.0, 0.5, -0.0], dtype=getattr(torch, dtype))
    before = _sum(tensor)
    for one in range(8):
        for other in range(one):
            swapped = tensor.clone()
            swapped[one], swapped[other] = tensor[other], tensor[one]
            assert _sum(swapped) != before, (one, other)


def test_checksum_when_a_tensor_has_several_pieces_then_each_place_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sums, "PIECE", 8)
    checksums = Checksums()
    tensor = torch.arange(40, dtype=torch.int32)
    before = _sum(tensor, checksums)
    swapped = tensor.clone()
    swapped[3], swapped[11] = tensor[11], tensor[3]
    assert _sum(swapped, checksums) != before
    for place in range(40):
        changed = tensor.clone()
        changed[place] ^= 1 << 31
        assert _sum(changed, checksums) != before


def test_checksum_when_weights_are_made_then_no_swap_of_elements_can_cancel() -> None:
    weights = _CHECKSUMS._weights_of(torch, torch.device("cpu"))
    lower = (weights & ((1 << 33) - 1)).tolist()
    assert len(set(lower)) == len(lower) == HOST_PIECE
    assert all(one % 2 for one in lower)
    assert max(lower) - min(lower) < 2**32


def test_checksum_when_a_tensor_is_laid_out_otherwise_then_is_the_same() -> None:
    tensor = torch.randn(6, 5)
    assert _sum(tensor.t()) == _sum(tensor.t().contiguous()) != _sum(tensor)
    assert _sum(torch.empty(0)) == 0
    assert _sum(torch.tensor(3.0)) != _sum(torch.tensor(-3.0))


def _measure(tensor: Any) -> dict[str, Any]:
    return figures.name_figures(figures.measure(tensor).tolist(), tensor.numel())


def test_figures_when_values_are_plain_then_are_those_of_the_tensor() -> None:
    tensor = torch.randn(1000, dtype=torch.float64)
    seen = _measure(tensor)
    assert (seen["nan"], seen["inf"]) == (0, 0)
    assert (seen["min"], seen["max"]) == (tensor.min().item(), tensor.max().item())
    assert seen["mean"] == pytest.approx(tensor.mean().item())
    assert seen["norm"] == pytest.approx(tensor.norm().item())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_figures_when_values_are_at_the_ends_of_a_type_then_each_kind_is_counted(
    dtype: str,
) -> None:
    kind = getattr(torch, dtype)
    limits = torch.finfo(kind)
    values = [0.0, -0.0, math.nan, math.inf, -math.inf, limits.max, -limits.max, limits.tiny / 2]
    seen = _measure(torch.tensor([*values, 1.0, 2.0], dtype=kind))
    assert (seen["nan"], seen["inf"]) == (1, 2)
    assert (seen["overflow"], seen["zero"], seen["saturated"]) == (0.2, 0.2, 0.2)
    assert seen["underflow"] == 0.1
    assert (seen["min"], seen["max"]) == (-limits.max, limits.max)


def test_figures_when_nothing_is_finite_then_there_is_no_mean() -> None:
    seen = _measure(torch.tensor([math.nan, math.inf]))
    assert [seen[name] for name in ("min", "max", "mean", "norm")] == [None] * 4


def test_figures_when_a_half_tensor_is_large_then_it_is_widened_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(figures, "PIECE", 64)
    widened: list[int] = []
    widen = figures._widen

    def note(module: Any, piece: Any) -> Any:
        widened.append(piece.numel())
        return widen(module, piece)

    monkeypatch.setattr(figures, "_widen", note)
    tensor = torch.arange(1000).to(torch.bfloat16)
    seen = _measure(tensor)
    assert max(widened) == 64
    assert sum(widened) == 1000
    assert seen["max"] == tensor.max().item()
    assert seen["mean"] == pytest.approx(tensor.double().mean().item())
    assert figures.count_not_finite(tensor).tolist() == [0, 0]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_not_finite_when_some_are_then_are_counted(dtype: str) -> None:
    tensor = torch.ones(50, dtype=getattr(torch, dtype))
    assert figures.count_not_finite(tensor).tolist() == [0, 0]
    tensor[3], tensor[9], tensor[10] = math.nan, math.inf, -math.inf
    assert figures.count_not_finite(tensor).tolist() == [1, 2]


def test_not_finite_when_a_tensor_cannot_be_then_is_passed_over() -> None:
    assert figures.count_not_finite(torch.arange(3)) is None
    assert figures.count_not_finite(torch.empty(0)) is None
    assert figures.measure(torch.eye(2).to_sparse()) is None


def test_flatten_when_tensors_are_nested_then_all_are_found() -> None:
    one, two, three = torch.ones(1), torch.ones(2), torch.ones(3)
    nested = {"a": [one, (two, None)], "b": {"c": three, "d": "text"}}
    assert [tensor.numel() for tensor in figures.flatten(nested)] == [1, 2, 3]
    endless: list[Any] = [one]
    endless.append(endless)
    assert len(list(figures.flatten(endless))) <= 64


def test_quiet_when_the_user_has_modes_then_figures_are_made_on_the_host() -> None:
    with torch.device("meta"), figures.quiet():
        assert _sum(torch.arange(4, device="cpu")) > 0


class _Event:
    """Stands for the event of a device, which this machine does not have."""

    is_there = False

    def query(self) -> bool:
        return self.is_there


def test_later_when_a_device_is_not_done_then_values_come_in_order_by_the_thread(
    tmp_path: Any,
) -> None:
    completion = Completion(Ring(str(tmp_path / "ops")))
    got: list[Any] = []
    event = _Event()
    first = figures.Later([torch.tensor([1.0])], got.append)
    first._event = event
    completion.defer(first)
    # on the host, and yet behind the first one
    completion.defer(figures.Later([torch.tensor([2.0])], got.append))
    assert got == []
    completion.start()
    event.is_there = True
    deadline_s = time.monotonic() + 20
    while len(got) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.005)
    completion.stop()
    assert got == [[[1.0]], [[2.0]]]


def test_later_when_all_is_on_the_host_then_values_are_there_at_once(tmp_path: Any) -> None:
    got: list[Any] = []
    completion = Completion(Ring(str(tmp_path / "ops")))
    completion.defer(figures.Later([torch.tensor([3.0])], got.append))
    assert got == [[[3.0]]]


def test_event_behind_a_copy_is_on_the_device_of_the_tensor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread may be at another device, whose stream would be over at once."""
    recorded: list[Any] = []
    device = SimpleNamespace(
        Event=lambda: SimpleNamespace(record=recorded.append), current_stream=lambda one: one
    )
    monkeypatch.setattr(torch, "meta", device, raising=False)
    tensor = torch.ones(1, device="meta")
    assert figures._record_event([torch.ones(1), tensor]) is not None
    assert recorded == [tensor.device]
    assert figures._record_event([torch.ones(1)]) is None
