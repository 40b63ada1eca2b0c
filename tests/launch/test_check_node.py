"""``whystuck run --check``: what is broken keeps a job from starting, what is slow only warns."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.disks import small_disk
from tests.launch.running import LONG, PATIENCE_S, WHYSTUCK, clean_environment, run_whystuck
from tests.ports import find_port
from tests.shared_disk import shared_disk

pytestmark = LONG
LIGHT = """
checks = ["disk", "shm", "limits"]
[disk]
test_mb = 1
min_free_mb = 0
min_free_share = 0.0
"""
SLOW_IS_FINE = """
min_read_mb_per_s = 0
min_write_mb_per_s = 0
max_sync_ms = 1e9
min_files_per_s = 0
"""


def run_checked(
    tmp_path: Path, *command: str, paths: tuple[Path, ...] = (), more: str = ""
) -> subprocess.CompletedProcess[bytes]:
    policy = tmp_path / "policy.toml"
    named = ", ".join(f'"{path}"' for path in paths)
    policy.write_text(f"{LIGHT}{SLOW_IS_FINE}paths = [{named}]\n{more}")
    return run_whystuck(
        "run", "--check", "--check-policy", policy, "--evidence", tmp_path / "ev", "--", *command,
        cwd=tmp_path,
    )  # fmt: skip


def read_log(tmp_path: Path) -> list[str]:
    """The sentences of ``fault.log`` without their times."""
    return [line[20:] for line in (tmp_path / "ev/fault.log").read_text().splitlines()]


def test_on_a_good_node_the_job_runs_and_the_log_tells_the_checks(tmp_path: Path) -> None:
    done = run_checked(tmp_path, "sh", "-c", "echo out; echo err >&2")

    assert (done.returncode, done.stdout) == (0, b"out\n"), done.stderr
    assert done.stderr == b"err\n"
    log = read_log(tmp_path)
    start, checks = log.index("Start to run Bootchecking..."), log.index("Check limits: Succeed")
    assert log.index("Start of round 0: sh -c echo out; echo err >&2") < start < checks
    assert f"DiskTest {tmp_path}: Succeed" in log
    assert any(line.startswith(f"{tmp_path} RW TEST: ") for line in log)
    assert log[-1] == "Round 0 ends with code 0."
    (record,) = (tmp_path / "ev").rglob("checks.json")
    names = [result["name"] for result in json.loads(record.read_text())["results"]]
    assert names == ["facts", "disk", "disk", "shm", "limits"]


def test_a_full_disk_keeps_the_job_from_starting(tmp_path: Path) -> None:
    with small_disk("size=64k", is_full=True) as path:
        done = run_checked(tmp_path, "touch", "started", paths=(path,))

    assert done.returncode == 120
    assert not (tmp_path / "started").exists()
    said = done.stderr.decode()
    assert f"error: this node is not fit for the job: N401 disk-failed: {path} cannot be" in said
    assert "hint: make room" in said
    log = read_log(tmp_path)
    assert f"DiskTest {path}: Failed" in log
    assert log[-1] == "Round 0 ends with code 120."


def test_storage_that_hangs_keeps_the_job_from_starting_and_hangs_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "served"
    folder.mkdir()
    with shared_disk(folder) as disk:
        disk.is_open.clear()
        more = "[deadlines]\ndisk = 2.0\n"
        done = run_checked(tmp_path, "touch", "started", paths=(disk.path,), more=more)

    assert done.returncode == 120
    assert not (tmp_path / "started").exists()
    assert b"does not answer within 2 s" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_during_the_first_checks_ends_it_with_the_reason(
    tmp_path: Path, number: signal.Signals
) -> None:
    # GIVEN a check that takes long
    folder = tmp_path / "served"
    folder.mkdir()
    policy = tmp_path / "policy.toml"
    with shared_disk(folder) as disk:
        disk.is_open.clear()
        policy.write_text(f'{LIGHT}paths = ["{disk.path}"]\n[deadlines]\ndisk = 200.0\n')
        command = [
            *WHYSTUCK, "run", "--check-policy", str(policy), "--evidence", str(tmp_path / "ev"),
            "--", "touch", str(tmp_path / "started"),
        ]  # fmt: skip
        process = subprocess.Popen(command, env=clean_environment(), stderr=subprocess.PIPE)
        while not disk.count_metadata():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        said = process.communicate(timeout=PATIENCE_S)[1].decode()

    assert process.returncode == 128 + number, said
    text = f"he job was not started: {number.name} came during the checks of this node"
    assert said == f"whystuck: t{text}\n"
    assert not (tmp_path / "started").exists()
    assert read_log(tmp_path)[-2:] == [f"T{text}", f"Round 0 ends with code {128 + number}."]


def test_what_only_warns_lets_the_job_start(tmp_path: Path) -> None:
    done = run_checked(tmp_path, "sh", "-c", "exit 0", more="[shm]\nmin_free_mb = 999999999\n")

    assert done.returncode == 0
    assert done.stderr.startswith(b"whystuck: warning[N403]: /dev/shm has ")
    assert "Check shm: Warning" in read_log(tmp_path)


def test_a_policy_decides_what_blocks(tmp_path: Path) -> None:
    with small_disk("size=64k", is_full=True) as path:
        policy = tmp_path / "own.toml"
        policy.write_text(f'blocking = []\n{LIGHT}paths = ["{path}"]\n')
        done = run_whystuck(
            "run", "--check-policy", policy, "--evidence", tmp_path / "ev", "--", "true",
            cwd=tmp_path,
        )  # fmt: skip

    assert done.returncode == 0
    assert b"error[N401]" in done.stderr


def test_after_a_failure_the_node_is_checked_again_and_compared(tmp_path: Path) -> None:
    # GIVEN a job that fills a disk, and fails of it
    with small_disk("size=4m") as path:
        fill = f"dd if=/dev/zero of={path}/all bs=64k 2>/dev/null; exit 7"
        done = run_checked(tmp_path, "sh", "-c", fill, paths=(path,))

    assert done.returncode == 7
    assert f"after the failure: Check disk {path} changed: Failed" in done.stderr.decode()
    log = read_log(tmp_path)
    ended = log.index("Round 0 ends with code 7.")
    later = log[ended:]
    assert "Start to run Troubleshooting..." in later
    assert f"Check disk {path} changed: Failed, before the job Succeed" in later
    assert any(line.startswith("error: N401 disk-failed: ") for line in later)


@pytest.mark.parametrize("script", ["kill -TERM $PPID; sleep 5", "kill -INT $$"])
def test_after_an_end_that_was_asked_for_nothing_is_checked(tmp_path: Path, script: str) -> None:
    run_checked(tmp_path, "sh", "-c", script)

    assert read_log(tmp_path)[-1].startswith("Round 0 ends with code ")


def test_a_command_that_is_not_there_is_told_before_any_check(tmp_path: Path) -> None:
    done = run_checked(tmp_path, "no-such-command")

    assert done.returncode == 127
    assert not (tmp_path / "ev").exists()


def test_nodes_meet_for_checks_alone(tmp_path: Path) -> None:
    place = ("--coordinator", "127.0.0.1", "--nnodes", "2", "--node-rank", "0")
    done = run_whystuck("run", *place, "--", "touch", "started", cwd=tmp_path)

    assert b"`--coordinator` needs `--check` or `--max-restarts`" in done.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.slow
def test_two_nodes_check_each_other_before_their_job(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(
        'checks = ["pairs", "allreduce"]\n[nodes]\nmeet_s = 150\nmin_gloo_gbps = 0.0\n'
        "min_share_of_quartile = 0.0\n[allreduce]\nmin_gloo_gbps = 0.0\nmegabytes = 1\n"
    )
    place = ("--coordinator", f"127.0.0.1:{find_port(2) + 1}", "--nnodes", "2", "--node-rank")
    processes = []
    for rank in (0, 1):
        command = [
            *WHYSTUCK, "run", "--check", "--check-policy", str(policy), *place, str(rank),
            "--evidence", str(tmp_path / f"ev{rank}"), "--", "true",
        ]  # fmt: skip
        processes.append(
            subprocess.Popen(command, cwd=tmp_path, env=clean_environment(), stderr=subprocess.PIPE)
        )
    ends = [(one.communicate(timeout=PATIENCE_S)[1], one.returncode) for one in processes]

    for rank, (errors, code) in enumerate(ends):
        assert code == 0, errors.decode()
        log = [line[20:] for line in (tmp_path / f"ev{rank}/fault.log").read_text().splitlines()]
        assert "Check meeting: Succeed" in log
        assert "Check pairs: Succeed" in log
        (line,) = (one for one in log if one.startswith("AllReduce Check over nodes: Succeed"))
        assert "n=2 on 2 nodes" in line
        assert "GB/s" in line


def test_without_the_option_nothing_is_checked(tmp_path: Path) -> None:
    code = "import sys; sys.exit(3)"
    done = run_whystuck(
        "run", "--evidence", tmp_path / "ev", "--", sys.executable, "-c", code, cwd=tmp_path
    )

    assert done.returncode == 3
    assert not [line for line in read_log(tmp_path) if "Bootcheck" in line]
