"""``whystuck check`` as a user calls it: forms, exit codes, names."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import time
import tomllib
from pathlib import Path

import jsonschema
import psutil
import pytest
from tests.disks import small_disk
from tests.launch.running import WHYSTUCK, clean_environment, run_whystuck
from tests.shared_disk import shared_disk

from whystuck.check.checks import list_names
from whystuck.report.json import report_schema

QUICK = ("check", "--only", "disk,shm,limits,cgroup,memory,nic,fabric")
EASY = """
[disk]
test_mb = 1
min_read_mb_per_s = 0
min_write_mb_per_s = 0
max_sync_ms = 1e9
min_files_per_s = 0
min_free_mb = 0
min_free_share = 0.0
[shm]
min_free_mb = 0
[memory]
min_available_mb = 0
min_available_share = 0.0
error_available_mb = 0
max_pressure_percent = 100
[limits]
min_open_files = 0
note_open_files = 0
[cgroup]
min_free_mb = 0
min_free_share = 0.0
min_cpus = 0
max_throttled_share = 1
min_free_processes = 0
[nic]
max_error_share = 1
"""


def check(
    tmp_path: Path, *options: str | Path, policy: str = EASY
) -> subprocess.CompletedProcess[bytes]:
    (tmp_path / "policy.toml").write_text(policy)
    return run_whystuck(*QUICK, "--policy", tmp_path / "policy.toml", *options, cwd=tmp_path)


def test_a_fit_node_is_healthy_and_each_check_tells_its_time(tmp_path: Path) -> None:
    done = check(tmp_path, "--format", "json")

    report = json.loads(done.stdout)
    jsonschema.validate(report, report_schema())
    assert (done.returncode, report["verdict"]) == (0, "healthy"), report["findings"]
    # Mounts of file servers that other tests make are asked, and have no figures.
    disks = [row for row in report["checks"] if row["name"] == "disk" and row["figures"]]
    assert [row["outcome"] for row in disks] == ["ok", "ok"]
    assert all(row["took_s"] > 0 for row in report["checks"])
    assert {row["node"] for row in report["checks"]} == set(report["context"]["nodes"])


def test_the_text_lists_every_check_with_time_and_figures(tmp_path: Path) -> None:
    told = check(tmp_path).stdout.decode()

    assert told.startswith("healthy: nothing is wrong")
    for name in ("facts", "disk", "shm", "limits", "cgroup", "memory", "nic"):
        assert any(
            line.split()[1:2] == [name] and line.endswith(("ms", " s"))
            for line in told.splitlines()
        )
    assert "MB/s" in told
    assert "this node has no InfiniBand" in told


@pytest.mark.parametrize("form", ["html", "md"])
def test_other_forms_have_the_table(tmp_path: Path, form: str) -> None:
    told = check(tmp_path, "--format", form).stdout.decode()

    assert "limits" in told
    assert "open files" in told


def test_an_error_is_1_and_names_code_figure_and_remedy(tmp_path: Path) -> None:
    with small_disk("size=64k", is_full=True) as path:
        done = check(tmp_path, "--disk", path)

    assert done.returncode == 1
    told = done.stdout.decode()
    assert f"error[N401]: {path} cannot be used: it is full" in " ".join(told.split())
    assert "fix: make room" in told
    assert "verdict: unfit" in told


def test_warnings_alone_are_3_and_1_when_asked_to_fail_on_them(tmp_path: Path) -> None:
    policy = EASY.replace("[shm]\nmin_free_mb = 0", "[shm]\nmin_free_mb = 999999999")

    assert check(tmp_path, policy=policy).returncode == 3
    assert check(tmp_path, "--fail-on", "warning", policy=policy).returncode == 1


def test_an_incomplete_check_is_not_healthy(tmp_path: Path) -> None:
    done = check(tmp_path, "--format", "json", policy=EASY + "[deadlines]\nnic = 0.05\n")

    report = json.loads(done.stdout)
    assert (done.returncode, report["verdict"]) == (3, "inconclusive")
    assert {"rank": None, "what": "result of check nic", "reason": "no answer in 0.05 s"} in (
        report["gaps"]
    )


def test_where_all_hangs_at_once_it_ends_and_names_each(tmp_path: Path) -> None:
    # GIVEN a file server that does not answer, on PATH too, and a Python of the job that hangs
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "bin/python").chmod(0o755)
    policy = "[deadlines]\ndisk = 2.0\ntorch = 4.0\ndns = 4.0\n"
    (tmp_path / "policy.toml").write_text(policy)
    with shared_disk(tmp_path) as disk:
        disk.is_open.clear()
        answers = []
        for first in (tmp_path / "bin", disk.path):
            done = run_whystuck(
                "check", "--policy", tmp_path / "policy.toml", "--disk", disk.path,
                "--only", "disk,dns,versions,gemm,allreduce", "--format", "json", cwd=tmp_path,
                environment={"PATH": f"{first}:/usr/bin:/bin", "MASTER_ADDR": "127.0.0.1"},
            )  # fmt: skip
            answers.append((done.returncode, json.loads(done.stdout)))

    for code, report in answers:
        assert code == 1
        rows = {(row["name"], row["subject"]): row for row in report["checks"]}
        assert rows["disk", str(disk.path)]["outcome"] == "failed"
        for name in ("versions", "gemm", "allreduce"):
            assert rows[name, ""]["outcome"] == "incomplete"
            assert rows[name, ""]["reason"] == "no answer in 4 s"


def test_wrong_names_and_files_are_2_with_a_hint(tmp_path: Path) -> None:
    done = run_whystuck("check", "--only", "disc", cwd=tmp_path)

    assert done.returncode == 2
    assert done.stderr.startswith(b"error: there is no check `disc`\nhint: the checks are facts, ")
    assert check(tmp_path, policy="x = 1").returncode == 2


def test_names_and_policy_can_be_listed(tmp_path: Path) -> None:
    names = run_whystuck("check", "--list", cwd=tmp_path).stdout.decode().split()
    policy = tomllib.loads(run_whystuck("check", "--show-policy", cwd=tmp_path).stdout.decode())

    assert names == list_names()
    assert policy["shm"]["min_free_mb"] > 0


def test_redacted_reports_hide_host_and_folders(tmp_path: Path) -> None:
    done = check(tmp_path, "--redact", "--format", "json")

    assert str(tmp_path).encode() not in done.stdout


def test_a_caller_that_has_closed_all_streams_gets_the_report_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(EASY)
    command = [*WHYSTUCK, *QUICK, "--policy", "policy.toml", "--format", "json", "-o", "out.json"]
    shell = f"exec {shlex.join(command)} <&- >&- 2>&-"
    done = subprocess.run(
        ["sh", "-c", shell], cwd=tmp_path, env=clean_environment(), check=False, timeout=120
    )

    assert done.returncode == 0
    report = json.loads((tmp_path / "out.json").read_text())
    assert {row["outcome"] for row in report["checks"]} == {"ok", "skipped"}


def test_an_interrupt_ends_it_with_130_and_leaves_no_process(tmp_path: Path) -> None:
    with shared_disk(tmp_path) as disk:
        disk.is_open.clear()
        process = subprocess.Popen(
            [*WHYSTUCK, "check", "--only", "disk", "--disk", str(disk.path)],
            cwd=tmp_path,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        # It works on the disk as soon as it has a child.
        while not psutil.Process(process.pid).children() and process.poll() is None:
            time.sleep(0.01)
        children = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)

    assert process.returncode == 130
    # The kernel lets one that waits for a file server end when that answers, or is taken away.
    _, left = psutil.wait_procs(children, timeout=60)
    # One whose parent has gone stays a zombie where the first process takes no note of it.
    alive = [one for one in left if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    assert alive == []
