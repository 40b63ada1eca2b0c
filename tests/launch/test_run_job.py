"""``whystuck run`` around real jobs of torchrun."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.backends import on_both, on_both_slowly
from tests.launch.running import END, REDUCE, run_whystuck, torchrun
from tests.ports import find_port

TRAIN = """
import os, signal, sys, time, ctypes
import torch, torch.distributed as dist
REDUCE
dist.init_process_group("gloo")
rank, how = dist.get_rank(), sys.argv[1]
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    reduce(loss.clone)
    optimizer.step()
print("rank", rank, "is done", flush=True)
if rank == 1 and how == "exit":
    sys.exit(42)
if rank == 1 and how == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if rank == 1 and how == "segv":
    ctypes.string_at(0)
if how != "ok":
    dist.barrier()
dist.destroy_process_group()
""".replace("REDUCE", REDUCE)


def _job(tmp_path: Path, how: str) -> list[str]:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    return torchrun(2, script, how)


@on_both
def test_run_when_the_job_is_healthy_then_only_its_own_output_is_seen(tmp_path: Path) -> None:
    done = run_whystuck("run", "--evidence", "ev", "--", *_job(tmp_path, "ok"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert sorted(done.stdout.splitlines()) == [b"rank 0 is done", b"rank 1 is done"]
    assert b"whystuck" not in done.stderr.lower()
    assert b"WorkerServer" not in done.stderr
    assert not list((tmp_path / "ev").glob("incidents/*"))
    exits = [json.loads(p.read_text()) for p in (tmp_path / "ev").rglob("exit.json")]
    assert [(one["code"], one["signal"]) for one in exits] == [(0, None), (0, None)]
    assert json.loads((tmp_path / "ev/job.json").read_text())["torch_version"].startswith("2.")


@on_both_slowly
@pytest.mark.parametrize(
    ("how", "code", "number"),
    [
        pytest.param("exit", 42, None, marks=pytest.mark.slow),
        pytest.param("kill", None, signal.SIGKILL, marks=pytest.mark.slow),
        ("segv", None, signal.SIGSEGV),
    ],
)
def test_run_when_a_rank_dies_then_its_own_end_is_on_record(
    tmp_path: Path, how: str, code: int | None, number: int | None
) -> None:
    done = run_whystuck("run", "--evidence", "ev", "--", *_job(tmp_path, how), cwd=tmp_path)
    # torchrun makes 1 of whatever its ranks did, and so do we
    assert done.returncode == 1
    exit_1 = json.loads(next((tmp_path / "ev/rounds").rglob("rank-1/exit.json")).read_text())
    assert (exit_1["code"], exit_1["signal"]) == (code, number)
    assert not exit_1["after_launcher_kill"]
    report = json.loads((tmp_path / "ev/incidents/000/report.json").read_text())
    assert report["verdict"] == "crashed"
    assert report["findings"][0]["culprits"]["ranks"] == [1]


# Without a process group: gloo does not find its peers again after a restart.
RAISE_ONCE = """
import os, time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    if os.environ["RANK"] == "1":
        raise ValueError("only the first time")
    time.sleep(60)
"""


def test_run_when_the_launcher_restarts_then_each_failed_attempt_is_an_incident(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(RAISE_ONCE)
    command = torchrun(2, script)
    command.insert(1, "--max-restarts=1")
    done = run_whystuck("run", "--evidence", "ev", "--", *command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    (incident,) = (tmp_path / "ev/incidents").iterdir()
    finding = json.loads((incident / "report.json").read_text())["findings"][0]
    assert (finding["code"], finding["culprits"]["ranks"]) == ("C204", [1])
    assert finding["details"]["message"] == "only the first time"


def test_run_when_attempts_fail_faster_than_they_are_reported_then_each_is_an_incident(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    command = torchrun(1, script)
    command.insert(1, "--max-restarts=3")
    done = run_whystuck("run", "--evidence", "ev", "--", *command, cwd=tmp_path)
    assert done.returncode == 1, done.stderr.decode()
    exits = sorted((tmp_path / "ev/incidents").glob("*/*/rank-0/exit.json"))
    pids = [json.loads(path.read_text())["pid"] for path in exits]
    assert len(set(pids)) == len(pids) == 4


SPAWN = """
import os, torch, torch.distributed as dist, torch.multiprocessing as mp

def train(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    dist.all_reduce(torch.ones(4))
    if rank == 1:
        raise ValueError("bad batch")
    dist.all_reduce(torch.ones(4))

if __name__ == "__main__":
    context = mp.spawn(train, args=(PORT,), nprocs=2, join=False)
    LATE
    while not context.join():
        pass
"""


# The parent shows the traceback of one rank only. When it looks late, both have ended, and what it
# shows is the echo in rank 0.
@pytest.mark.parametrize("late", ["", "[process.join() for process in context.processes]"])
def test_run_when_ranks_are_spawned_then_the_one_that_raised_is_named(
    tmp_path: Path, late: str
) -> None:
    (tmp_path / "train.py").write_text(
        SPAWN.replace("LATE", late).replace("PORT,", f"{find_port()},")
    )
    done = run_whystuck("run", "--evidence", "ev", "--", "python", "train.py", cwd=tmp_path)
    assert done.returncode == 1
    report = json.loads((tmp_path / "ev/incidents/000/report.json").read_text())
    finding = report["findings"][0]
    assert (finding["code"], finding["culprits"]["ranks"]) == ("C204", [1])
    assert finding["details"]["message"] == "bad batch"
    assert report["coverage"]["ranks_seen"] == 2


CAUGHT = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    try:
        raise ValueError("a bad file, which is skipped")
    except ValueError:
        try:
            sys.exit(2)
        except SystemExit:
            pass
since = time.monotonic()
go_on = torch.ones(1)
while go_on:
    go_on = torch.tensor([float(time.monotonic() - since < 11)])
    dist.broadcast(go_on, 0)
    time.sleep(0.01)
"""
CAUGHT += END


# A library's command line ends by ``sys.exit``, and a caller that catches it trains on in health.
@on_both_slowly
@pytest.mark.slow
def test_run_when_an_exit_is_caught_then_the_job_is_healthy(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(CAUGHT)
    done = run_whystuck("run", "--evidence", "ev", "--", *torchrun(2, script), cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    assert b"whystuck" not in done.stdout + done.stderr
    assert not list(tmp_path.glob("ev/incidents/*"))
    assert not list(tmp_path.rglob("exception*"))


# gloo's thread cannot let go of the tensor before the interpreter is gone: the handler runs after
# all others, and keeps the GIL.
LATE = """
import atexit, ctypes, sys
def issue_last():
    sys.setswitchinterval(1000)
    dist.all_reduce(torch.ones(1000), async_op=True)  # nobody keeps its handle
    ctypes.PyDLL(None).usleep(300_000)
atexit.register(issue_last)
import torch, torch.distributed as dist
dist.init_process_group("gloo")
"""


def test_run_when_torch_aborts_after_the_last_line_then_tells_how_to_end(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LATE)
    # The recorder keeps the handles of ops, and with them the tensor: torch ends well then.
    run = ["run", "--comm", "off", "--evidence", "ev", "--", *torchrun(2, script)]
    done = run_whystuck(*run, cwd=tmp_path)
    assert done.returncode == 1
    report = json.loads((tmp_path / "ev/incidents/000/report.json").read_text())
    finding = report["findings"][0]
    assert finding["code"] == "C203"
    assert finding["summary"].endswith("crashed with SIGABRT")
    assert "dist.destroy_process_group()" in finding["remedies"][0]
