"""The probe that measures itself, and what disarms it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.backends import on_both_slowly
from tests.probe.job import artifact, copy_probe, job_dir, read_until_trained, start_rank

from whystuck.collect.disarmed import collect_disarmed, read_disarmed, refuses_traces
from whystuck.probe import breaker, files
from whystuck.probe.breaker import EVERY, MAX_CPU_SHARE, Meter, Pace

# What the job does until somebody says that it may end: nothing, or ops and steps.
RESTS = """
import os
while not os.path.exists("end"):
    time.sleep(0.05)
sys.exit(42)
"""
WORKS = """
import os
one = torch.ones(1)
while not os.path.exists("end"):
    for _ in range(200):
        dist.all_reduce(one)
    optimizer.step()
sys.exit(42)
"""


def wait_until(is_true: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 120
    while not is_true():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def read(path: Path) -> dict[str, object]:
    try:
        value: dict[str, object] = json.loads(path.read_bytes())
    except OSError:
        return {}
    return value


def test_meter_takes_a_sample_for_all() -> None:
    meter = Meter()
    for _ in range(EVERY * 3):
        assert meter.call(sum, range(20_000)) == 199_990_000

    spent_s = time.thread_time()
    assert 0 < meter.cost_s < 20 * spent_s
    meter.count(EVERY * 10, 1000)
    assert meter.sampled_ns >= 10_000


def test_pace_slows_down_before_it_says_that_nothing_helps() -> None:
    pace = Pace()
    said = [pace.follow(MAX_CPU_SHARE * 2) for _ in range(6)]
    assert said == [False, False, False, False, True, True]
    for _ in range(9):
        assert not pace.follow(0.0)
    assert pace.factor == 1


class Watched:
    """A breaker whose windows are as long as a test says, and what it has turned off."""

    now_s = used_s = 100.0

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, *, is_on: bool = True
    ) -> None:
        monkeypatch.setenv(files.JOB_DIR_ENV, str(folder))
        monkeypatch.setattr(files, "DISARMED", {})
        # Tests before this one have mapped files in this process, for its life.
        monkeypatch.setattr(files, "_MAPPED", [])
        monkeypatch.setattr(breaker, "PACE", Pace())
        monkeypatch.setattr(breaker, "WAIVED", set())
        monkeypatch.setattr(breaker, "measure_cpu_s", lambda: self.used_s)
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        self.off: list[str] = []
        self.record = folder / f"disarmed-{os.getpid()}"
        self.breaker = breaker.Breaker(self.off.append, lambda _: is_on)

    def use(self, share: float, seconds: int) -> list[str]:
        """Use a share of a core for a time; return what has been turned off by its end."""
        for _ in range(seconds):
            self.now_s += 1.0
            self.used_s += share
            self.breaker.look()
        return self.off


def test_parts_go_one_after_the_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = Watched(monkeypatch, tmp_path)
    assert one.use(0.02, 40) == []  # rests have become longer in each of these windows
    assert breaker.PACE.factor == 16
    assert one.use(0.02, 59) == []
    assert one.use(0.02, 11) == ["ops"]
    assert one.use(0.02, 50) == ["ops"]
    assert one.use(0.02, 20) == ["ops", "marks"]
    assert one.use(0.009, 1000) == ["ops", "marks"]
    assert one.use(0.2, 10) == ["ops", "marks", "records"]
    assert one.use(0.9, 100) == ["ops", "marks", "records", "all"]

    reasons = read_disarmed(one.record)
    assert list(reasons) == ["ops", "marks", "records", "all"]
    assert reasons["ops"].endswith("s it used 2.0% of a core, of at most 1%")
    gaps = collect_disarmed(3, one.record)
    assert [gap.what for gap in gaps] == ["probe disarmed"] * 4
    assert gaps[0].reason.startswith("ops are not recorded any more: in ")
    assert (refuses_traces(reasons), refuses_traces({"ops": "x"})) == (True, False)


def test_no_part_goes_for_one_costly_moment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = Watched(monkeypatch, tmp_path)
    assert one.use(0.02, 40) == []
    for _ in range(20):
        one.used_s += 0.3
        assert one.use(0.004, 60) == []


def test_small_excess_is_found_in_the_long_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = Watched(monkeypatch, tmp_path)
    assert one.use(0.012, 300) == []
    assert one.use(0.012, 100) == ["ops"]


def test_too_much_memory_disarms_all_but_not_what_the_user_asks_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = Watched(monkeypatch, tmp_path)
    files.make_mapped(str(tmp_path / "log"), breaker.MAX_BYTES)
    assert one.use(0.0, 20) == []
    files.make_mapped(str(tmp_path / "more"), 4096 * 256)
    monkeypatch.setenv("WHYSTUCK_OPS_BUFFER", "1000000")  # 96 MB
    assert one.use(0.0, 20) == []
    monkeypatch.delenv("WHYSTUCK_OPS_BUFFER")
    assert one.use(0.0, 1) == ["all"]
    assert read_disarmed(one.record) == {"all": "it held 65 MB of memory, of at most 64 MB"}


def test_ops_that_are_not_recorded_are_no_part_that_helps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = Watched(monkeypatch, tmp_path, is_on=False)
    assert one.use(0.05, 70) == ["records"]


def test_what_the_user_asks_for_is_not_in_the_budget(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = Watched(monkeypatch, tmp_path)
    monkeypatch.setattr(breaker, "WAIVED", {"inspection"})
    assert one.use(0.5, 200) == []
    for _ in range(20):  # in each window there is some of it, and none at the end
        breaker.WAIVED.clear()
        assert one.use(0.5, 4) == []
        breaker.WAIVED.add("inspection")
        assert one.use(0.5, 3) == []
    breaker.WAIVED.clear()
    assert one.use(0.5, 64) == ["ops"]


def test_record_of_a_release_without_parts_is_told_as_it_is(tmp_path: Path) -> None:
    old = tmp_path / "disarmed-7"
    old.write_text('{"reason": "it used 3.0% of a core, of at most 1%", "time_ns": 5}')
    (gap,) = collect_disarmed(0, old)
    assert gap.reason == "it used 3.0% of a core, of at most 1%"
    assert refuses_traces(read_disarmed(old))


@on_both_slowly
@pytest.mark.slow
def test_ops_that_cost_too_much_are_recorded_no_more_and_the_switch_says_why(
    tmp_path: Path,
) -> None:
    site = copy_probe(tmp_path, "breaker.py", "WINDOW_S = 10.0", "WINDOW_S = 0.5")
    with job_dir() as folder, ExitStack() as cleared:
        process = start_rank(tmp_path, folder, WORKS, site)
        cleared.callback(process.kill)
        read_until_trained(process)
        switched = artifact(folder, "switched", process)
        left = artifact(folder, "disarmed", process)
        wait_until(left.exists)
        wait_until(lambda: read(switched).get("comm") == "off")
        assert list(read_disarmed(left)) == ["ops"]
        assert "% of a core, of at most 1%" in read_disarmed(left)["ops"]
        (folder / "switch.json").write_text('{"generation": 7, "comm": "on"}')
        wait_until(lambda: read(switched).get("generation") == 7)
        told = read(switched)
        assert told["comm"] == "off"
        assert str(told["error"]).startswith("comm: the probe has disarmed it: in ")
        assert told["disarmed"] == read_disarmed(left)
        (folder / "switch.json").write_text('{"generation": 8, "comm": "off"}')
        wait_until(lambda: read(switched).get("generation") == 8)
        assert read(switched)["error"] == ""
        beats = artifact(folder, "beat", process)
        seen = beats.read_bytes()
        wait_until(lambda: int.from_bytes(beats.read_bytes()[8:16], "little") > seen[8] + 3)
        (tmp_path / "end").touch()
        assert (*process.communicate(timeout=100), process.returncode) == (b"", b"", 42)
        # What is left goes on: the dump of a rank that ends, and its record.
        assert artifact(folder, "final", process).exists()


@on_both_slowly
def test_file_that_forbids_probes_disarms_running_ones_and_keeps_new_ones_away(
    tmp_path: Path,
) -> None:
    forbids = tmp_path / "disable"
    site = copy_probe(tmp_path, "files.py", "/etc/whystuck/disable", str(forbids))
    with job_dir() as folder:
        process = start_rank(tmp_path, folder, RESTS, site)
        read_until_trained(process)
        wait_until(artifact(folder, "beat", process).exists)
        begin_s = time.monotonic()
        forbids.touch()
        left = artifact(folder, "disarmed", process)
        wait_until(left.exists)
        assert time.monotonic() - begin_s < 10
        wait_until(lambda: read(artifact(folder, "switched", process)).get("comm") == "off")
        (tmp_path / "end").touch()
        assert process.communicate(timeout=100) == (b"", b"")
        assert process.returncode == 42

        later = start_rank(tmp_path, folder, RESTS, site)
        assert later.communicate(timeout=100) == (b"trained\n", b"")
        assert later.returncode == 42
        kinds = {path.name.rpartition("-")[0] for path in folder.glob(f"*-{later.pid}")}
        assert kinds == {"disarmed", "start"}
        (gap,) = collect_disarmed(0, artifact(folder, "disarmed", later))
        assert gap.reason == f"{forbids} is there"


def test_nothing_is_said_of_a_probe_that_works(tmp_path: Path) -> None:
    assert collect_disarmed(0, None) == []
    assert collect_disarmed(0, tmp_path / f"disarmed-{os.getpid()}") == []
    (tmp_path / "disarmed-1").write_text("[" * 5000)
    assert collect_disarmed(0, tmp_path / "disarmed-1") == []
