from __future__ import annotations

import json
from typing import Any

import pytest

from whystuck.collect.peers import find_waits
from whystuck.evidence.call_records import PeerWaitEntry

C10D = "/venv/torch/distributed/distributed_c10d.py"
WORK = "<torch._C._distributed_c10d.Work at 0x7f>"
GROUP = "<torch._C._distributed_c10d.ProcessGroup at 0x7f>"


def _make_dump(name: str, values: dict[str, str], outer: dict[str, str]) -> bytes:
    def frame(name: str, file: str, local: dict[str, str]) -> dict[str, Any]:
        shown = [{"name": key, "repr": value, "arg": True} for key, value in local.items()]
        return {"name": name, "filename": file, "line": 5, "locals": shown}

    frames = [
        frame(name, C10D, values),
        frame(
            "_exception_logger.<locals>.wrapper", "/venv/torch/distributed/c10d_logger.py", outer
        ),
        frame("shift", "/job/train.py", {"secret": "'token'"}),
    ]
    return json.dumps([{"pid": 7, "os_thread_id": 7, "frames": frames}]).encode()


def _find(name: str, values: dict[str, str], outer: dict[str, str]) -> PeerWaitEntry:
    (wait,) = find_waits(_make_dump(name, values, outer))
    return wait


def test_recv_of_the_default_group_has_its_peer_and_tag() -> None:
    values = {"src": "2", "group": "None", "tag": "3", "group_src": "None", "work": WORK}
    wait = _find("recv", values, {"args": "(<Tensor>)", "kwargs": '{"src": 2}'})
    assert (wait.kind, wait.peer, wait.group, wait.tag) == ("recv", 2, "0", 3)
    assert (wait.is_main, wait.sure, wait.site[0].file) == (True, True, "/job/train.py")


def test_recv_from_any_rank_has_no_peer() -> None:
    values = {"src": "None", "group": "None", "tag": "0", "group_src": "None"}
    wait = _find("recv", values, {"args": "(<Tensor>)", "kwargs": "{}"})
    assert (wait.kind, wait.peer, wait.sure) == ("any", -1, False)


@pytest.mark.parametrize(
    ("values", "outer", "peer", "group"),
    [
        ({"dst": "1", "group_dst": "1"}, {"args": "(<Tensor>)", "kwargs": '{"dst": 1}'}, 1, "0"),
        ({"dst": "5", "group_dst": "1"}, {"args": "(<Tensor>, 5, <G>)", "kwargs": "{}"}, 5, ""),
        (
            {"dst": "None", "group_dst": "1"},
            {"args": "(<Tensor>)", "kwargs": '{"group": <G>, "group_dst": 1}'},
            -1,
            "",
        ),
    ],
    ids=["default", "group", "rank of a group"],
)
def test_send_puts_the_group_in_place_of_none(
    values: dict[str, str], outer: dict[str, str], peer: int, group: str
) -> None:
    wait = _find("send", {"group": GROUP, "tag": "0"} | values, outer)
    assert (wait.kind, wait.peer, wait.group) == ("send", peer, group)


def test_other_calls_and_other_bytes_are_no_waits() -> None:
    assert find_waits(_make_dump("all_reduce", {}, {})) == []
    assert find_waits(b"[{}]") == []
    assert find_waits(b"no json") == []


@pytest.mark.parametrize(
    "frames",
    [
        [{"name": "recv", "filename": "/torch/distributed/distributed_c10d.py", "line": 1}],
        [{"name": "recv", "filename": None, "line": 1}],
        [7],
        {},
    ],
)
def test_odd_stacks_tell_of_no_wait(frames: object) -> None:
    assert find_waits(json.dumps([{"frames": frames}]).encode()) == []
    assert find_waits(b"[" * 100_000) == []
