"""The probe that measures itself, and what disarms it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.probe.job import artifact, copy_probe, job_dir, read_until_trained, start_rank

from whystuck.collect.disarmed import collect_disarmed
from whystuck.probe import breaker
from whystuck.probe.breaker import EVERY, MAX_CPU_SHARE, Meter, Pace

torch_only = pytest.mark.torch
# What the job does until somebody says that it may end: nothing, or one op after the other.
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


def test_what_the_user_asks_for_is_not_in_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker, "WINDOW_S", 0.0)
    monkeypatch.setattr(breaker, "PACE", Pace())
    monkeypatch.setattr(breaker, "HOOKS", Meter())
    monkeypatch.setattr(breaker, "WAIVED", {"inspection"})
    watch = breaker.Breaker(lambda: None)

    def look() -> str:
        breaker.HOOKS.count(1_000_000, 1_000_000)
        return watch._judge()

    assert [look() for _ in range(20)] == [""] * 20
    breaker.WAIVED.clear()
    assert any(look() for _ in range(20))


@torch_only
def test_probe_that_uses_too_much_is_disarmed_and_says_so(tmp_path: Path) -> None:
    site = copy_probe(tmp_path, "breaker.py", "WINDOW_S = 10.0", "WINDOW_S = 0.5")
    with job_dir() as folder:
        process = start_rank(tmp_path, folder, WORKS, site)
        read_until_trained(process)
        left = artifact(folder, "disarmed", process)
        wait_until(left.exists)
        wait_until(lambda: read(artifact(folder, "switched", process)).get("comm") == "off")
        (gap,) = collect_disarmed(0, left)
        # What is asked for later changes nothing.
        (folder / "switch.json").write_text('{"generation": 7, "comm": "on"}')
        beats = artifact(folder, "beat", process)
        seen = beats.read_bytes()
        wait_until(lambda: int.from_bytes(beats.read_bytes()[8:16], "little") > seen[8] + 3)
        assert read(artifact(folder, "switched", process))["comm"] == "off"
        (tmp_path / "end").touch()
        assert (*process.communicate(timeout=100), process.returncode) == (b"", b"", 42)

    assert gap.what == "probe disarmed"
    assert "% of a core, of at most 1%" in gap.reason


@torch_only
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
        assert kinds == {"disarmed"}
        (gap,) = collect_disarmed(0, artifact(folder, "disarmed", later))
        assert gap.reason == f"{forbids} is there"


def test_nothing_is_said_of_a_probe_that_works(tmp_path: Path) -> None:
    assert collect_disarmed(0, None) == []
    assert collect_disarmed(0, tmp_path / f"disarmed-{os.getpid()}") == []
    (tmp_path / "disarmed-1").write_text("[" * 5000)
    assert collect_disarmed(0, tmp_path / "disarmed-1") == []
