"""C204 and C205 from logs: whose exception it is, or nobody's."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.logs.config_logs import GLOO_CUT, REMOTE, SITE, first, table, tell, trace
from tests.diagnose.scenes import Job

from whystuck.diagnose.algorithms.failures.raised import group_alike, select_own
from whystuck.evidence.finding import Confidence, Verdict
from whystuck.evidence.live import PythonException
from whystuck.evidence.ops.collectives import Frame


def test_exception_of_one_rank_names_it_and_its_line(tmp_path: Path) -> None:
    text = trace(REMOTE, rank=0) + trace("KeyError: 'shard-7'", "train.py:7", "data.py:59", rank=3)
    finding = first(tmp_path, {"train.log": text + trace(REMOTE, rank=1)})

    assert (finding.code, finding.culprits.ranks) == ("C204", [3])
    assert finding.summary == "rank 3 raised KeyError: 'shard-7' in step (data.py:59)"
    assert (finding.where[0].file, finding.where[0].line) == ("/app/data.py", 59)
    assert finding.victims.ranks == "0-1"


def test_exception_in_a_worker_names_the_rank_and_the_line_in_the_worker(tmp_path: Path) -> None:
    # As torch 2.13 prints it.
    text = f"""\
Traceback (most recent call last):
  File "/app/train.py", line 23, in <module>
    for batch in loader:
  File "{SITE}/utils/data/dataloader.py", line 725, in __next__
    data = self._next_data()
  File "{SITE}/_utils.py", line 794, in reraise
    raise exception
ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "{SITE}/utils/data/_utils/worker.py", line 374, in _worker_loop
    data = fetcher.fetch(index)
           ^^^^^^^^^^^^^^^^^^^^
  File "/app/data.py", line 7, in __getitem__
    raise ValueError(f"bad sample {{i}}")
ValueError: bad sample 5
"""
    lines = "".join(f"[rank1]: {line}\n" for line in text.splitlines())
    finding = first(tmp_path, {"train.log": lines + trace(GLOO_CUT, rank=0)})

    assert (finding.code, finding.culprits.ranks) == ("C204", [1])
    assert finding.summary == "rank 1 raised ValueError: bad sample 5 in __getitem__ (data.py:7)"


def test_same_exception_on_all_ranks_blames_none(tmp_path: Path) -> None:
    text = "".join(
        trace(f"IndexError: index {70 + rank} is out of bounds", "model.py:8", rank=rank)
        for rank in range(4)
    )
    finding = first(tmp_path, {"train.log": text})

    assert (finding.code, finding.culprits.ranks) == ("C205", [])
    assert finding.summary.startswith("all 4 ranks raised the same IndexError")
    assert finding.details["ranks"] == [0, 1, 2, 3]


def test_one_message_at_two_lines_is_two_failures(tmp_path: Path) -> None:
    text = trace("KeyError: 'a'", "model.py:8", rank=0) + trace("KeyError: 'a'", "io.py:3", rank=1)
    report = tell(tmp_path, {"train.log": text})

    assert {item.code for item in report.findings} == {"C204"}


def test_same_traceback_without_ranks_is_of_all(tmp_path: Path) -> None:
    # Before a group is made, torch puts no rank before it.
    finding = first(tmp_path, {"train.log": trace("TypeError: no argument 'x'", "sft.py:2") * 3})

    assert (finding.code, finding.culprits.ranks) == ("C205", [])


def test_traceback_without_a_rank_is_of_the_one_that_ended_with_a_code(tmp_path: Path) -> None:
    text = trace("ValueError: no such split", "data.py:4") + table((2, 1), (0, -15), (1, -15))
    finding = first(tmp_path, {"train.log": text})

    assert (finding.code, finding.culprits.ranks) == ("C204", [2])
    assert finding.where[0].rank == 2


def test_all_ranks_of_one_host_name_the_host(tmp_path: Path) -> None:
    logs = {
        f"n1/rank_{rank}.log": trace("OSError: [Errno 5] Input/output error", "io.py:9", rank=rank)
        for rank in (2, 3)
    }
    logs |= {f"n0/rank_{rank}.log": trace(GLOO_CUT, "train.py:96", rank=rank) for rank in (0, 1)}
    report = tell(tmp_path, logs)
    [finding] = [item for item in report.findings if item.code == "C204"]

    assert (finding.culprits.ranks, finding.culprits.nodes) == ([2, 3], ["n1"])
    assert "all ranks of n1, and no others" in finding.summary


def test_few_of_many_ranks_are_named_where_others_only_lost_them(tmp_path: Path) -> None:
    text = "".join(trace(GLOO_CUT, "train.py:96", rank=rank) for rank in (0, 1, 2, 4, 6, 7))
    for rank in (3, 5):
        text += trace(f"KeyError: 'shard-{rank}'", "data.py:59", rank=rank)
    finding = first(tmp_path, {"train.log": text})

    assert (finding.code, finding.culprits.ranks) == ("C204", [3, 5])


def test_logged_exception_that_was_survived_is_no_cause(tmp_path: Path) -> None:
    # `logging.exception` on both ranks; then one of them raises.
    logged = "ERROR:root:bad\n" + trace("KeyError: 'x'", "misc.py:17")
    text = logged + trace("RuntimeError: real", "misc.py:19", rank=1) + logged
    finding = first(tmp_path, {"train.log": text + trace(GLOO_CUT, rank=0) + table((1, 1), (0, 1))})

    assert (finding.code, finding.culprits.ranks) == ("C204", [1])
    assert "RuntimeError: real" in finding.summary


def test_what_was_raised_before_the_peer_was_lost_is_told(tmp_path: Path) -> None:
    # A barrier in `finally` fails after the exception that matters.
    text = trace("ValueError: bad label", "loss.py:5", rank=2)
    text += "[rank2]: \n[rank2]: During handling of the above exception, another exception "
    text += "occurred:\n[rank2]: \n" + trace(GLOO_CUT, "train.py:40", rank=2)
    finding = first(tmp_path, {"train.log": text + trace(GLOO_CUT, "train.py:96", rank=0)})

    assert (finding.code, finding.culprits.ranks) == ("C204", [2])
    assert "ValueError: bad label" in finding.summary


@pytest.mark.parametrize("error", [REMOTE, GLOO_CUT, "subprocess.CalledProcessError: Command 'x'"])
def test_lost_peers_are_no_exceptions_of_ranks(tmp_path: Path, error: str) -> None:
    text = "".join(trace(error, "train.py:96", rank=rank) for rank in range(2))
    report = tell(tmp_path, {"train.log": text})

    assert not {item.code for item in report.findings} & {"C204", "C205"}


def test_full_disk_gets_a_command(tmp_path: Path) -> None:
    text = trace("OSError: [Errno 28] No space left on device", "ckpt.py:44", rank=2)
    finding = first(tmp_path, {"train.log": text + trace(REMOTE, rank=0)})

    assert (finding.code, finding.culprits.ranks) == ("C204", [2])
    assert finding.remedies[0].startswith("df -h")


def test_error_without_a_traceback_is_told(tmp_path: Path) -> None:
    logs = {
        "rank_1.log": "2026-05-15 10:20:30 ERROR failed\nValueError: cannot convert NaN\n",
        "rank_0.log": trace(GLOO_CUT, rank=0),
    }
    finding = first(tmp_path, logs)

    assert (finding.code, finding.culprits.ranks) == ("C204", [1])
    assert finding.confidence is Confidence.LIKELY


# ----------------------------------------------------------------------------------- its parts

USER = (Frame("step", "/app/train.py", 7),)


def raised(rank: int, kind: str, message: str, **more: object) -> PythonException:
    frames = (Frame("send", "/app/push.py", 18), *USER)
    return PythonException(rank, kind, message, frames, source="log", **more)  # type: ignore[arg-type]


def test_broken_pipe_to_a_server_is_the_ranks_own() -> None:
    own = raised(0, "BrokenPipeError", "[Errno 32] Broken pipe")
    queue = Frame("_send", "/usr/lib/python3.11/multiprocessing/connection.py", 368)
    peer = PythonException(1, "BrokenPipeError", "[Errno 32] Broken pipe", (queue, *USER))

    assert select_own([own, peer]) == (own,)


def test_what_the_probe_recorded_goes_before_what_logs_hold() -> None:
    logged = raised(0, "KeyError", "'x'")
    live = PythonException(0, "ValueError", "no", USER)

    assert select_own([logged, live]) == (live,)


def test_caught_exceptions_and_those_of_threads_are_left_out() -> None:
    caught = raised(0, "KeyError", "'x'", is_caught=True)
    thread = raised(1, "KeyError", "'x'", is_main_thread=False)

    assert select_own([caught, thread]) == ()


def test_messages_that_differ_in_data_are_alike() -> None:
    items = [raised(rank, "KeyError", f"'shard-{rank}.tar' of {rank}") for rank in range(3)]
    bare = PythonException(3, "KeyError", "'shard-9.tar' of 4", (), source="log")

    [group] = group_alike([*items, bare])

    assert group.ranks == (0, 1, 2, 3)
    assert group.nameless == 0


@pytest.mark.parametrize("signal", ["Terminated", "Hangup", "Interrupt"])
def test_loader_worker_that_was_ended_with_its_rank_is_no_cause(signal: str) -> None:
    """A launcher ends loader workers with their ranks, and a rank may notice that first."""
    lost = f"DataLoader worker (pid(s) 4711) is killed by signal: {signal}. "
    own = "invalid literal for int() with base 10: 'cover'"
    job = Job().raises(2, "ValueError", own, [Frame("load", "/app/data.py", 7)])
    job.raises(1, "RuntimeError", lost, [Frame("step", "/app/train.py", 22)])
    job.ends(2, code=1).ends(1, code=1)
    for rank in (0, 3):
        job.ends(rank, signal=15, after_launcher_kill=True)
    report = job.of_kind("exit").report()

    assert [(one.code, one.culprits.ranks) for one in report.findings] == [("C204", [2])]
    assert report.verdict is Verdict.CRASHED


def test_loader_worker_that_was_killed_is_one() -> None:
    lost = "DataLoader worker (pid(s) 4711) is killed by signal: Killed. "
    job = Job().raises(1, "RuntimeError", lost, [Frame("step", "/app/train.py", 22)])
    job.ends(1, code=1)
    for rank in (0, 2, 3):
        job.ends(rank, signal=15, after_launcher_kill=True)
    report = job.of_kind("exit").report()

    assert [(one.code, one.culprits.ranks) for one in report.findings] == [("C202", [1])]
