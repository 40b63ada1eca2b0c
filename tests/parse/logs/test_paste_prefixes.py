"""What launchers and collectors put before lines that people paste: as printed, mixed, alike."""

from __future__ import annotations

import pytest
from tests.parse.logs.jobs import read_files, read_job

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.parse.logs.lines.labels import find_labels
from whystuck.parse.logs.lines.lines import parse_line

FAILED = "ValueError: no such bucket"


@pytest.mark.parametrize(
    ("prefix", "task", "node"),
    [
        ("[3]<stderr>:", 3, ""),
        ("[1,3]<stderr>: ", 3, ""),
        ("[1,mpirank:3,algo-2]<stdout>:", 3, "algo-2"),
        ("[prterun-h1-99@1,3]<stderr>: ", 3, ""),
        ("[1,3][h1:881]<stderr>: ", 3, ""),
        ("(VllmWorker rank=3 pid=91) ", 3, ""),
        ("(Trainers rank=3, pid=91) ", 3, ""),
        ("(PolicyGroup rank=3, pid=91, ip=10.1.1.7) ", 3, "10.1.1.7"),
        ("[2026-02-01 10:00:00 TP3] ", 3, ""),
        ("[2026-02-01 10:00:00 DP1 TP3 EP3] ", 3, ""),
    ],
)
def test_prefix_tells_the_task(prefix: str, task: int, node: str) -> None:
    line = parse_line(f"{prefix}{FAILED}".encode())

    assert (line.text, line.task, line.node) == (FAILED, task, node)


@pytest.mark.parametrize("prefix", ["rank 3: ", "RANK 3: ", "rank 3 | ", "RANK 3 | "])
def test_word_and_number_before_a_line_tell_the_rank(prefix: str) -> None:
    line = parse_line(f"{prefix}{FAILED}".encode())

    assert (line.text, line.rank) == (FAILED, 3)


@pytest.mark.parametrize("text", ["rank 3 | 812 ms | 4", "rank 3 |", "rank 3 waits", "Rank 3 | x"])
def test_row_of_a_table_is_not_cut(text: str) -> None:
    assert parse_line(text.encode()).text == text


def test_prefix_of_composer_tells_rank_and_process() -> None:
    line = parse_line(b"rank3[2102][MainThread]: ValueError: no")

    assert (line.rank, line.pid, line.text) == (3, 2102, "ValueError: no")


@pytest.mark.parametrize(
    "text",
    [
        "[3]<tag>: text",
        "(Worker rank=x pid=91) text",
        "[2026-02-01 TP3] text",
        "rank3[2102]: text",
        "[1,mpirank:x]<stdout>: text",
    ],
)
def test_lookalike_of_a_prefix_names_nobody(text: str) -> None:
    line = parse_line(text.encode())

    assert (line.rank, line.task) == (UNKNOWN_RANK, UNKNOWN_RANK)


@pytest.mark.parametrize(
    ("prefix", "node", "device", "local"),
    [
        ("[pod vlm-9b-3 gpu6] ", "vlm-9b-3", 6, -1),
        ("[vlm-9b-3 gpu6]: ", "vlm-9b-3", 6, -1),
        ("2025-05-02 11:00:00,120 [hgx12:cuda:6] ", "hgx12", 6, -1),
        ("[node=atl-04/npu6] ", "atl-04", 6, -1),
        ("[host n12, local_rank 6] ", "n12", -1, 6),
        ("[n12|lr=6] ", "n12", -1, 6),
    ],
)
def test_host_and_device_in_one_box(prefix: str, node: str, device: int, local: int) -> None:
    line = parse_line(f"{prefix}{FAILED}".encode())

    assert (line.text, line.node, line.device, line.local) == (FAILED, node, device, local)


@pytest.mark.parametrize(
    "text",
    ["[step-12 gpu6] loss 2", "[train gpu6] loss 2", "[12:10:00 gpu6] x", "[n12 gpus 6] x"],
)
def test_other_words_beside_a_device_are_no_host(text: str) -> None:
    assert parse_line(text.encode()).node == ""


@pytest.mark.parametrize(
    "box", ["[worker-{}][rank{}] ", "[pytorch-{}][rank {}]: ", "[w{}] [rank{}]: "]
)
def test_replica_and_rank_in_boxes_that_touch(box: str) -> None:
    text = "".join(f"{box.format(one % 2, one)}step 1\n" for one in range(4))
    found = read_job(out=text * 2 + f"{box.format(1, 3)}KeyError: 'mask'\n").logs.events

    assert {(one.rank, one.text) for one in found} == {(3, "KeyError: 'mask'")}


STERN = [
    "vit-worker-0 pytorch step 1",
    "vit-worker-0 pytorch step 2",
    "vit-worker-1 pytorch [rank9]: ValueError: no",
]
KUBETAIL = [f"[{line.replace(' pytorch', ' pytorch]', 1)}" for line in STERN]


@pytest.mark.parametrize("lines", [STERN, KUBETAIL], ids=["stern", "kubetail"])
def test_pod_and_container_before_lines_are_taken_off(lines: list[str]) -> None:
    labels = find_labels([line.encode() for line in lines])
    line = parse_line(lines[-1].encode(), labels)

    # One line of a pod is one, where a pod of its kind has more.
    assert (line.node, line.rank, line.text) == ("vit-worker-1", 9, "ValueError: no")


def test_stern_with_times_and_other_lines_between() -> None:
    lines = [f"{one[:20]} 2026-03-04T10:00:00.1Z{one[20:]}" for one in STERN]
    found = read_job(train="\n".join(["+ vit-worker-0 > pytorch", *lines, *lines]))

    assert {(one.rank, one.node) for one in found.logs.events} == {(9, "vit-worker-1")}


@pytest.mark.parametrize(
    "lines",
    [
        ["loss-1 went 3", "loss-2 fell 4", "loss-3 rose 5"],
        ["epoch done 1", "epoch done 2", "epoch done 3"],
        ["gpt-2 small: ok", "plain text", "more of it", "and more", "gpt-2 small: ok"],
    ],
)
def test_words_that_lines_begin_with_are_no_pods(lines: list[str]) -> None:
    labels = find_labels([line.encode() for line in lines])

    assert not labels


def test_host_of_any_name_before_a_rank_hides_no_rank() -> None:
    text = "".join(f"[server{one}] [rank{rank}]: step 1\n" for one, rank in (("A", 0), ("B", 1)))
    found = read_job(out=text * 3 + "[serverB] [rank1]: ValueError: no\n").logs.events

    assert {(one.rank, one.text) for one in found} == {(1, "ValueError: no")}


@pytest.mark.parametrize(
    "form", ["rank{:02} ", "rank{}: ", "w{:02} ", "2025-01-01 10:00:00 rank{} "]
)
def test_programs_that_number_their_lines_tell_ranks(form: str) -> None:
    text = "".join(f"{form.format(one)}step 1\n" for one in (1, 0, 3, 2))
    found = read_job(out=text * 2 + f"{form.format(3)}ValueError: no\n").logs.events

    assert {one.rank for one in found} == {3}


def test_words_in_boxes_are_no_hosts() -> None:
    assert not find_labels([b"[config] lr 0.1", b"[config] wd 0", b"[model] large", b"[model] x"])


def test_replicas_of_torchx_are_told_apart() -> None:
    text = "trainer/0 step 1\ntrainer/0 step 2\ntrainer/1 step 1\ntrainer/1 ValueError: no\n"

    assert [one.node for one in read_job(out=text).logs.events] == ["trainer/1"]


def test_paths_that_lines_begin_with_are_no_replicas() -> None:
    lines = [b"data/1 has 20 files", b"read data/2", b"data/3 is empty", b"done", b"bye"]

    assert not find_labels(lines)


def test_pod_of_a_collector_that_writes_json_is_told() -> None:
    text = (
        '{"log": "ValueError: no\\n", "kubernetes": {"pod_name": "gpt-worker-2"}}\n'
        '{"message": "ValueError: no", "podName": "gpt-worker-3", "containerName": "pytorch"}\n'
    )

    found = {one.node for one in read_job(train=text).logs.events}
    assert found == {"gpt-worker-2", "gpt-worker-3"}


# ------------------------------------------------------------------- local ranks and processes

SPAWNED = (
    "[2026-04-22 08:00:10,402] [INFO] [launch.py:256:main] process {0} spawned with command: "
    "['/usr/bin/python3', '-u', 'train.py', '--local_rank={1}', '--deepspeed_config', 'z3.json']\n"
)
OLD_SPAWNED = (
    "[2023-04-22 08:00:10,402] [INFO] [launch.py:229:main] process {0} spawned with command: "
    "['/usr/bin/python3', '-u', 'train.py', '--local_rank={1}']\n"
)
KILLED = "[88.2] Memory cgroup out of memory: Killed process 802 (python3) total-vm:1kB\n"


@pytest.mark.parametrize("line", [SPAWNED, OLD_SPAWNED], ids=["new", "old"])
def test_processes_that_deepspeed_started_are_ranks(line: str) -> None:
    text = "".join(line.format(800 + rank, rank) for rank in range(4)) + "step 1\n" * 9

    (file,) = read_files({"out.log": text}).logs.files
    assert file.pid_by_rank == {0: 800, 1: 801, 2: 802, 3: 803}


def test_local_ranks_of_a_second_node_are_moved_on() -> None:
    told = "".join(f"[default{n}]:[rank{8 + n}]: step 1\n" for n in range(3))
    text = told + SPAWNED.format(804, 4) + SPAWNED.format(805, 5)

    (file,) = read_files({"out.log": text}).logs.files
    assert (file.pid_by_rank[12], file.pid_by_rank[13]) == (804, 805)


def test_local_ranks_of_two_hosts_are_nobodys() -> None:
    text = "n1: [default0]:[rank0]: a\n" * 3 + "n2: [default0]:[rank8]: a\n" * 3
    text += "n2: " + SPAWNED.format(804, 4)

    (file,) = read_files({"out.log": text}).logs.files
    assert 804 not in file.pid_by_rank.values()


def test_process_that_somebody_else_spawned_is_no_rank() -> None:
    text = "process 91 spawned with command: ['bash', 'prepare.sh']\n" + "step 1\n" * 9

    (file,) = read_files({"out.log": text}).logs.files
    assert not file.pid_by_rank
