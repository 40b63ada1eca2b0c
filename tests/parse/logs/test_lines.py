"""What stands before a line is taken off: stamps, prefixes, headers; and told whose it is."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.parse.logs.lines.labels import find_labels
from whystuck.parse.logs.lines.lines import parse_line
from whystuck.parse.logs.lines.times import Anchor, Stamp, place_stamp, read_stamp

TEXT = "it failed"
PREFIXES = {
    "logs/node0.err:18231:[rank3]:": (3, ""),
    "node0.out:[rank3]: ": (3, ""),
    "./a/rank7.log:77:[rank3]: ": (3, ""),
    "18231:[rank3]:": (3, ""),
    "rank3/stdout.log:5:": (UNKNOWN_RANK, ""),
    "[rank3]:": (3, ""),
    "[rank3]: ": (3, ""),
    "rank3: ": (3, ""),
    "[rank: 3] ": (3, ""),
    "[Rank 3] ": (3, ""),
    "[default1]:[rank3]:": (3, ""),
    "2026-03-04T10:00:00.123456Z out [rank3]: ": (3, ""),
    "2026-03-04T10:00:00.123456789Z stderr F [rank3]: ": (3, ""),
    "[pod/train-3/pytorch] [rank3]: ": (3, "train-3"),
    "[rank3]:[E1019 01:04:03.357615073 ProcessGroupNCCL.cpp:1375] ": (3, ""),
    "[rank3]:[E ProcessGroupNCCL.cpp:563] [Rank 0] ": (3, ""),
    "[2026-03-07 23:55:16,757] [ERROR] [launch.py:322:sigkill_handler] ": (UNKNOWN_RANK, ""),
    "W0304 10:02:31.250000 4000 torch/distributed/run.py:852] ": (UNKNOWN_RANK, ""),
    "[2026-03-12 03:12:00] n0:4103:4163 [1] ": (UNKNOWN_RANK, "n0"),
    "(RayTrainWorker pid=123, ip=10.0.0.2) ": (UNKNOWN_RANK, "10.0.0.2"),
    "May 11 02:07:44 n0 kernel: [1836350.901000] ": (UNKNOWN_RANK, "n0"),
    "2025-03-15T11:59:30.000000+00:00 n1 kernel: ": (UNKNOWN_RANK, "n1"),
    "2026-03-15T11:59:30+0000 n1 sshd[44]: ": (UNKNOWN_RANK, "n1"),
    "kern  :warn  : 2025-01-21T04:41:44,285060+00:00 ": (UNKNOWN_RANK, ""),
    "6,3973,227996636,-;": (UNKNOWN_RANK, ""),
    "[2373392.250000] ": (UNKNOWN_RANK, ""),
    "[Mon Jun  1 08:29:55 2026] ": (UNKNOWN_RANK, ""),
    "[2026-04-02T05:44:10.123] ": (UNKNOWN_RANK, ""),
    "[ERROR] 2026-02-03-04:05:06 (PID:90211, Device:1, RankID:3) ": (3, ""),
    "[ERROR] 2026-02-03-04:05:06 (PID:90211, Device:1, RankID:-1) ": (UNKNOWN_RANK, ""),
    "[ERROR] HCCL(17528,python3):2026-03-18-10:34:43.141.966 [detect.cc:132] ": (UNKNOWN_RANK, ""),
    "[Feb 25 2025 13:59:45] [INFO] ": (UNKNOWN_RANK, ""),
    "03/04/2026 10:00:00 ": (UNKNOWN_RANK, ""),
}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefix_is_taken_off_and_tells_whose_a_line_is(prefix: str) -> None:
    line = parse_line(f"{prefix}{TEXT}".encode())

    assert line.text == TEXT
    assert (line.rank, line.node) == PREFIXES[prefix]


@pytest.mark.parametrize(
    "text",
    [
        "srun: error: gpu-03: task 5: Killed",
        "slurmstepd: error: *** STEP 5.0 ON n0 CANCELLED ***",
        "RuntimeError: CUDA error",
        "[0]:",
        "ERROR train: step failed",
        '  File "/app/train.py", line 3, in main',
        "step 3: loss 2.1",
    ],
)
def test_text_that_looks_like_a_prefix_is_kept(text: str) -> None:
    assert parse_line(text.encode()).text == text


@pytest.mark.parametrize(
    ("data", "task", "local", "pid"),
    [
        (b" 3: text", 3, -1, 0),
        (b"12: [rank12]: text", 12, -1, 0),
        (b"[1,3]<stderr>:text", 3, -1, 0),
        (b"[prterun-n0-99@1,3]<stdout>: text", 3, -1, 0),
        (b"[default3]:text", -1, 3, 0),
        (b"[trainer3]: text", -1, 3, 0),
        (b"n0:4103:9103 [3] text", -1, -1, 4103),
        (b"W0304 10:02:31.250000 4000 torch/x.py:852] text", -1, -1, 4000),
        (b"[WARNING] RUNTIME(3321,python):2026-06-01-03:12:40.100.200 text", -1, -1, 3321),
        # A thread, as older versions have it.
        (b"E0417 15:00:01.000000 140145133409408 torch/x.py:826] text", -1, -1, 0),
    ],
)
def test_launchers_number_tasks_local_ranks_and_processes(
    data: bytes, task: int, local: int, pid: int
) -> None:
    line = parse_line(data)

    assert (line.task, line.local, line.pid, line.text) == (task, local, pid, "text")


def test_the_outermost_of_several_times_is_taken() -> None:
    line = parse_line(b"2026-03-04T10:00:01.5Z stderr F [2026-03-04 09:59:59] iteration 3")

    assert line.stamp is not None
    assert (line.stamp.ns % 10**11, line.stamp.is_zoned) == (1_500_000_000, True)


def test_error_of_cann_tells_its_process_and_time() -> None:
    line = parse_line(b"EI0002: [PID: 5120] 2026-02-03-04:05:06.700.100 The wait timed out.")

    assert line.pid == 5120
    assert line.stamp == read_stamp("iso", "2026-02-03 04:05:06.700")


def test_time_that_whystuck_wrote_is_told_from_others() -> None:
    ours = parse_line(b"2026-03-04T10:00:00.123456Z err text").stamp
    other = parse_line(b"2026-03-04T10:00:00.123456Z stderr F text").stamp

    assert ours is not None
    assert other is not None
    assert (ours.is_capture, other.is_capture) == (True, False)


@pytest.mark.parametrize(
    ("data", "rank", "node", "text"),
    [
        (
            b'{"log":"[rank3]: boom\\n","stream":"stderr","time":"2026-03-04T10:00:00.1Z"}',
            3,
            "",
            "boom",
        ),
        (b'{"ts":"2026-03-04T10:00:00Z","msg":"boom","rank":2,"host":"n1"}', 2, "n1", "boom"),
        (b'{"message":"boom","rank":"7"}', 7, "", "boom"),
        (b'{"loss": 1}', UNKNOWN_RANK, "", '{"loss": 1}'),
        (b'{"log": broken', UNKNOWN_RANK, "", '{"log": broken'),
        (b'{"message":"boom","rank":true}', UNKNOWN_RANK, "", "boom"),
    ],
)
def test_lines_of_json_are_opened(data: bytes, rank: int, node: str, text: str) -> None:
    line = parse_line(data)

    assert (line.rank, line.node, line.text) == (rank, node, text)


def test_hosts_and_containers_before_most_lines_are_found() -> None:
    hosts = find_labels([b"node1: step 1", b"node2: step 1", b"node1: x", b"node2: y: z"])
    pods = find_labels([b"worker-0  | step 1", b"worker-1  | step 1"] * 3)

    assert hosts == {"node1", "node2"}
    assert pods == {"worker-0", "worker-1"}
    line = parse_line(b"node2: Traceback (most recent call last):", hosts)
    assert (line.node, line.text) == ("node2", "Traceback (most recent call last):")


@pytest.mark.parametrize(
    "word", [b"NVRM", b"RuntimeError", b"tokenizer", b"Epoch", b"INFO", b"srun"]
)
def test_words_that_lines_begin_with_are_no_hosts(word: bytes) -> None:
    assert not find_labels([word + b": text"] * 9)


def test_colours_left_in_a_line_do_not_hide_a_rank_behind_zeros() -> None:
    assert parse_line(b"\0\0[rank3]: text\r").rank == 3


@pytest.mark.parametrize(
    ("style", "text", "moment"),
    [
        ("iso", "2026-03-04T10:00:00+02:00", datetime(2026, 3, 4, 8, tzinfo=UTC)),
        ("iso", "2026-03-04 10:00:00,5", datetime(2026, 3, 4, 10, 0, 0, 500_000, tzinfo=UTC)),
        ("iso", "2026-03-04_10:00:00", datetime(2026, 3, 4, 10, tzinfo=UTC)),
        ("ctime", "Wed Mar  4 10:00:00 2026", datetime(2026, 3, 4, 10, tzinfo=UTC)),
        ("mail", "Wed, 04 Mar 2026 10:00:00 +0000", datetime(2026, 3, 4, 10, tzinfo=UTC)),
        ("fabric", "Mar 04 2026 10:00:00", datetime(2026, 3, 4, 10, tzinfo=UTC)),
        ("slashed", "03/04/2026 10:00:00", datetime(2026, 3, 4, 10, tzinfo=UTC)),
    ],
)
def test_times_are_read(style: str, text: str, moment: datetime) -> None:
    stamp = read_stamp(style, text)

    assert stamp is not None
    assert stamp.ns == int(moment.timestamp() * 10**6) * 1000


@pytest.mark.parametrize("text", ["2026-02-31 10:00:00", "2026-13-01 10:00:00", "x"])
def test_what_is_no_time_is_not_read(text: str) -> None:
    assert read_stamp("iso", text) is None


@pytest.mark.parametrize(
    ("style", "text", "near", "year"),
    [
        ("syslog", "Dec 31 23:59:59", datetime(2026, 1, 1, tzinfo=UTC), 2025),
        ("syslog", "Jan  1 00:00:01", datetime(2025, 12, 31, tzinfo=UTC), 2026),
        ("glog", "E429 13:55:49.384372190", datetime(2026, 4, 29, tzinfo=UTC), 2026),
        ("syslog", "Feb 29 10:00:00", datetime(2026, 3, 1, tzinfo=UTC), 2026),
    ],
)
def test_year_is_the_one_that_is_nearest(style: str, text: str, near: datetime, year: int) -> None:
    stamp = read_stamp(style, text)
    time = place_stamp(stamp, Anchor(int(near.timestamp()) * 10**9), "n0")

    assert time is not None
    assert datetime.fromtimestamp(time.ns // 10**9, UTC).year == year


def test_month_without_a_zero_is_told_from_a_day() -> None:
    april, november = (
        read_stamp("glog", "E429 13:55:49.384372190"),
        read_stamp("glog", "E1129 13:55:49.384372190"),
    )

    assert april is not None
    assert november is not None
    assert datetime.fromtimestamp(april.ns // 10**9, UTC).month == 4
    assert datetime.fromtimestamp(november.ns // 10**9, UTC).month == 11


def test_seconds_since_boot_are_compared_with_each_other_only() -> None:
    stamp = Stamp(5 * 10**9, 1000, "boot")

    alone = place_stamp(stamp, Anchor(), "n0/dmesg.txt")
    placed = place_stamp(stamp, Anchor(boot_ns=10**18), "n0")

    assert alone is not None
    assert placed is not None
    assert alone.clock != "n0/dmesg.txt"
    assert (placed.ns, placed.clock) == (10**18 + 5 * 10**9, "n0")


@given(st.binary(max_size=300))
def test_any_line_is_read(data: bytes) -> None:
    parse_line(data, frozenset({"n0"}))


@pytest.mark.parametrize("prefix", ["run/rank_3.log:77:", "run/rank_3.log-78-", "rank3.err:"])
def test_file_that_grep_names_tells_a_rank_and_one_writer(prefix: str) -> None:
    line = parse_line(f"{prefix}{TEXT}".encode())

    assert (line.text, line.task) == (TEXT, 3)
    assert prefix.startswith(line.owner)
    assert line.owner[-1] in "gr"


@pytest.mark.parametrize(
    "text",
    [
        "train.py:88: UserWarning: x",
        "csrc/a.cpp:685: error: x",
        "12:30:45 x",
        "812: step",
        "in out.log 5: x",
    ],
)
def test_place_in_code_or_a_time_is_no_prefix_of_grep(text: str) -> None:
    line = parse_line(text.encode())

    assert line.owner == "" or line.task == 812


@pytest.mark.parametrize("prefix", ["e3 [rank9]: ", "gpu-c14: [rank9]: ", "node3.int [Rank 9] "])
def test_host_before_the_bracket_of_a_rank_is_that_of_the_rank(prefix: str) -> None:
    line = parse_line(f"{prefix}{TEXT}".encode())

    assert (line.text, line.rank, line.node) == (TEXT, 9, prefix.partition(" ")[0].rstrip(":"))


@pytest.mark.parametrize("text", ["step12 [rank9]: x", "epoch-3 [rank9] x", "from e3 to [rank9] x"])
def test_word_before_the_bracket_of_a_rank_is_no_host(text: str) -> None:
    assert parse_line(text.encode()).node == ""
