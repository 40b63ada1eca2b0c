"""What is told of ranks: their processes, and how far they have come."""

from __future__ import annotations

import os
import signal
import struct
import time
from pathlib import Path

import msgspec
import pytest
from tests.agent.metrics.checking import collect, names
from tests.agent.metrics.children import child

from whystuck.agent.metrics.rank.beat_files import RankBeat
from whystuck.agent.metrics.rank.labels import RankProcess
from whystuck.agent.metrics.rank.processes import ProcessSource
from whystuck.agent.metrics.rank.progress import WINDOW_S, RankSource
from whystuck.collect.beats import BeatSlot

LABELS = ("job", "0")


def test_what_a_process_uses_is_told() -> None:
    with child() as one:
        source = ProcessSource(lambda: [one.as_rank()])
        before = collect(source)
        one.run("t = time.process_time()")
        one.run("while time.process_time() < t + 0.1: pass")
        one.run("kept += [open('/dev/null') for _ in range(10)]")
        one.run("kept.append(b'x' * 50_000_000)")
        one.run("kept.append(open('/dev/zero', 'rb').read(1_000_000))")
        one.run("threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()")
        after = collect(source)

    def grew(*key: str) -> float:
        name, *more = key
        return after[(name, *LABELS, *more)] - before[(name, *LABELS, *more)]

    assert grew("rank_cpu_seconds_total", "user") + grew("rank_cpu_seconds_total", "system") >= 0.09
    assert grew("rank_open_fds") == 10
    assert grew("rank_threads") == 1
    assert grew("rank_resident_memory_bytes") > 40e6
    assert grew("rank_page_faults_total", "minor") > 0
    assert grew("rank_io_bytes_total", "call", "read") >= 1_000_000
    states = {key[3] for key in after if key[0] == "rank_process_state"}
    assert states < {"running", "sleeping"}
    assert after["rank_uptime_seconds", *LABELS] > 0
    assert "rank_proportional_memory_bytes" not in names(after)
    assert source.problem == ""


def test_a_stopped_process_is_told_as_such() -> None:
    with child() as one:
        one.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, one.process.pid, os.WSTOPPED | os.WNOWAIT)

        found = collect(ProcessSource(lambda: [one.as_rank()]))

    assert {key[3] for key in found if key[0] == "rank_process_state"} == {"stopped"}


def test_shared_pages_can_be_divided() -> None:
    with child() as one:
        found = collect(ProcessSource(lambda: [one.as_rank()], is_pss=True))

    pss = found["rank_proportional_memory_bytes", *LABELS]
    assert 0 < pss <= found["rank_resident_memory_bytes", *LABELS] * 1.1


def test_an_ended_process_has_no_series() -> None:
    with child() as one:
        rank = one.as_rank()
        other = msgspec.structs.replace(rank, started_ticks=rank.started_ticks - 1, rank=1)
        # ... nor has one whose pid another process has now
        assert {key[2] for key in collect(ProcessSource(lambda: [rank, other]))} == {"0"}
    assert collect(ProcessSource(lambda: [rank])) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a process of another user")
def test_what_may_not_be_read_is_told() -> None:
    # GIVEN a reader that is not root any more, and a process of root
    with child() as one, child() as reader:
        rank = one.as_rank()
        code = (
            "import os, msgspec; from whystuck.agent.metrics.rank.processes import ProcessSource; "
            "from whystuck.agent.metrics.rank.labels import RankProcess; "
            f"rank = RankProcess(pid={rank.pid}, job='j', started_ticks={rank.started_ticks}); "
            "os.setuid(65534); source = ProcessSource(lambda: [rank]); "
            "found = {sample.family.name for sample in source.collect()}; "
            "assert source.problem == 'io of some ranks may not be read', source.problem; "
            "assert 'whystuck_rank_resident_memory_bytes' in found; "
            "assert 'whystuck_rank_io_bytes_total' not in found"
        )
        reader.run(code)


class Job:
    """A rank whose beats are made up."""

    def __init__(self) -> None:
        # long ago, so that no time of these beats lies in the future
        self.now_s = time.monotonic() - 1000
        self.slot = BeatSlot(int(self.now_s * 1e9), 0, 0, 2, 0, 0, 0, 0, 0)
        self.folder = Path()
        self.source = RankSource(self.list_ranks)

    def list_ranks(self) -> list[RankProcess]:
        beat = RankBeat(1, self.folder, self.slot)
        return [RankProcess(pid=1, job="job", rank=0, started_ticks=1, beat=beat)]

    def beat(self, after_s: float, **counters: int) -> dict[tuple[str, ...], float]:
        """Let time pass, beat, and collect just then; ``counters`` are added."""
        self.now_s += after_s
        for name, more in counters.items():
            counters[name] = getattr(self.slot, name) + more
        values = {name: getattr(self.slot, name) for name in BeatSlot.__dataclass_fields__}
        values |= {"monotonic_ns": int(self.now_s * 1e9), **counters}
        self.slot = BeatSlot(**values)
        return self.collect()

    def collect(self) -> dict[tuple[str, ...], float]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("whystuck.agent.metrics.rank.progress.time.monotonic", lambda: self.now_s)
            return collect(self.source)


def test_time_in_phases_is_told_while_there_are_marks(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    file = tmp_path / "marks-1"
    job = Job()
    job.folder = tmp_path
    assert "rank_phase_seconds_total" not in names(job.beat(1.0))
    totals = [0] * 16
    totals[4:6] = [2_500_000_000, 40]
    file.write_bytes(b"WSMARK01".ljust(128, b"\0") + struct.pack("<16Q", *totals))
    found = job.beat(1.0)
    assert found["rank_phase_seconds_total", *LABELS, "forward"] == 2.5
    assert found["rank_phases_total", *LABELS, "forward"] == 40
    assert {key[3] for key in found if key[0] == "rank_phases_total"} == {"forward"}
    for data in (
        b"",
        b"WSMARK02" + bytes(300),
        b"WSMARK01" + bytes(50),
        b"WSMARK01" + b"\xff" * 300,
    ):
        file.write_bytes(data)
        assert "rank_phases_total" not in names(job.beat(1.0))


def test_step_time_is_the_mean_of_the_last_steps() -> None:
    job = Job()
    for _ in range(40):
        found = job.beat(5.0, optimizer_steps=10)

    assert found["rank_step_seconds", *LABELS] == pytest.approx(0.5)
    assert found["rank_optimizer_steps_total", *LABELS] == 400
    assert found["rank_last_step_age_seconds", *LABELS] == pytest.approx(0, abs=1e-6)

    # WHEN steps become slower, the mean follows within the window
    for _ in range(int(WINDOW_S / 5) + 1):
        found = job.beat(5.0, optimizer_steps=5)
    assert found["rank_step_seconds", *LABELS] == pytest.approx(1.0)


def test_steps_longer_than_the_window_have_a_time() -> None:
    job = Job()
    for second in range(400):
        found = job.beat(1.0, optimizer_steps=second % 100 == 99)

    assert found["rank_step_seconds", *LABELS] == pytest.approx(100.0)


def test_a_rank_that_has_stopped_has_no_step_time_and_an_age() -> None:
    job = Job()
    for _ in range(10):
        job.beat(1.0, optimizer_steps=1, enqueued=4, completed=4)
    for _ in range(100):
        found = job.beat(1.0)

    assert "rank_step_seconds" not in names(found)
    assert found["rank_last_step_age_seconds", *LABELS] == pytest.approx(100.0)
    assert found["rank_last_collective_age_seconds", *LABELS] == pytest.approx(100.0)
    assert found["rank_last_progress_age_seconds", *LABELS] == pytest.approx(100.0)
    assert found["rank_beat_age_seconds", *LABELS] == pytest.approx(0, abs=1e-6)


def test_what_has_not_happened_has_no_age() -> None:
    job = Job()
    job.beat(1.0)
    found = job.beat(1.0, p2p_sent=1)

    ages = {name for name in names(found) if "last" in name}
    assert ages == {"rank_last_progress_age_seconds"}
    assert found["rank_p2p_sent_total", *LABELS] == 1


def test_a_rank_seen_late_says_at_least() -> None:
    job = Job()
    job.slot = BeatSlot(int(job.now_s * 1e9), 0, 0, 2, 500, 900, 899, 0, 0)
    job.collect()
    found = job.beat(30.0)

    assert found["rank_last_collective_age_seconds", *LABELS] == pytest.approx(30.0)
    assert found["rank_collectives_pending", *LABELS] == 1
    # one step is seen to be made, but nobody knows when the one before it was
    found = job.beat(1.0, optimizer_steps=1)
    assert "rank_step_seconds" not in names(found)


def test_beats_that_stop_grow_old() -> None:
    job = Job()
    job.beat(1.0, optimizer_steps=1)
    job.now_s += 20

    found = job.collect()

    assert found["rank_beat_age_seconds", *LABELS] == pytest.approx(20.0)


def test_who_a_rank_is_becomes_labels() -> None:
    told = {"slurm_job_id": "88", "pod": "train-0", "team": "nlp", "secret": "x"}
    rank = RankProcess(pid=7, job="pretrain", rank=3, world_size=8, attributes=told)
    source = RankSource(lambda: [rank], attributes=["team", "pod"])

    [sample] = source.collect()

    labels = dict(zip(sample.family.labels, sample.labels, strict=True))
    assert {name: value for name, value in labels.items() if value} == {
        "job": "pretrain",
        "rank": "3",
        "pid": "7",
        "world_size": "8",
        "slurm_job_id": "88",
        "pod": "train-0",
        "team": "nlp",
    }
