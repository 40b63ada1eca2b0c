"""Tables of the times of hosts: which of them is slow, and when none is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

FORMS = {
    "blanks": ("node      ranks    mean step compute (ms)", "{0}       {1}-{2}      {3:.1f}"),
    "bars": ("| host | ranks | fwd_ms | allreduce_ms |", "| {0} | {1}-{2} | {3:.1f} | {4:.1f} |"),
    "comma": ("hostname, step time (s), gpus", "{0}, {5:.3f}, 8"),
    "tabs": ("Node\tcompute ms\twait ms", "{0}\t{3:.1f}\t{4:.1f}"),
    "units": ("node      step_time     loss", "{0}       {5:.3f} s     2.11"),
}


def table(form: str, times: list[float]) -> list[str]:
    head, row = FORMS[form]
    told = [
        row.format(f"k{k:02}", 8 * k, 8 * k + 7, ms, 1700 - ms, ms / 1000)
        for k, ms in enumerate(times)
    ]
    return [head, *told]


@pytest.mark.parametrize("form", FORMS)
def test_host_that_takes_longer_is_named(tmp_path: Path, form: str) -> None:
    finding = first_of(say(tmp_path, *table(form, [811.2, 809.9, 1604.9, 812.0]), "what is it"))

    assert (finding.code, finding.culprits.nodes) == ("S302", ["k02"])
    assert finding.culprits.ranks == ([*range(16, 24)] if "ranks" in FORMS[form][0] else [])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "times",
    [
        [811.2, 809.9, 815.9, 812.0],
        [811.2, 1604.9],
        [811.2, 1604.9, 1611.0],
        [600, 900, 1200, 1500],
    ],
    ids=["alike", "two", "most", "spread"],
)
def test_hosts_that_differ_by_nothing_clear_are_not_named(
    tmp_path: Path, form: str, times: list[float]
) -> None:
    found = say(tmp_path, *table(form, times)).findings

    assert all(one.code != "S302" for one in found)


def test_host_that_only_waits_is_not_slow(tmp_path: Path) -> None:
    lines = ["node    allreduce wait ms", *(f"k{k}    {9 if k == 2 else 790}.0" for k in range(4))]
    lines += [
        "node    barrier time (ms)",
        *(f"k{k}    {990 if k == 2 else 79}.0" for k in range(4)),
    ]

    assert all(one.code != "S302" for one in say(tmp_path, *lines).findings)
