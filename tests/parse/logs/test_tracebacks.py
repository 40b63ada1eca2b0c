"""Tracebacks are read out of any log: mixed, chained, grouped, in boxes, cut off."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.parse.logs.jobs import read_files, read_job

from whystuck.evidence.live import PythonException
from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.parse.logs.blocks.stacks.tracebacks import MAX_FRAMES, MAX_MESSAGE_LINES

PLAIN = """\
Traceback (most recent call last):
  File "/job/train.py", line 20, in <module>
    train()
  File "/job/train.py", line 12, in train
    raise ValueError("bad batch")
    ^^^^^^
ValueError: bad batch
"""


def read_one(text: str, name: str = "rank-2.log") -> PythonException:
    (item,) = read_files({name: text}).exceptions
    return item


def prefixed(prefix: str, text: str) -> list[str]:
    return [f"{prefix}{line}" for line in text.splitlines()]


def test_traceback_is_read_innermost_first_with_its_lines() -> None:
    item = read_one("step 3\n" + PLAIN + "bye\n")

    assert (item.rank, item.type, item.message) == (2, "ValueError", "bad batch")
    assert [frame.line for frame in item.frames] == [12, 20]
    assert (item.row, item.last_row) == (2, 8)
    assert not item.is_caught


@pytest.mark.parametrize("seed", range(5))
def test_tracebacks_of_many_ranks_that_mix_are_told_apart(seed: int) -> None:
    queues = [prefixed(f"[rank{rank}]: ", PLAIN.replace("20", str(rank))) for rank in range(64)]
    turns = [rank for rank in range(64) for _ in queues[rank]]
    random.Random(seed).shuffle(turns)
    lines = [iter(queue) for queue in queues]
    text = "\n".join(next(lines[turn]) for turn in turns)

    found = read_job(train=text).exceptions

    assert sorted(item.rank for item in found) == list(range(64))
    assert {item.type for item in found} == {"ValueError"}
    assert all(item.frames[-1].line == item.rank for item in found)


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("[default1]:[rank1]: ", 1),
        ("3: ", 3),
        ("[1,3]<stderr>:", 3),
        ("2026-01-01T00:00:00.500000Z err [rank1]: ", 1),
        ("2026-01-01T00:00:00.5Z stderr F [rank1]: ", 1),
    ],
)
def test_traceback_behind_prefixes_is_that_of_the_rank(prefix: str, rank: int) -> None:
    item = read_one("\n".join(prefixed(prefix, PLAIN)), "train.log")

    assert (item.rank, item.type, len(item.frames)) == (rank, "ValueError", 2)


def test_healthy_lines_in_the_middle_do_not_end_a_traceback() -> None:
    lines = PLAIN.splitlines()
    noise = ("step 3 loss 2.1", "tokenizer: killed 0 rows", "INFO: all is well", "")
    text = "\n".join(f"{line}\n{word}" for line, word in zip(lines, itertools.cycle(noise)))

    assert read_one(text).type == "ValueError"


def test_chain_is_what_ended_the_process_and_what_it_came_from() -> None:
    text = (
        PLAIN
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + PLAIN.replace("ValueError: bad batch", "KeyError: 'x'")
        + "\nThe above exception was the direct cause of the following exception:\n\n"
        + PLAIN.replace("ValueError: bad batch", "app.errors.StepFailed: step 3")
    )
    item = read_one(text)

    assert (item.type, item.message) == ("app.errors.StepFailed", "step 3")
    assert [one.type for one in item.origins] == ["ValueError", "KeyError"]
    assert (item.row, item.origins[0].row, item.origins[0].last_row) == (1, 1, 7)


def test_chain_behind_the_prefix_of_torch_is_a_chain() -> None:
    text = (
        PLAIN
        + "\nThe above exception was the direct cause of the following exception:\n\n"
        + PLAIN.replace("ValueError", "RuntimeError")
    )
    item = read_one("\n".join(prefixed("[rank0]: ", text)), "train.log")

    assert (item.rank, item.type, [one.type for one in item.origins]) == (
        0,
        "RuntimeError",
        ["ValueError"],
    )


def test_two_tracebacks_that_are_no_chain_are_two() -> None:
    found = read_job(rank_0=PLAIN + PLAIN.replace("ValueError", "KeyError")).exceptions

    assert [item.type for item in found] == ["ValueError", "KeyError"]


def test_exception_group_has_its_members() -> None:
    text = """\
  + Exception Group Traceback (most recent call last):
  |   File "/job/eg.py", line 5, in <module>
  |     raise ExceptionGroup("eg", errors)
  | ExceptionGroup: eg (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/job/eg.py", line 3, in load
    | ValueError: first
    +---------------- 2 ----------------
    | TypeError: second
    +------------------------------------
step 4
"""
    item = read_one(text)

    assert (item.type, item.message) == ("ExceptionGroup", "eg (2 sub-exceptions)")
    assert [(one.type, one.message) for one in item.origins] == [
        ("ValueError", "first"),
        ("TypeError", "second"),
    ]
    assert item.origins[0].frames[0].line == 3


def test_error_of_a_data_loader_worker_is_the_exception() -> None:
    text = """\
Traceback (most recent call last):
  File "/job/train.py", line 20, in <module>
    main()
RuntimeError: Caught RuntimeError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/site-packages/torch/utils/data/_utils/worker.py", line 309, in _worker_loop
    data = fetcher.fetch(index)
  File "/job/data.py", line 5, in __getitem__
    raise OSError(28)
OSError: [Errno 28] No space left on device

step 3
"""
    item = read_one(text)

    assert (item.type, item.message) == ("OSError", "[Errno 28] No space left on device")
    assert [frame.file for frame in item.frames][::2] == ["/job/data.py", "/job/train.py"]


def test_error_of_a_spawned_process_is_that_of_its_rank() -> None:
    text = """\
Traceback (most recent call last):
  File "/job/spawn.py", line 16, in <module>
    mp.spawn(worker, nprocs=3)
torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 1 terminated with the following error:
Traceback (most recent call last):
  File "/job/spawn.py", line 7, in work
    raise RuntimeError('boom')
RuntimeError: boom
"""
    item = read_one(text, "out.txt")

    assert (item.rank, item.type, item.message) == (1, "RuntimeError", "boom")


def test_box_of_rich_is_read() -> None:
    text = """\
╭─────────────────── Traceback (most recent call last) ────────────────────╮
│ /job/train.py:212 in <module>                                            │
│                                                                          │
│   209                                                                    │
│ ❱ 212     main()                                                         │
│ /job/train.py:40 in main                                                 │
╰──────────────────────────────────────────────────────────────────────────╯
ValueError: bad batch
"""
    item = read_one(text)

    assert (item.type, [frame.line for frame in item.frames]) == ("ValueError", [40, 212])


def test_syntax_error_without_a_call_is_read() -> None:
    text = """\
Traceback (most recent call last):
  File "/job/train.py", line 3, in <module>
    import model
  File "/job/model.py", line 7
    def f(:
          ^
SyntaxError: invalid syntax
"""
    item = read_one(text)

    assert (item.type, item.frames[0].file, item.frames[0].line) == (
        "SyntaxError",
        "/job/model.py",
        7,
    )


def test_syntax_error_of_the_script_itself_has_no_heading() -> None:
    text = '  File "/job/train.py", line 3\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'

    item = read_one(text)

    assert (item.type, item.frames[0].line) == ("SyntaxError", 3)


def test_message_of_many_lines_is_kept_to_its_end() -> None:
    text = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/job/train.py", line 9, in <module>
[rank0]: torch.distributed.DistBackendError: NCCL error in: x.cpp:93, invalid usage
[rank0]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.
[rank0]: Last error:
[rank0]: Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000
step 3
"""
    item = read_one(text, "train.log")

    assert item.message.splitlines()[-1].startswith("Duplicate GPU detected")
    assert item.last_row == 3


def test_exception_that_was_caught_is_marked() -> None:
    steps = "".join(f"step {number} loss 2.1\n" for number in range(60))

    caught = read_one("ERROR could not save\n" + PLAIN + steps)
    fatal = read_one(steps + PLAIN)

    assert caught.is_caught
    assert not fatal.is_caught


def test_steps_of_other_ranks_do_not_make_an_exception_a_caught_one() -> None:
    steps = "".join(f"[rank1]: step {number} loss 2.1\n" for number in range(60))
    text = "\n".join(prefixed("[rank0]: ", PLAIN)) + "\n" + steps

    assert not read_one(text, "train.log").is_caught


def test_exception_of_a_thread_is_not_of_the_main_one() -> None:
    assert not read_one("Exception in thread Thread-3 (pin):\n" + PLAIN).is_main_thread
    assert read_one(PLAIN).is_main_thread


def test_exception_that_python_ignored_is_left_out() -> None:
    text = "Exception ignored in: <function Pool.__del__ at 0x7f>\n" + PLAIN

    assert read_job(rank_0=text).exceptions == ()


@pytest.mark.parametrize(
    "last",
    [
        "AssertionError",
        "socket.timeout: timed out",
        "json.decoder.JSONDecodeError: Expecting value: line 1",
        "botocore.errorfactory.NoSuchKey: An error occurred",
        "KeyboardInterrupt",
        "queue.Empty",
        "MyProblem: no",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "struct.error: unpack requires 4 bytes",
    ],
)
def test_class_of_any_exception_is_told(last: str) -> None:
    assert read_one(PLAIN.replace("ValueError: bad batch", last)).type == last.partition(":")[0]


def test_launchers_own_traceback_is_not_the_cause() -> None:
    text = PLAIN.replace(
        "ValueError: bad batch",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    )

    assert read_job(train=text).exceptions == ()


def test_recursion_and_long_messages_are_bounded() -> None:
    frames = '  File "/job/a.py", line 3, in f\n    f()\n' * 2000
    text = "Traceback (most recent call last):\n" + frames + "RecursionError: too deep\n"
    more = "".join(f"[rank0]: line {number}\n" for number in range(500))

    deep = read_one(text)
    long = read_one("\n".join(prefixed("[rank0]: ", PLAIN)) + "\n" + more, "train.log")

    assert len(deep.frames) <= MAX_FRAMES
    assert len(long.message.splitlines()) <= MAX_MESSAGE_LINES


def test_traceback_that_is_cut_off_is_left_out() -> None:
    cut = PLAIN.rpartition("ValueError")[0]

    assert read_job(rank_0=cut).exceptions == ()
    assert [item.type for item in read_job(rank_0=cut + PLAIN).exceptions] == ["ValueError"]


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 20])
def test_blocks_do_not_matter(block: int) -> None:
    text = "step 1\r\nstep 2\r\n" + PLAIN.replace("\n", "\r\n") + "\r 10%|#\rdone\n"

    (item,) = read_files({"rank-1.log": text}, block).exceptions

    assert (item.rank, item.row, item.last_row, item.message) == (1, 3, 9, "bad batch")


def test_traceback_of_nobody_known_has_no_rank() -> None:
    assert read_one(PLAIN, "train.log").rank == UNKNOWN_RANK


PIECES = st.sampled_from(
    [
        *PLAIN.splitlines(),
        "[rank0]: Traceback (most recent call last):",
        "  + Exception Group Traceback (most recent call last):",
        "  +-+---------------- 1 ----------------",
        "  | ValueError: x",
        "During handling of the above exception, another exception occurred:",
        "Original Traceback (most recent call last):",
        "-- Process 1 terminated with the following error:",
        "╭─ Traceback (most recent call last) ─╮",
        "Fatal Python error: Aborted",
        "Thread 0x00007f1d2b7fe640 (most recent call first):",
        "Failures:",
        "  rank      : 3 (local_rank: 3)",
        "  exitcode  : -9 (pid: 44)",
        "Name:             pod-3",
        "      Exit Code:    137",
        "",
        "\r",
        "\x1b[31m",
        "x" * 9000,
    ]
)


@given(st.lists(PIECES, max_size=30), st.integers(1, 5000))
def test_any_order_of_lines_is_read_however_it_is_cut(pieces: list[str], block: int) -> None:
    text = "\n".join(pieces)

    whole, cut = read_files({"a.log": text}), read_files({"a.log": text}, block)

    assert whole.exceptions == cut.exceptions
    assert whole.exits == cut.exits
    assert whole.fatals == cut.fatals
