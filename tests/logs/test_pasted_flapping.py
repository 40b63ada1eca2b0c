"""Ports of InfiniBand and RoCE that lose their link and get it back, as NCCL and kernels tell."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

ASYNC = (
    "{0}:4100:4177 [2] transport/net_ib.cc:101 NCCL WARN NET/IB : {1}:1 Got async event : port {2}"
)
KERNEL = "[{3}] mlx5_core 0000:5e:00.0 {1}: Link {2}"
SHOWN = "root@{0}:~# dmesg | grep mlx5"
HEALTH = "[9120.4] mlx5_core 0000:5e:00.0: device's health compromised - reached miss count"


def tell_async(*states: str, host: str = "gpu-n07", card: str = "mlx5_4") -> list[str]:
    return [ASYNC.format(host, card, state) for state in states]


def tell_kernel(*states: str, host: str = "gpu-n07", card: str = "ibp94s0") -> list[str]:
    rows = [KERNEL.format(host, card, state, f"91{k}.00{k}") for k, state in enumerate(states, 10)]
    return [SHOWN.format(host), *rows]


@pytest.mark.parametrize(
    ("lines", "often"),
    [
        (tell_async("error", "active"), "once"),
        (tell_async("error", "active", "error"), "2 times"),
        (tell_kernel("down", "up", "down", "up"), "2 times"),
        ([*tell_async("error"), *tell_kernel("down", "up")], "once"),
    ],
    ids=["once", "twice", "kernel", "both"],
)
def test_port_that_comes_up_again_flaps(tmp_path: Path, lines: list[str], often: str) -> None:
    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.nodes) == ("N408", ["gpu-n07"])
    assert f"lost its link {often}" in finding.summary


@pytest.mark.parametrize(
    "lines",
    [
        tell_async("error"),
        tell_kernel("up", "down"),
        [*tell_kernel("down"), *tell_kernel("up", card="ibp187s0")[1:]],
        [*tell_async("error"), *tell_async("active", host="gpu-n09")],
        [*tell_kernel("down", "up"), HEALTH],
    ],
    ids=["stays down", "down last", "other port", "other host", "card broke"],
)
def test_port_that_stays_down_or_broke_is_told_as_before(tmp_path: Path, lines: list[str]) -> None:
    assert first_of(say(tmp_path, *lines)).code == "C208"


@pytest.mark.parametrize("lines", [tell_kernel("up"), tell_async("active")])
def test_port_that_comes_up_is_no_finding(tmp_path: Path, lines: list[str]) -> None:
    assert list(say(tmp_path, *lines).findings) == []
