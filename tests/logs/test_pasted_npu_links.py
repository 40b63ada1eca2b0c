"""Ranks on Ascend devices that wait for a link, and links that `hccn_tool` shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.evidence.finding import Severity

RAISED = "[rank{0}]: RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/PG.cpp:71"
WAITED = (
    "[rank{0}]: [PID: 400{0}] 2025-03-02-07:10:11.120.331 Communication_Error_Get_Socket(EI0006): "
    "Getting socket times out. Reason: Remote Rank did not send the data in time."
)
LINK = (
    "        Transport init error. Reason: [Create][DestLink]Create Dest error! createLink "
    "para:rank[{0}]-localUserrank[{1}]-localIpAddr[10.4.0.{1}/0], "
    "dst_rank[{2}]-remoteUserrank[{3}]-remote_ip_addr[10.4.0.{3}/0]"
)


def wait(rank: int, peer: int, level: int = 0) -> list[str]:
    """Write what a rank prints that could not make a link to another one."""
    link = LINK.format(rank + level, rank, peer + level, peer)
    return [RAISED.format(rank), WAITED.format(rank), "        TraceBack:", link]


LOOP = (
    "[ops@np-07 ~]$ for i in 0 1 2; do echo npu $i; hccn_tool -i $i -link -g; "
    "hccn_tool -i $i -ip -g | head -1; done"
)
LOOPED = [
    *(LOOP, "npu 0", "link status: UP", "ipaddr:10.4.0.8"),
    *("npu 1", "link status: DOWN", "ipaddr:10.4.0.9", "npu 2", "link status: UP"),
    "ipaddr:10.4.0.10",
]
ASKED = [
    "np-07:~# hccn_tool -i 1 -ip -g",
    *("ipaddr:10.4.0.9", "netmask:255.255.0.0"),
    *("np-07:~# hccn_tool -i 1 -link -g", "link status: DOWN"),
    *("np-07:~# hccn_tool -i 2 -link -g", "link status: UP"),
]


@pytest.mark.parametrize("shown", [LOOPED, ASKED], ids=["loop", "asked"])
def test_rank_whose_link_is_down_is_named_by_those_that_wait_for_it(
    tmp_path: Path, shown: list[str]
) -> None:
    finding = first_of(say(tmp_path, *wait(0, 9), *wait(3, 9), *shown))

    assert (finding.code, finding.culprits.ranks) == ("H121", [9])
    assert finding.culprits.nodes == ["np-07"]
    assert "npu1" in finding.summary


def test_rank_for_which_all_wait_is_named_without_its_link(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, *wait(2, 5), *wait(4, 5)))

    assert (finding.code, finding.culprits.ranks) == ("H121", [5])


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([*wait(0, 9), *wait(9, 0)], id="each-other"),
        pytest.param([*wait(1, 2), *wait(2, 3), *wait(4, 5)], id="several"),
        pytest.param(wait(1, 7, level=2), id="other-numbers"),
        pytest.param(wait(1, 7)[1:3], id="no-link"),
        pytest.param([line.replace("[rank1]: ", "") for line in wait(1, 7)], id="no-writer"),
    ],
)
def test_ranks_that_wait_for_links_are_not_named(tmp_path: Path, lines: list[str]) -> None:
    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.ranks) == ("H121", [])


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ("EI0002: The wait execution of the Notify register times out. Reason: none", "C211"),
        ("EI0004: The ranktable or rank is invalid.", "C210"),
        ("EJ0001: Failed to initialize the HCCP process. Reason: Maybe the last one runs.", "C210"),
        ("[Error]: ERR02200 DIST call hccl api failed.", "C209"),
    ],
)
@pytest.mark.parametrize(
    "raised",
    [
        RAISED,
        (
            "[rank{0}]: RuntimeError: createHCCLComm:a/b/depend.ts:2186 HCCL function error: "
            "HcclGetRootInfo(&hcclID), error code is 7"
        ),
        (
            "[rank{0}]: RuntimeError: InnerRun:build/CMakeFiles/compiler_depend.ts:225 "
            "OPS function error: HcclAllreduce, error code is 4"
        ),
    ],
    ids=["error", "function", "op"],
)
def test_what_torch_npu_raises_of_hccl_is_no_failure_of_its_rank(
    tmp_path: Path, raised: str, told: str, code: str
) -> None:
    report = say(tmp_path, raised.format(2), f"[rank2]: {told}")

    assert [one.code for one in report.findings if one.severity is not Severity.NOTE] == [code]
    assert not any(one.culprits.ranks for one in report.findings)


@pytest.mark.parametrize(
    "what", ["HCCL function error: HcclReduce", "OPS function error: HcclReduce"]
)
@pytest.mark.parametrize(("number", "code"), [(5, "C204"), (1, "C204"), (9, "C209"), (21, "C209")])
def test_code_of_hccl_tells_whether_a_rank_failed_by_itself(
    tmp_path: Path, number: int, code: str, what: str
) -> None:
    raised = f"[rank1]: RuntimeError: HcclReduce:a/b.ts:2841 {what}"

    assert first_of(say(tmp_path, f"{raised}, error code is {number}")).code == code


def test_link_that_is_down_beside_others_is_told(tmp_path: Path) -> None:
    notify = "[rank4]: EI0002: The wait execution of the Notify register times out."
    finding = first_of(say(tmp_path, notify, *LOOPED))

    assert (finding.code, finding.culprits.nodes) == ("N410", ["np-07"])
    assert "npu1 " in finding.summary


@pytest.mark.parametrize("state", ["UP", "UNKNOWN"])
def test_links_that_are_up_are_no_finding(tmp_path: Path, state: str) -> None:
    report = say(tmp_path, "step 4 loss 2.1", *(line.replace("DOWN", state) for line in LOOPED))

    assert report.findings == []


SOCKET = (
    "[ERROR] HCCL(60{0},python3):2025-02-11-03:20:09.771.0{0} [hccl_socket_manager.cc:778] [61{0}]"
    "[Wait][LinkEstablish]wait socket establish timeout, role[0] rank[{1}] timeout[120]"
)
NUMBERLESS = {
    "seq": ("$(seq 2 5)", "npu4"),
    "seq -s": ("`seq 0 3`", "npu2"),
    "braces": ("{0..3}", "npu2"),
    "list": ("0 2 4 6", "npu4"),
    "variable": ("$CARDS", "npu (answer 3)"),
}
STATES = ["UP", "UP", "DOWN", "UP"]


def ask(devices: str, states: list[str], prompt: str = "[root@np-07 ~]# ") -> list[str]:
    loop = f"{prompt}for d in {devices}; do hccn_tool -i $d -link -g; done"
    return [loop, *(f"link status: {state}" for state in states)]


@pytest.mark.parametrize("form", NUMBERLESS)
@pytest.mark.parametrize("waits", [SOCKET.format(11, 5), wait(1, 9)[1]], ids=["socket", "EI0006"])
def test_link_that_is_down_in_a_loop_without_numbers_is_why_ranks_waited(
    tmp_path: Path, form: str, waits: str
) -> None:
    devices, card = NUMBERLESS[form]
    finding = first_of(say(tmp_path, waits, *ask(devices, STATES)))

    assert (finding.code, finding.culprits.ranks) == ("H121", [])
    assert finding.culprits.nodes == ["np-07"]
    assert f"link of {card} on np-07" in finding.summary


def test_links_of_a_loop_whose_command_is_cut_off_are_told_one_by_one(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, SOCKET.format(11, 5), *ask("0 1 2 3", STATES)[1:]))

    assert finding.code == "H121"
    assert "answer 3" in finding.summary


@pytest.mark.parametrize("states", [["UP"] * 4, ["DOWN"] * 4])
def test_links_that_are_all_alike_do_not_tell_why_ranks_waited(
    tmp_path: Path, states: list[str]
) -> None:
    finding = first_of(say(tmp_path, SOCKET.format(11, 5), *ask("0 1 2 3", states)))

    assert (finding.code, finding.culprits.nodes) == ("H121", [])
    assert "link of" not in finding.summary


NOTIFY = (
    "[rank{0}]: EI0002: [PID: 61{0}] 2026-02-01-08:11:09.501.113 The wait execution of the Notify "
    "register times out. Reason: The Notify register has not received the Notify record from "
    "remote rank: [{1}]. base information: [streamID:[4], taskID[11], taskType[Notify Wait]]"
)
SEATS = {
    "equals": "rank {0} = node np-07 device 2",
    "sentence": "rank {0} runs on host np-07",
    "range": "np-07 has ranks 16-23",
}


@pytest.mark.parametrize("form", ["seq -s", "braces"])
@pytest.mark.parametrize("seat", SEATS)
def test_link_that_is_down_on_the_host_of_the_rank_that_gives_no_sign_is_the_cause(
    tmp_path: Path, seat: str, form: str
) -> None:
    told = [NOTIFY.format(rank, 18) for rank in (17, 19)]
    lines = [*told, SEATS[seat].format(18), *ask(NUMBERLESS[form][0], STATES)]
    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.ranks) == ("N410", [])
    assert finding.culprits.nodes == ["np-07"]


@pytest.mark.parametrize(
    ("seat", "states", "peers"),
    [
        ("rank 18 = node np-08 device 2", STATES, (18, 18)),
        ("rank 18 = node np-07 device 2", ["UP"] * 4, (18, 18)),
        ("rank 18 = node np-07 device 2", ["DOWN"] * 4, (18, 18)),
        ("rank 18 = node np-07 device 2", STATES, (18, 3)),
        ("all sixteen ranks are here", STATES, (18, 18)),
        ("np-07 has ranks 16-23", ["UP", "DOWN", "UP", "UP"], (18, 18)),
    ],
    ids=["other host", "up", "all down", "other peer", "no seat", "other device"],
)
def test_other_links_do_not_explain_a_sign_that_did_not_come(
    tmp_path: Path, seat: str, states: list[str], peers: tuple[int, int]
) -> None:
    told = [NOTIFY.format(rank, peer) for rank, peer in zip((17, 19), peers, strict=True)]
    finding = first_of(say(tmp_path, *told, seat, *ask("0 1 2 3", states)))

    assert finding.code != "N410"
