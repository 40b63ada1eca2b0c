"""Loops that print how many steps a scaler has left out, and its scale."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

FORMS = {
    "a share": "{step} loss 10.37 scale {scale:g} skipped {skipped}/{step}",
    "two fields": "step {step} | loss 10.37 | grad_scale {scale:g} | skipped {skipped}",
    "words": "[rank0] iter {step}: loss=10.37 loss_scale={scale:g} (skipped {skipped} of {step})",
    "DeepSpeed": "[Rank 0] step={step}, skipped={skipped}, lr=[9.9e-05], mom=[(0.9, 0.999)]",
    "Megatron": (
        " iteration {step:8}/ 5000 | learning rate: 0.000000E+00 | lm loss: 1.04E+01 | loss scale: "
        "{scale:.1f} | number of skipped iterations: {since:3} | number of nan iterations:   0 |"
    ),
}


def write(
    form: str, *, first: int = 2600, begin: int = 2630, until: int = 9999, every: int = 10
) -> Iterator[str]:
    """Print lines of a job that leaves out all steps from one on."""
    skipped, scale = 3, 65536.0
    for step in range(first, first + 12 * every, every):
        since = max(0, min(step, until) - max(begin, step - every))
        skipped += since
        scale = max(scale / 2**since, 1e-30) if since else scale
        yield form.format(step=step, scale=scale, skipped=skipped, since=since)


@pytest.mark.parametrize("form", FORMS)
def test_steps_that_are_all_left_out(tmp_path: Path, form: str) -> None:
    finding = first_of(say(tmp_path, "loss does not go down", *write(FORMS[form])))

    assert (finding.code, finding.culprits.ranks) == ("V503", [])
    assert finding.details["skipped"] in (70, 80)  # lines that count none are not read


def test_long_log_of_skips(tmp_path: Path) -> None:
    lines = list(write(FORMS["a share"]))
    lines += [
        FORMS["a share"].format(step=n, scale=0, skipped=n - 2600) for n in range(2730, 9000, 10)
    ]
    assert first_of(say(tmp_path, *lines)).details["skipped"] > 2000


@pytest.mark.parametrize(
    "form",
    [
        "step {0} loss 7.1 loss_scale {1:g}",
        "{{'loss': 7.1, 'grad_scale': {1:g}, 'step': {0}}}",
        '{{"epoch": 1, "loss": "7.1", "loss_scale": "{1}", "num_updates": "{0}"}}',
    ],
)
def test_scale_that_falls_to_nothing(tmp_path: Path, form: str) -> None:
    falling = [65536, 512, 0.5, 0.0004, 0.00003, 0]
    lines = [form.format(10 * at, scale) for at, scale in enumerate(falling)]
    finding = first_of(say(tmp_path, *lines))
    assert (finding.code, finding.details["scale_to"]) == ("V503", 0)

    steady = [form.format(10 * at, scale) for at, scale in enumerate([4, 2, 0.5, 0.5, 0.25, 0.25])]
    assert say(tmp_path, *steady).findings == []
    grows = [*lines, *(f"step {100 + at} loss 7.1 loss_scale {2**at}" for at in range(6))]
    assert say(tmp_path, *grows).findings == []


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "times",
    [
        pytest.param({"begin": 9999}, id="none"),
        pytest.param({"begin": 2630, "until": 2670}, id="it went on"),
        pytest.param({"first": 0, "begin": 0, "until": 25}, id="search of a new scaler"),
    ],
)
def test_few_skips_are_none(tmp_path: Path, form: str, times: dict[str, int]) -> None:
    lines = list(write(FORMS[form], **times))
    assert "V503" not in [one.code for one in say(tmp_path, *lines).findings]


def test_what_is_skipped_besides_steps_is_none(tmp_path: Path) -> None:
    lines = [
        f"step {n} loss 2.1 skipped {n}/{2 * n} files without a caption" for n in range(10, 90, 10)
    ]
    assert say(tmp_path, *lines).findings == []


def floor(scales: list[float], *, since: int = 8, first: int = 5016) -> list[str]:
    """Print lines of Megatron, each behind some steps of which so many were left out."""
    form = FORMS["Megatron"]
    return [
        form.format(step=first + 8 * at, scale=scale, since=since)
        for at, scale in enumerate(scales)
    ]


def test_steps_left_out_at_the_smallest_scale(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, *floor([16.0, 1.0, 1.0])))

    assert (finding.code, finding.culprits.ranks) == ("V503", [])
    assert finding.details["scale_to"] == 1


@pytest.mark.parametrize(
    "lines",
    [
        # the search of a new scaler goes on
        floor([65536.0, 256.0, 1.0]),
        # it found its scale
        [*floor([65536.0, 256.0, 1.0, 1.0]), *floor([1.0] * 5, since=0, first=5048)],
        # one of two steps
        floor([4.0, 1.0, 1.0], since=4),
    ],
)
def test_scale_that_may_fall_on_is_none(tmp_path: Path, lines: list[str]) -> None:
    assert all(one.code != "V503" for one in say(tmp_path, *lines).findings)


FLAGS = [
    "step {0} loss 7.9 scale {1} stepped=False",
    "[rank0] it={0} grad_scale={1} skipped=True loss=7.9",
    "{{'iter': {0}, 'loss_scale': {1}, 'loss': 7.9}} skipped: True",
]


@pytest.mark.parametrize("form", FLAGS)
@pytest.mark.parametrize("cut", [range(0), range(4, 15)], ids=["all", "cut"])
def test_steps_that_a_loop_says_it_did_not_make(tmp_path: Path, form: str, cut: range) -> None:
    lines = [form.format(90 + at, 256.0 / 2**at) for at in range(20) if at not in cut]
    finding = first_of(say(tmp_path, "warming up", *lines))

    assert (finding.code, finding.details["skipped"]) == ("V503", 19)
    assert finding.details["scale_to"] < 1


@pytest.mark.parametrize("form", FLAGS)
@pytest.mark.parametrize(
    "scales",
    [
        pytest.param([256.0] * 20, id="steps-that-add-up-gradients"),
        pytest.param([65536.0 / 2**at for at in range(9)], id="search"),
    ],
)
def test_steps_not_made_at_a_usual_scale_are_none(
    tmp_path: Path, form: str, scales: list[float]
) -> None:
    lines = [form.format(90 + at, scale) for at, scale in enumerate(scales)]

    assert all(one.code != "V503" for one in say(tmp_path, *lines).findings)
