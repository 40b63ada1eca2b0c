"""What ping, ss and netstat show of the way between two hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

WAIT = (
    "[rank3]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:84] "
    "Timed out waiting 1800000ms for recv operation to complete"
)
LOST = "5 packets transmitted, 0 received, 100% packet loss, time 4091ms"
GOT = "5 packets transmitted, 5 received, 0% packet loss, time 4004ms"
SOME = "5 packets transmitted, 3 received, 40% packet loss, time 4004ms"
REFUSED = "5 packets transmitted, 0 received, +5 errors, 100% packet loss, time 4091ms"
ROW = "ESTAB 0      2162688      {own}:{port}     {peer}:47112"
MORE = (
    "\t cubic wscale:7,7 rto:51200 backoff:{tries} rtt:0.3/0.1 mss:8948 cwnd:1 unacked:{unacked} "
    "retrans:1/11 lost:{unacked}"
)


def ping(size: int, loss: str, form: str = "command", peer: str = "10.8.1.9") -> list[str]:
    begun = f"PING {peer} ({peer}) {size}({size + 28}) bytes of data."
    end = [f"--- {peer} ping statistics ---", loss]
    if form == "command":
        return [f"$ ping -c 5 -M do -s {size} {peer}", loss]
    if form == "loop":
        return [begun, "", *end]
    return [f"root@w4:~# ping -M do -s{size} -c5 {peer} | tail -3   # jumbo?", *end]


def socket(form: str, tries: int = 8, queue: int = 12, port: int = 51022) -> list[str]:
    own, peer = "10.8.1.4", "10.8.1.9"
    row = ROW.format(own=own, port=port, peer=peer)
    if form == "two lines":
        return [row, MORE.format(tries=tries, unacked=queue)]
    if form == "one line":
        return [row + MORE.format(tries=tries, unacked=queue).strip("\t")]
    if form == "mapped":
        row = ROW.format(own=f"[::ffff:{own}]%ib0", port=port, peer=f"[::ffff:{peer}]")
        head = "State Recv-Q Send-Q Local Address:Port Peer Address:Port"
        return [head, row, MORE.format(tries=tries, unacked=queue)]
    if form == "timer":
        return [f"{row} timer:(on,1min4sec,{tries})"]
    return [
        f"tcp   0   2162688 {own}:{port} {peer}:47112 ESTABLISHED 88/python on (91.2/{tries}/0)"
    ]


@pytest.mark.parametrize("form", ["two lines", "one line", "mapped", "timer", "netstat"])
@pytest.mark.parametrize("wait", [[], [WAIT]], ids=["alone", "ranks wait"])
def test_connection_without_answers_names_both_ends(
    tmp_path: Path, form: str, wait: list[str]
) -> None:
    finding = first_of(say(tmp_path, *wait, "$ ss -tin", *socket(form)))

    assert (finding.code, finding.culprits.nodes) == ("H122", ["10.8.1.4", "10.8.1.9"])
    assert finding.details["ends"] == [["10.8.1.4", "10.8.1.9"]]
    assert "8 times" in finding.summary


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(socket("two lines", tries=2), id="sent twice"),
        pytest.param(socket("timer", port=22), id="ssh"),
        pytest.param(socket("netstat", port=2049), id="a file server"),
        pytest.param([socket("two lines")[0], "some words", socket("two lines")[1]], id="apart"),
        pytest.param([socket("two lines")[1]], id="no connection"),
    ],
)
def test_connections_that_tell_nothing(tmp_path: Path, lines: list[str]) -> None:
    assert say(tmp_path, *lines).findings == []


@pytest.mark.parametrize("form", ["command", "loop", "prompt"])
@pytest.mark.parametrize("is_first", [False, True])
def test_packets_that_are_lost_for_their_size(tmp_path: Path, form: str, *, is_first: bool) -> None:
    large, small = ping(8972, LOST, form), ping(1400, GOT, form)
    report = say(tmp_path, WAIT, *(large + small if is_first else small + large))

    assert (first_of(report).code, first_of(report).confidence) == ("H122", "possible")
    assert "8972" in first_of(report).summary
    assert "1400" in first_of(report).summary


def test_way_that_takes_no_large_packets_is_why_a_connection_stands(tmp_path: Path) -> None:
    lines = [*socket("two lines"), *ping(8972, LOST), *ping(1400, GOT)]
    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.confidence) == ("H122", "likely")
    assert "MTU" in finding.summary


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([*ping(8972, REFUSED), *ping(1400, GOT)], id="the own host refuses"),
        pytest.param([*ping(8972, LOST), *ping(1400, LOST)], id="nothing gets through"),
        pytest.param([*ping(8972, GOT), *ping(1400, LOST)], id="the small ones"),
        pytest.param([*ping(8972, SOME), *ping(1400, GOT)], id="some"),
        pytest.param([*ping(8972, LOST), *ping(1400, GOT, peer="10.8.1.7")], id="two hosts"),
        pytest.param([LOST, *ping(1400, GOT)], id="no size"),
        pytest.param(
            ["for s in 8972 1400; do ping -M do -s $s 10.8.1.9; done", LOST, GOT], id="a variable"
        ),
    ],
)
def test_packets_that_tell_nothing(tmp_path: Path, lines: list[str]) -> None:
    codes = {one.code for one in say(tmp_path, *lines).findings}

    assert "H122" not in codes


QUEUED = ROW.format(own="10.8.1.4", port=51022, peer="10.8.1.9")


@pytest.mark.parametrize("form", ["command", "loop", "prompt"])
@pytest.mark.parametrize("prefix", ["", "> "])
def test_bytes_that_wait_where_large_packets_get_lost(
    tmp_path: Path, form: str, prefix: str
) -> None:
    lines = [f"{prefix}{line}" for line in (QUEUED, *ping(1392, LOST, form))]
    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.confidence) == ("H122", "possible")
    assert finding.culprits.ranks == []
    assert "1392" in finding.summary


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([QUEUED], id="no ping"),
        pytest.param([QUEUED, *ping(56, LOST)], id="no ping is answered"),
        pytest.param([QUEUED, *ping(1392, LOST), *ping(56, LOST)], id="none of any size"),
        pytest.param([QUEUED, *ping(1392, GOT)], id="it gets through"),
        pytest.param([QUEUED, *ping(1392, SOME)], id="some get through"),
        pytest.param([QUEUED, *ping(1392, REFUSED)], id="the own host refuses"),
        pytest.param([QUEUED, *ping(1392, LOST, peer="10.8.1.7")], id="another host"),
        pytest.param([QUEUED.replace("51022", "22"), *ping(1392, LOST)], id="ssh"),
        pytest.param([QUEUED.replace("2162688", "0"), *ping(1392, LOST)], id="nothing waits"),
        pytest.param([QUEUED.replace("2162688", "312"), *ping(1392, LOST)], id="little waits"),
    ],
)
def test_bytes_that_wait_for_another_reason(tmp_path: Path, lines: list[str]) -> None:
    assert "H122" not in {one.code for one in say(tmp_path, *lines).findings}
