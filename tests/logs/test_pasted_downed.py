"""Ports that tools show to be down, beside lines that say that they went down."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

WAIT = (
    "[rank{0}]:[E1030 01:33:20.611028331 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=904413, OpType=_REDUCE_SCATTER_BASE, "
    "NumelIn=218112000, NumelOut=13632000, Timeout(ms)=1200000) ran for 1200020 milliseconds "
    "before timing out."
)
WAITS = [WAIT.format(rank) for rank in (0, 13)]
EVENTS = {
    "NCCL": [
        (
            "h2:61233:62899 [5] transport/net_ib.cc:94 NCCL WARN NET/IB : mlx5_5:1 Got async "
            "event : port error"
        )
    ],
    "kernel": [
        "Oct 30 01:13:16 h2 kernel: mlx5_core 0000:bd:00.0 ens5f0np0: Link down",
        (
            "Oct 30 01:13:16 h2 kernel: mlx5_core 0000:bd:00.0: Port module event: module 5, Cable "
            "error, Unknown error"
        ),
    ],
    "broadcom": [
        "h2: [Thu Oct 30 01:13:16 2026] bnxt_en 0000:bd:00.0 ens5f0np0: NIC Link is Down",
    ],
}
PORT = """\
CA 'mlx5_5'
        CA type: MT4129
        Number of ports: 1
        Port 1:
                State: {0}
                Physical state: {1}
                Rate: 400
                Link layer: Ethernet"""
DOWN = {
    "ibstat": ["h2 $ ibstat mlx5_5", *PORT.format("Down", "Disabled").splitlines()],
    "polling": ["[ops@h2 ~]$ ibstat mlx5_5", *PORT.format("Down", "Polling").splitlines()],
    "netdev": ["h2 $ ibdev2netdev | grep mlx5_5", "mlx5_5 port 1 ==> ens5f0np0 (Down)"],
    "ethtool": [
        "h2 $ ethtool ens5f0np0 | tail -3",
        "        Link detected: no",
    ],
    "settings": [
        "h2 $ sudo ethtool ens5f0np0",
        "Settings for ens5f0np0:",
        "        Speed: Unknown!",
        "        Link detected: no (No cable)",
    ],
    "ip": [
        "h2 $ ip link show ens5f0np0",
        (
            "7: ens5f0np0: <NO-CARRIER,BROADCAST,MULTICAST,UP> mtu 9000 qdisc mq state DOWN mode "
            "DEFAULT group default qlen 1000"
        ),
    ],
    "brief": [
        "me@h2:~$ ip -br link | grep ens5",
        "ens5f0np0        DOWN           a0:88:c2:71:9a:c2 <NO-CARRIER,BROADCAST,MULTICAST,UP>",
    ],
    "rdma": ["h2 $ rdma link", "link mlx5_5/1 state DOWN physical_state DISABLED netdev ens5f0np0"],
    "sentence": ["and `ibstat mlx5_5` there says State: Down / Physical state: Polling again"],
    "sentence of a host": ["ibstat mlx5_5 on h2 tells State: Down, Physical state: Disabled"],
    "sysfs": ["h2 $ cat /sys/class/infiniband/mlx5_5/ports/1/state", "1: DOWN"],
}
NOT_DOWN = {
    "nothing": [],
    "up": ["h2 $ ibstat mlx5_5", *PORT.format("Active", "LinkUp").splitlines()],
    "other card": ["h2 $ ibdev2netdev", "mlx5_2 port 1 ==> ens2f0np0 (Down)"],
    "other interface": ["h2 $ ethtool eno2", "        Link detected: no"],
    "bridge": ["h2 $ ip -br link", "docker0  DOWN  02:42:71:9a:c2:00 <NO-CARRIER,BROADCAST,UP>"],
    "other host": ["h1 $ ibstat mlx5_5", *PORT.format("Down", "Disabled").splitlines()],
    "sentence of another host": ["ibstat mlx5_5 on h1 tells State: Down"],
    "sentence that it is up": ["`ibstat mlx5_5` says State: Active / Physical state: LinkUp"],
    "up again": [
        *("h2 $ ibstat mlx5_5", *PORT.format("Down", "Polling").splitlines()),
        *("h2 $ ibstat mlx5_5", *PORT.format("Active", "LinkUp").splitlines()),
    ],
}
# Names of a card and of its interface are the same thing only where something says so.
BOTH = ["h2 $ ibdev2netdev | grep mlx5_2", "mlx5_2 port 1 ==> ens2f0np0 (Up)"]


@pytest.mark.parametrize("sign", EVENTS)
@pytest.mark.parametrize("tool", DOWN)
def test_port_that_went_down_and_is_down_is_told(tmp_path: Path, tool: str, sign: str) -> None:
    found = first_of(say(tmp_path, *WAITS, *EVENTS[sign], *DOWN[tool]))

    assert (found.code, found.culprits.nodes, found.culprits.ranks) == ("N408", ["h2"], [])
    assert "down" in found.summary


@pytest.mark.parametrize("sign", ["NCCL", "kernel"])
@pytest.mark.parametrize("tool", NOT_DOWN)
def test_link_that_nobody_shows_to_be_down_is_an_event_of_the_host(
    tmp_path: Path, tool: str, sign: str
) -> None:
    found = first_of(say(tmp_path, *WAITS, *EVENTS[sign], *BOTH, *NOT_DOWN[tool]))

    assert (found.code, found.culprits.nodes) == ("C208", ["h2"])


def test_card_that_broke_is_told_before_its_port(tmp_path: Path) -> None:
    broken = (
        "Oct 30 01:13:10 h2 kernel: mlx5_core 0000:bd:00.0: device's health compromised - reached "
        "miss count"
    )

    found = first_of(say(tmp_path, *WAITS, broken, *EVENTS["kernel"], *DOWN["ibstat"]))

    assert (found.code, found.culprits.nodes) == ("C208", ["h2"])


@pytest.mark.parametrize("tool", DOWN)
def test_port_alone_that_is_down_ends_no_job(tmp_path: Path, tool: str) -> None:
    raised = ["Traceback (most recent call last):", '  File "/w/a.py", line 3, in f', "KeyError: 1"]
    report = say(tmp_path, *DOWN[tool], *(f"[rank3]: {line}" for line in raised))

    assert [one.code for one in report.findings if one.severity != "note"] == ["C204"]


SAID = {
    "only one": "I looked at dmesg on all nodes, only h2 has something around that time:",
    "just one": "went through the kernel logs (dmesg) of all four, just h2 shows this:",
    "on": "this is from dmesg on h2:",
}
CTIME = "[Fri Oct 30 01:13:16 2026] mlx5_core 0000:bd:00.0 ibs5: Link down"


@pytest.mark.parametrize("said", SAID)
def test_host_of_a_kernel_log_is_the_one_that_a_sentence_names(tmp_path: Path, said: str) -> None:
    port = "now `ibstat mlx5_5` says State: Down / Physical state: Polling"
    found = first_of(say(tmp_path, *WAITS, "", SAID[said], "", CTIME, "", port))

    assert (found.code, found.culprits.nodes) == ("N408", ["h2"])


@pytest.mark.parametrize(
    "said", ["dmesg has only mlx5_core lines like this:", "only few say more than dmesg:"]
)
def test_sentence_about_a_kernel_log_that_names_no_host(tmp_path: Path, said: str) -> None:
    found = first_of(say(tmp_path, *WAITS, "", said, "", CTIME))

    assert (found.code, found.culprits.nodes) == ("C208", [])


NO_CARD = "h2:61233:62899 [5] net_ib.cc:94 NCCL WARN NET/IB : Got async event : port error"


@pytest.mark.parametrize("tool", ["ibstat", "ibstatus"])
@pytest.mark.parametrize("behind", ["| grep -E 'State|Rate'", "| egrep -i state"])
def test_port_asked_for_below_another_one_is_its_own(
    tmp_path: Path, tool: str, behind: str
) -> None:
    """What `grep` leaves of a second card does not say of which it is."""
    other = [f"$ {tool} mlx5_4 {behind}", f"{' ' * 16}State: Active", f"{' ' * 16}Rate: 400"]
    found = first_of(say(tmp_path, *WAITS, NO_CARD, *DOWN["ibstat"], *other))

    assert (found.code, found.culprits.nodes) == ("N408", ["h2"])
    assert "mlx5_5 " in found.summary


def test_port_that_came_up_again_is_none(tmp_path: Path) -> None:
    again = ["$ ibstat mlx5_5 | grep State", "                State: Active"]
    report = say(tmp_path, *WAITS, NO_CARD, *DOWN["ibstat"], *again)

    assert all(one.code != "N408" for one in report.findings)


BOTH_SAY = {
    "merged": [*EVENTS["kernel"], *EVENTS["NCCL"]],
    "NCCL first": [*EVENTS["NCCL"], EVENTS["kernel"][0]],
    "broadcom": [*EVENTS["broadcom"], *EVENTS["NCCL"]],
    "of one host": [CTIME, *EVENTS["NCCL"]],
}


@pytest.mark.parametrize("form", BOTH_SAY)
@pytest.mark.parametrize("wait", [True, False], ids=["others wait", "alone"])
def test_port_that_went_down_by_the_kernel_and_by_nccl_is_down(
    tmp_path: Path, form: str, *, wait: bool
) -> None:
    found = first_of(say(tmp_path, *(WAITS if wait else []), *BOTH_SAY[form]))

    assert (found.code, found.culprits.nodes, found.culprits.ranks) == ("N408", ["h2"], [])


MANAGED = "Oct 30 01:13:16 h2 kernel: ice 0000:04:00.0 eno1: NIC Link is Down"
OTHER_HOST = "Oct 30 01:13:16 h7 kernel: mlx5_core 0000:bd:00.0 ens5f0np0: Link down"
BROKE = (
    "Oct 30 01:13:15 h2 kernel: mlx5_core 0000:bd:00.0: device's health compromised - reached "
    "miss count"
)
FATAL = (
    "h2:61233:62899 [5] transport/net_ib.cc:94 NCCL WARN NET/IB : mlx5_5:1 Got async event : "
    "local catastrophic error"
)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([MANAGED, *EVENTS["NCCL"]], id="of the board"),
        pytest.param([OTHER_HOST, *EVENTS["NCCL"]], id="of another host"),
        pytest.param([BROKE, *EVENTS["kernel"], *EVENTS["NCCL"]], id="the card broke"),
        pytest.param([*EVENTS["kernel"], FATAL], id="an error of the card"),
        pytest.param([*EVENTS["kernel"], *EVENTS["NCCL"], *NOT_DOWN["up"]], id="shown to be up"),
    ],
)
def test_what_does_not_tell_twice_of_a_port_is_an_event_of_the_host(
    tmp_path: Path, lines: list[str]
) -> None:
    found = first_of(say(tmp_path, *WAITS, *lines))

    assert found.code == "C208"


def test_port_that_came_back_by_the_kernel_flaps(tmp_path: Path) -> None:
    up = EVENTS["kernel"][0].replace("down", "up")
    found = first_of(say(tmp_path, *WAITS, *BOTH_SAY["merged"], up))

    assert found.code == "N408"
    assert "flaps" in found.summary
