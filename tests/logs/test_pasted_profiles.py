"""Tables of torch.profiler that show what the host does while the device is idle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

CPU = ("Self CPU %", "Self CPU", "CPU total %", "CPU total")
DEVICE = ("Self CUDA", "Self CUDA %")
# A name, its own time on the host and on the device in ms, and its calls.
Rows = Sequence[tuple[str, float, float, int]]
STEP = ("ProfilerStep*", 40.0, 0.0, 4)
SYNCED: Rows = [
    STEP,
    ("aten::item", 1.1, 0.0, 640),
    ("aten::_local_scalar_dense", 2.0, 1.0, 640),
    ("cudaStreamSynchronize", 610.0, 0.0, 644),
    ("cudaLaunchKernel", 44.0, 0.0, 9100),
    ("ampere_bf16_s16816gemm_bf16_128x128", 0.0, 300.0, 900),
]
LAUNCHED: Rows = [
    STEP,
    ("cudaLaunchKernel", 480.0, 0.0, 88000),
    ("aten::add_", 110.0, 61.0, 20100),
    ("Optimizer.step#Adam.step (fused=False)", 90.0, 0.0, 4),
    ("vectorized_elementwise_kernel", 0.0, 61.0, 20100),
]


def table(
    rows: Rows,
    host: float = 1000.0,
    device: float = 300.0,
    *,
    is_cut: bool = False,
    word: str = "CUDA",
    unit: str = "ms",
) -> list[str]:
    heads = (*CPU, *(one.replace("CUDA", word) for one in DEVICE), "# of Calls")
    rule = "  ".join(["-" * 60, *("-" * 12 for _ in heads)])

    def write(ms: float) -> str:
        return f"{ms:.3f}ms" if unit == "ms" else f"{ms * 1000:.3f}us"

    lines = [rule, "  ".join([f"{'Name':>60}", *(f"{one:>12}" for one in heads)]), rule]
    for name, own, on_device, calls in rows:
        share, part = f"{own / host:.2%}", f"{on_device / device:.2%}"
        cells = (share, write(own), share, write(own), write(on_device), part, str(calls))
        lines.append("  ".join([f"{name:>60}", *(f"{one:>12}" for one in cells)]))
    totals = [
        rule,
        f"Self CPU time total: {host / 1000:.3f}s",
        f"Self {word} time total: {device:.3f}ms",
    ]
    return [*lines, *([] if is_cut else totals)]


FORMS = [
    pytest.param({}, "", id="whole"),
    pytest.param({"is_cut": True}, "", id="no totals"),
    pytest.param({"unit": "us"}, "", id="us"),
    pytest.param({"word": "XPU"}, "", id="xpu"),
    pytest.param({}, "[rank0]: ", id="prefix"),
]


@pytest.mark.parametrize(("form", "prefix"), FORMS)
@pytest.mark.parametrize(
    ("rows", "code", "words"),
    [
        (SYNCED, "P506", "aten::item"),
        (LAUNCHED, "P502", "88000 kernels"),
    ],
    ids=["syncs", "launches"],
)
def test_host_for_which_the_device_waits(
    tmp_path: Path, rows: Rows, code: str, words: str, form: dict[str, bool], prefix: str
) -> None:
    lines = [prefix + line for line in table(rows, **form)]  # type: ignore[arg-type]
    finding = first_of(say(tmp_path, "8 ranks, all alike", *lines))

    assert (finding.code, finding.culprits.ranks) == (code, [])
    assert words in finding.summary


def test_tables_of_several_ranks(tmp_path: Path) -> None:
    lines = ["rank 0:", *table(SYNCED), "rank 5:", *table(SYNCED, device=330.0)]

    assert first_of(say(tmp_path, *lines)).code == "P506"


FEW: Rows = [(name, own, work, 4 if "Sync" in name else calls) for name, own, work, calls in SYNCED]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(table(SYNCED, device=950.0), id="busy with syncs"),
        pytest.param(table(LAUNCHED, device=900.0), id="busy with launches"),
        pytest.param(table(FEW), id="one sync a step"),
        pytest.param(table(SYNCED)[3:], id="no head"),
        pytest.param(["rank 0:", *table(SYNCED), "rank 5:", *table([STEP])], id="one of two"),
        pytest.param([line.replace("Self", "Own") for line in table(SYNCED)], id="other table"),
    ],
)
def test_profiles_that_tell_nothing(tmp_path: Path, lines: list[str]) -> None:
    assert say(tmp_path, *lines).findings == []
