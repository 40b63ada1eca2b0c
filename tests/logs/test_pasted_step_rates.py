"""The pace of steps that loops print: the whole job is slower since one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

Form = Callable[[int, float], list[str]]
FELL = [1.62, 1.63, 1.61, 1.62, 0.74, 0.73, 0.74, 0.73]


def composer(step: int, rate: float) -> list[str]:
    return [f"[batch={step}/9000]:", f"\t Train throughput/batches_per_sec: {rate:.4f}"]


def tqdm(step: int, rate: float) -> list[str]:
    return [f" 12%|#2  | {step}/9000 [02:11<9:14:18,  {rate:.2f}it/s]"]


def tqdm_slow(step: int, rate: float) -> list[str]:
    return [f" 12%|#2  | {step}/9000 [02:11<9:14:18,  {1 / rate:.2f}s/it, loss=2.1]"]


def titan(step: int, rate: float) -> list[str]:
    begin = f"[titan] 2026-02-03 04:05:06,700 - root - INFO - step: {step}  loss:  2.9  "
    return [f"{begin}memory: 61.2GiB(64.4%)  tps: {4000 * rate:,.0f}  tflops: 210.4  mfu: 21.3%"]


def megatron(step: int, rate: float) -> list[str]:
    took = f"elapsed time per iteration (ms): {1000 / rate:.1f}"
    return [f" iteration {step:8}/   90000 | consumed samples:  640 | {took} | batch size:  64 |"]


def deepspeed(step: int, rate: float) -> list[str]:
    begin = f"[2026-02-03 04:05:06,882] [INFO] [timer.py:260:stop] epoch=0/micro_step={step}/"
    means = "RunningAvgSamplesPerSec=18.31"
    return [f"{begin}global_step={step}, {means}, CurrSamplesPerSec={16 * rate:.2f}"]


def own(step: int, rate: float) -> list[str]:
    return [f"step {step} loss 2.31 {2048 * rate:.0f} tokens/s"]


FORMS = [composer, tqdm, tqdm_slow, titan, megatron, deepspeed, own]


def run(form: Form, rates: Sequence[float], first: int = 4000) -> list[str]:
    return [line for at, rate in enumerate(rates) for line in form(first + 10 * at, rate)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("rates", "step"),
    [
        (FELL, 4040),
        ([0.2, *FELL], 4050),
        ([1.62, 1.62, 1.1, 0.74, 0.74], 4020),
        ([1.9, 1.7, 1.8, 1.75, 1.2, 1.25, 1.21, 1.2], 4040),
    ],
    ids=["fell", "a slow first step", "few figures", "noise"],
)
def test_pace_that_fell_for_good_is_of_the_whole_job(
    tmp_path: Path, form: Form, rates: Sequence[float], step: int
) -> None:
    finding = first_of(say(tmp_path, *run(form, rates)))

    assert (finding.code, finding.details["step"], finding.culprits.ranks) == ("S304", step, [])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "rates",
    [
        pytest.param([1.62] * 8, id="even"),
        pytest.param(FELL[::-1], id="faster"),
        pytest.param([*FELL, 1.62], id="back again"),
        pytest.param([1.62, 1.61, 1.62, 0.7], id="one slow step"),
        pytest.param([1.9, 1.7, 1.5, 1.3, 1.1, 0.9, 0.8], id="ever slower"),
        pytest.param([1.6, 0.8, 1.6, 0.8, 1.6, 0.8], id="in turn"),
        pytest.param([1.9, 1.2, 1.8, 0.8, 0.9, 0.5], id="too much noise"),
        pytest.param([1.62, 1.62, 1.62, 1.3, 1.3, 1.3], id="a little slower"),
    ],
)
def test_pace_that_tells_nothing(tmp_path: Path, form: Form, rates: Sequence[float]) -> None:
    assert say(tmp_path, *run(form, rates)).findings == []


def test_steps_that_begin_again_are_of_another_run(tmp_path: Path) -> None:
    lines = [*run(own, FELL[:4]), "second try with the new image:", *run(own, FELL[4:])]

    assert say(tmp_path, *lines).findings == []


def test_bars_of_what_is_made_ready_are_no_steps(tmp_path: Path) -> None:
    bars = [f"Tokenizing train: {line}" for line in run(tqdm, FELL)]

    assert say(tmp_path, *bars).findings == []


@pytest.mark.parametrize("is_other_well", [False, True])
def test_all_ranks_must_be_slower(tmp_path: Path, *, is_other_well: bool) -> None:
    lines = []
    for at, rate in enumerate(FELL):
        other = FELL[0] if is_other_well else rate
        lines += [f"[rank{r}] {own(at + 40, one)[0]}" for r, one in ((0, rate), (1, other))]
    codes = [one.code for one in say(tmp_path, *lines).findings]

    assert codes == ([] if is_other_well else ["S304"])


def test_what_makes_the_job_slow_goes_first(tmp_path: Path) -> None:
    times = [f"rank {at}: fwd {'900' if at == 2 else '410'} ms" for at in range(4)]
    codes = [one.code for one in say(tmp_path, *run(own, FELL), *times).findings]

    assert codes == ["S301"]
