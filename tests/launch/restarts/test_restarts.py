"""``whystuck run --max-restarts``: real jobs that fail, are started again, or are not.

On gloo alone: what is restarted is the command, whatever its ranks talk by.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.disks import small_disk
from tests.launch.running import (
    LEAVE,
    LONG,
    PATIENCE_S,
    WHYSTUCK,
    clean_environment,
    run_whystuck,
    torchrun,
)
from tests.launch.test_front import watcher_of
from tests.ports import find_port

from whystuck.collect.processes.proc_files import is_alive
from whystuck.launch.front import Front
from whystuck.launch.link import Link, make_pair
from whystuck.launch.options import RunOptions
from whystuck.launch.restarts.ending import RootCause, RoundEnd
from whystuck.launch.restarts.leftovers import end_leftovers, list_leftovers

# Fails in its first starts, as many as the first argument says.
FAILS = f"""
import sys
from pathlib import Path
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
starts = Path(f"starts-{{dist.get_rank()}}")
count = int(starts.read_text()) if starts.exists() else 0
starts.write_text(str(count + 1))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(1, 4):
    if step == 3 and dist.get_rank() == 1 and count < int(sys.argv[1]):
        raise ValueError("bad row")
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    print("step", step + (3 * count if len(sys.argv) > 2 else 0), flush=True)
{LEAVE}
"""

pytestmark = LONG
TRAPS = "echo x >> starts; trap 'exit 5' TERM INT; echo up; while :; do sleep 0.1; done"


def starts_of(folder: Path) -> int:
    return int((folder / "starts-1").read_text())


def read_log(folder: Path) -> list[str]:
    return [line[20:] for line in (folder / "ev/fault.log").read_text().splitlines()]


def run_failing(
    folder: Path, fails: int, *options: str, more: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[bytes]:
    script = folder / "train.py"
    script.write_text(FAILS)
    command = torchrun(2, script, str(fails), *more)
    return run_whystuck("run", "--evidence", "ev", *options, "--", *command, cwd=folder)


def test_job_that_fails_once_is_started_again_and_its_last_code_counts(tmp_path: Path) -> None:
    done = run_failing(tmp_path, 1, "--max-restarts", "3")

    assert done.returncode == 0, done.stderr.decode()
    assert starts_of(tmp_path) == 2
    assert {path.name for path in (tmp_path / "ev/rounds").iterdir()} == {"0", "1"}
    log = read_log(tmp_path)
    ended = log.index("Round 0 ends with code 1.")
    restart = next(line for line in log if line.startswith("Restart 1 of 3: "))
    assert "C204" in restart
    assert ended < log.index(restart) < log.index("Round 1 ends with code 0.")
    events = [json.loads(line) for line in (tmp_path / "ev/fault.jsonl").read_text().splitlines()]
    (told,) = [event for event in events if event["event"] == "restart"]
    assert (told["round"], told["details"]["restart"]) == (0, 1)
    assert b"whystuck: restart 1 of 3" in done.stderr
    assert b"whystuck: the job finished with code 0 after 1 restart\n" in done.stderr
    report = json.loads(run_whystuck("diagnose", "ev", "--format", "json", cwd=tmp_path).stdout)
    assert report["verdict"] == "healthy"
    assert report["job"]["ended"] == "finished with code 0 after 1 restart"
    (before,) = report["job"]["other_runs"]
    assert (before["exit_code"], before["verdict"]) == (1, "crashed")


@pytest.mark.slow
def test_same_cause_twice_without_progress_ends_it_with_the_reason(tmp_path: Path) -> None:
    done = run_failing(tmp_path, 9, "--max-restarts", "5")

    assert done.returncode == 1
    assert starts_of(tmp_path) == 2
    said = done.stderr.decode()
    assert "whystuck: not started again: the same cause came twice without progress" in said
    assert read_log(tmp_path)[-1].startswith("Not started again: the same cause came twice")


@pytest.mark.slow
def test_same_cause_with_progress_goes_on_until_all_restarts_are_used(tmp_path: Path) -> None:
    done = run_failing(tmp_path, 9, "--max-restarts", "2", more=("resumes",))

    assert done.returncode == 1
    assert starts_of(tmp_path) == 3
    assert b"not started again: all 2 restarts are used" in done.stderr


@pytest.mark.slow
def test_without_the_option_nothing_is_started_again_or_said(tmp_path: Path) -> None:
    done = run_failing(tmp_path, 1)

    assert done.returncode == 1
    assert starts_of(tmp_path) == 1
    assert b"started again" not in done.stderr
    assert not (tmp_path / "ev/exclude").exists()


def test_command_of_no_known_cause_uses_all_restarts_with_all_that_it_was_given(
    tmp_path: Path,
) -> None:
    # GIVEN a command that reads a line of its stdin at each start, and an inherited descriptor
    script = 'read line; echo "got $line"; echo more >&9; exit 7'
    with (tmp_path / "nine").open("wb") as nine:
        done = subprocess.run(
            ["bash", "-c", f'exec 9>&{nine.fileno()}; exec "$@"', "-",
             *WHYSTUCK, "run", "--max-restarts", "2", "--evidence", "ev", "--",
             "bash", "-c", script],
            cwd=tmp_path, env=clean_environment(), input=b"a\nb\nc\nd\n",
            capture_output=True, timeout=PATIENCE_S, check=False, pass_fds=[nine.fileno()],
        )  # fmt: skip

    assert done.returncode == 7
    assert done.stdout == b"got a\ngot b\ngot c\n"
    assert (tmp_path / "nine").read_text() == "more\n" * 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_that_ends_the_job_ends_it_for_good(tmp_path: Path, number: int) -> None:
    process = subprocess.Popen(
        [*WHYSTUCK, "run", "--max-restarts", "3", "--evidence", "ev", "--",
         "bash", "-c", TRAPS],
        cwd=tmp_path, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.send_signal(number)
    process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 5
    assert (tmp_path / "starts").read_text() == "x\n"


def test_signal_while_nothing_runs_ends_it_for_good(tmp_path: Path) -> None:
    # GIVEN a restart that is about to come: whystuck has said so
    process = subprocess.Popen(
        [*WHYSTUCK, "run", "--max-restarts", "9", "--evidence", "ev", "--",
         "bash", "-c", "echo x >> starts; exit 4"],
        cwd=tmp_path, env=clean_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if b"restart 1 of 9" in line:
            break
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 4
    assert len((tmp_path / "starts").read_text()) < 9 * 2


def test_signal_while_the_first_node_is_waited_for_ends_it_with_the_reason(tmp_path: Path) -> None:
    place = f"127.0.0.1:{find_port(2) + 1}"
    command = [
        *WHYSTUCK, "run", "--max-restarts", "3", "--evidence", "ev", "--coordinator", place,
        "--nnodes", "2", "--node-rank", "1", "--", "touch", "started",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=tmp_path, env=clean_environment(), stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    assert b"waiting for the first node" in process.stderr.readline()
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=PATIENCE_S)[1].decode()

    text = "he job was not started: SIGTERM came while other nodes were waited for"
    assert (process.returncode, said) == (143, f"whystuck: t{text}\n")
    assert not (tmp_path / "started").exists()
    assert read_log(tmp_path)[-2:] == [f"T{text}", "Round 0 ends with code 143."]


def test_node_is_checked_at_each_start_and_one_that_broke_ends_the_job(tmp_path: Path) -> None:
    # GIVEN a job that fills a disk, and fails of it
    policy = tmp_path / "policy.toml"
    with small_disk("size=4m") as path:
        policy.write_text(
            f'checks = ["disk"]\n[disk]\ntest_mb = 1\nmin_free_mb = 0\nmin_free_share = 0.0\n'
            "min_read_mb_per_s = 0\nmin_write_mb_per_s = 0\nmax_sync_ms = 1e9\n"
            f'min_files_per_s = 0\npaths = ["{path}"]\n'
        )
        fill = "echo x >> starts; [ -e once ] || { touch once; exit 3; }; "
        fill += f"dd if=/dev/zero of={path}/all bs=64k 2>/dev/null; exit 7"
        done = run_whystuck(
            "run", "--max-restarts", "5", "--check", "--check-policy", policy,
            "--exit-code", "root-cause", "--evidence", "ev", "--", "bash", "-c", fill,
            cwd=tmp_path,
        )  # fmt: skip

    # THEN the first failure was no fault of the node; the second was, and nothing is tried again
    assert (tmp_path / "starts").read_text() == "x\nx\n"
    assert done.returncode == 200
    log = read_log(tmp_path)
    assert log.count("Start to run Bootchecking...") == 2
    assert log.count("Start to run Troubleshooting...") >= 2
    assert b"not started again: this node is not fit: N401" in done.stderr
    node = os.uname().nodename
    exclude = tmp_path / "ev/exclude"
    assert (exclude / "nodes.txt").read_text() == f"{node}\n"
    assert (exclude / "slurm.txt").read_text() == f"--exclude={node}\n"
    entry = json.loads((exclude / f"{node}.json").read_text())
    assert (entry["code"], entry["node"]) == ("N401", node)
    assert "nodeAffinity" in (exclude / "kubernetes.yaml").read_text()


def test_node_that_is_not_fit_is_on_the_list(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    with small_disk("size=64k", is_full=True) as path:
        policy.write_text(f'checks = ["disk"]\n[disk]\npaths = ["{path}"]\n')
        environment = {"SLURMD_NODENAME": "n-17", "NODE_NAME": "pool-3"}
        done = run_whystuck(
            "run", "--check", "--check-policy", policy, "--evidence", "ev", "--", "true",
            cwd=tmp_path, environment=environment,
        )  # fmt: skip

    assert done.returncode == 120
    exclude = tmp_path / "ev/exclude"
    assert (exclude / "slurm.txt").read_text() == "--exclude=n-17\n"
    assert "- pool-3" in (exclude / "kubernetes.yaml").read_text()
    assert f"{exclude}/slurm.txt" in done.stderr.decode()


@pytest.mark.slow
def test_stuck_job_that_is_killed_is_started_again(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, time, torch, torch.distributed as dist\nfrom pathlib import Path\n"
        "dist.init_process_group('gloo')\ndist.barrier()\n"
        "path = Path('once-%d' % dist.get_rank())\nhas_run = path.exists()\npath.touch()\n"
        "if dist.get_rank() == 1 and not has_run:\n    time.sleep(600)\n"
        "dist.barrier()\n" + LEAVE
    )
    done = run_whystuck(
        "run", "--stall-after", "4", "--on-stall", "kill", "--max-restarts", "1",
        "--evidence", "ev", "--", *torchrun(2, script), cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr.decode()
    assert "Round 0 ends with code 124." in read_log(tmp_path)


# In its first start, its launcher fails and leaves the ranks behind.
LEAVES = f"""
import os, time
from pathlib import Path
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
path = Path(f"pid-{{rank}}")
has_run = path.exists()
dist.barrier()
if not has_run:
    path.write_text(str(os.getpid()))
    dist.barrier()
    Path("fail").touch()
    time.sleep(600)
for one in (0, 1):
    state = Path("/proc", Path(f"pid-{{one}}").read_text(), "stat")
    if state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        os._exit(9)
{LEAVE}
"""
LAUNCHER = """
for rank in 0 1; do RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 python train.py & done
[ -e fail ] && { wait -n && wait -n; exit; }
while [ ! -e fail ]; do sleep 0.05; done
exit 3
"""


@pytest.mark.slow
def test_ranks_that_outlive_their_launcher_are_gone_before_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LEAVES)
    done = run_whystuck(
        "run", "--max-restarts", "1", "--evidence", "ev", "--", "bash", "-c", LAUNCHER,
        cwd=tmp_path,
        environment={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_port())},
    )  # fmt: skip

    assert done.returncode == 0, done.stderr.decode()
    assert "Ranks that had outlived their launcher were ended: 2" in read_log(tmp_path)
    assert not any(is_alive(int(path.read_text())) for path in tmp_path.glob("pid-*"))


def test_leftovers_end_by_sigterm_or_sigkill_and_no_other_process_does() -> None:
    # GIVEN one that saves on SIGTERM, one that has gone, and one that has a pid of before
    saves = subprocess.Popen(
        ["bash", "-c", "trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done"],
        stdout=subprocess.PIPE,
    )
    assert saves.stdout is not None
    assert saves.stdout.readline() == b"up\n"
    gone = subprocess.Popen(["true"])
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        left = list_leftovers([saves.pid, gone.pid, stranger.pid])
        gone.wait()
        left = tuple(replace(one, started=1) if one.pid == stranger.pid else one for one in left)
        count = end_leftovers(left)
        assert count in (1, 2)
        assert saves.wait(10) == 7
        assert stranger.poll() is None
    finally:
        for one in (saves, stranger):
            one.kill()
            one.communicate()


def test_nothing_of_ours_is_left_after_restarts(tmp_path: Path) -> None:
    marker = f"whystuck-left-{os.getpid()}-{time.monotonic_ns()}"
    done = run_whystuck(
        "run", "--max-restarts", "2", "--evidence", tmp_path / marker, "--", "false", cwd=tmp_path
    )
    assert done.returncode == 1
    deadline_s = time.monotonic() + 20
    while (left := _list_with(marker)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert left == []


def _list_with(marker: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes() and path.parent.name != str(os.getpid()):
                found.append(path.parent.name)
        except OSError:
            continue
    return found


ONCE = """
import os, time
from pathlib import Path
if Path("failed").exists():
    raise SystemExit(0)
Path("failed").touch()
print("READY", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
raise ZeroDivisionError("the cause of it")
"""


def test_decision_waits_for_a_cause_that_is_known_late(tmp_path: Path) -> None:
    # GIVEN a watcher that goes on only after the front has seen for long that it does not
    (tmp_path / "job.py").write_text(ONCE)
    with subprocess.Popen(
        [*WHYSTUCK, "run", "--no-agent", "--max-restarts", "1", "--evidence", "ev", "--",
         sys.executable, "job.py"],
        cwd=tmp_path, env=clean_environment(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1"),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"READY\n"
        watcher = watcher_of(process.pid)
        watcher.suspend()
        try:
            (tmp_path / "go").touch()
            lines = iter(process.stderr.readline, b"")
            assert any(b"why the job failed is waited for" in line for line in lines)
        finally:
            watcher.resume()
        process.stderr.read()
        assert process.wait(PATIENCE_S) == 0

    (restart,) = [line for line in read_log(tmp_path) if line.startswith("Restart 1 of 1: ")]
    assert restart.startswith("Restart 1 of 1: C204: rank 0 raised ZeroDivisionError")


def test_cause_that_was_told_is_known_where_its_report_cannot_be_written(tmp_path: Path) -> None:
    # GIVEN a watcher that has told the cause, and stands still since
    cause = RootCause(code="C204", summary="rank 0 raised", is_sure=True)
    options = RunOptions(command=["false"], evidence=tmp_path)
    front = Front(options, may_restart=True)
    ours, its = map(Link, make_pair())
    with closing(ours), closing(its), subprocess.Popen(["sleep", "600"]) as watcher:
        try:
            watcher.send_signal(signal.SIGSTOP)
            front._watcher, front._watcher_pid = ours, watcher.pid
            its.send("cause", ending=msgspec.to_builtins(RoundEnd(1, cause)))
            assert front._wait_for_report(1) == 1
        finally:
            watcher.kill()
    assert front.ending.cause == cause
