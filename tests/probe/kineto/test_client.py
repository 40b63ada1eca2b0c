"""Kineto of real processes, led to an agent; and processes that it must leave alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.disks import small_disk
from tests.launch.running import clean_environment
from tests.probe.job import PROBE_DIR, copy_probe, job_dir, read_until_trained, start_rank
from tests.probe.kineto.fabric import Fabric, fabric, has_socket_of, wait_until

from whystuck.agent.processes.step_counter import open_counter

# Steps until it is told on stdin what to do at the end.
TRAIN = """
import os, select, sys, time
import torch
torch.manual_seed(0)
layer = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
def step():
    optimizer.zero_grad()
    layer(torch.ones(4, 16)).sum().backward()
    optimizer.step()
    time.sleep(0.002)
print("trained", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    step()
exec(sys.stdin.read())
"""
# Much, as a busy machine takes minutes to import torch.
END_S = 400
LONG = "ACTIVITIES_DURATION_MSECS=60000"


def start(
    tmp_path: Path, folder: Path | str, script: str = TRAIN, **extra: str
) -> subprocess.Popen[bytes]:
    """Start a process of its own that is led to the agent in ``folder``."""
    path = tmp_path / "alone.py"
    path.write_text(script)
    environment = clean_environment(WHYSTUCK_AGENT_DIR=str(folder), **extra)
    return subprocess.Popen(
        [sys.executable, str(path)],
        env=environment,
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )


def end(process: subprocess.Popen[bytes], then: str = "") -> tuple[int, bytes, bytes]:
    """Tell it what to do last, and return its code and what it wrote."""
    out, err = process.communicate(then.encode(), timeout=END_S)
    return process.returncode, out, err


def read_events(tmp_path: Path) -> list[dict[str, Any]]:
    """Return the events of the one trace."""
    (file,) = tmp_path.glob("*trace*.json")
    events: list[dict[str, Any]] = json.loads(file.read_bytes())["traceEvents"]
    return events


def wait_for_part(tmp_path: Path) -> None:
    """Wait until Kineto has begun with a trace."""
    wait_until(lambda: [*tmp_path.glob("*.tmp")])


def wait_for_window(served: Fabric) -> None:
    """Wait until a poll says that a trace is being collected."""
    wait_until(lambda: served.polls and not served.polls[-1][1] & 2)


def test_process_when_led_then_gives_traces_and_ends_well_in_the_middle_of_one(
    tmp_path: Path,
) -> None:
    with fabric() as served:
        process = start(tmp_path, served.folder)
        read_until_trained(process)
        served.ask(
            "PROFILE_START_ITERATION=0", "ACTIVITIES_ITERATIONS=3", file=tmp_path / "trace.json"
        )
        wait_until(lambda: [*tmp_path.glob("trace_*.json")])
        served.ask(LONG, file=tmp_path / "second.json")
        wait_for_window(served)
        code, out, err = end(process, "assert 'KINETO_USE_DAEMON' not in os.environ; sys.exit(42)")
    assert (code, out, err) == (42, b"", b"")
    names = [event["name"] for event in read_events(tmp_path)]
    # On a busy machine Kineto stops some iterations too late.
    assert sum(name == "Optimizer.step#SGD.step" for name in names) >= 3
    assert {pid for pid, _ in served.polls} == {process.pid}


RANK = """
import sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
layer = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
print("trained", flush=True)
exec(sys.argv[1])
dist.destroy_process_group()
"""
STEPS_UNTIL_TOLD = """
import select
def go():
    while not select.select([sys.stdin], [], [], 0)[0]:
        optimizer.step()
        time.sleep(0.002)
    sys.stdin.readline()
go()
"""


@pytest.mark.slow
def test_rank_that_stops_in_a_trace_of_iterations_is_rescued_and_keeps_its_count(
    tmp_path: Path,
) -> None:
    # 50 steps, then it is stuck until the trace is there, and steps on.
    then = """
for _ in range(50): optimizer.step()
while not GLOB("first_*.json"): time.sleep(0.05)
for _ in range(2000):
    if GLOB("second_*.json"): break
    optimizer.step(); time.sleep(0.02)
from whystuck.probe import files
import _whystuck_probe.kineto.client as k
print(k.of_this_process()._steps, k.of_this_process()._owed, flush=True)
"""
    then = f"import glob; GLOB = lambda name: glob.glob({str(tmp_path)!r} + '/' + name)\n{then}"
    with fabric() as served, job_dir() as folder:
        process = start_rank(
            tmp_path, folder, then, script=RANK, extra={"WHYSTUCK_AGENT_DIR": str(served.folder)}
        )
        served.ask(
            "PROFILE_START_ITERATION=0",
            "PROFILE_START_ITERATION_ROUNDUP=100",
            "ACTIVITIES_ITERATIONS=5",
            file=tmp_path / "first.json",
        )
        wait_for_part(tmp_path)
        (folder / f"trace-{process.pid}").touch()
        mark = folder / f"rescue-{process.pid}"
        mark.touch()
        wait_until(lambda: not mark.exists())
        wait_until(lambda: [*tmp_path.glob("first_*.json")])
        (folder / f"trace-{process.pid}").unlink()
        served.ask(
            "PROFILE_START_ITERATION=0",
            "PROFILE_START_ITERATION_ROUNDUP=200",
            "ACTIVITIES_ITERATIONS=3",
            file=tmp_path / "second.json",
        )
        out, err = process.communicate(timeout=END_S)
    assert (process.returncode, err) == (0, b"")
    steps, owed = map(int, out.split()[1:])
    # With what was made up for before, the second trace would have begun some 50 steps earlier.
    assert (steps >= 200, owed) == (True, 0)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["sys.exit(42)", "os._exit(42)", "raise SystemExit(42)"])
@pytest.mark.parametrize("what", [LONG, "ACTIVITIES_ITERATIONS=1000000"])
def test_exit_in_the_middle_of_a_trace_has_the_code_of_the_job(
    tmp_path: Path, way: str, what: str
) -> None:
    with fabric() as served:
        process = start(tmp_path, served.folder)
        read_until_trained(process)
        lines = [what, *(["PROFILE_START_ITERATION=0"] if "ITERATIONS" in what else [])]
        served.ask(*lines, "PROFILE_WITH_STACK=true", file=tmp_path / "trace.json")
        wait_for_window(served)
        assert end(process, way)[:2] == (42, b"")


@pytest.mark.slow
def test_exit_while_a_trace_is_written_leaves_a_whole_one(tmp_path: Path) -> None:
    with fabric() as served:
        process = start(tmp_path, served.folder, TRAIN.replace("time.sleep(0.002)", "pass"))
        read_until_trained(process)
        served.ask(
            "ACTIVITIES_DURATION_MSECS=2500",
            "PROFILE_WITH_STACK=true",
            file=tmp_path / "trace.json",
        )
        (served.folder / f"trace-{process.pid}").touch()
        wait_for_window(served)
        # Told to end when the window is over, and the file is not there.
        then = "import glob\nassert glob.glob('*.tmp'); sys.exit(42)"
        wait = "while not probe.is_collecting: step()\nwhile probe.is_collecting: step()\n"
        find = (
            "import sys; probe = sys.modules['_whystuck_probe.kineto.client']._MADE[-1]._library\n"
        )
        assert end(process, find + wait + then)[:2] == (42, b"")
        assert read_events(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["sys.exit(42)", "os._exit(42)"])
def test_exit_in_a_trace_of_a_job_that_makes_no_steps_has_its_own_code(
    tmp_path: Path, way: str
) -> None:
    script = TRAIN.replace("    optimizer.step()\n", "")
    with fabric() as served:
        process = start(tmp_path, served.folder, script)
        read_until_trained(process)
        served.ask(LONG, file=tmp_path / "trace.json")
        wait_for_window(served)
        assert end(process, way) == (42, b"", b"")


# Gives what Kineto has been asked for the time to begin, once the probe has done its part.
ENDS_LATE = TRAIN.replace(
    "print(",
    """class Late:
    def __del__(self, sleep=time.sleep): sleep(4)
late = Late()
print(""",
)


@pytest.mark.slow
def test_exit_before_a_window_that_kineto_was_just_asked_for(tmp_path: Path) -> None:
    with fabric() as served:
        process = start(tmp_path, served.folder, ENDS_LATE)
        read_until_trained(process)
        served.wait_for_polls(1)
        begin_ms = int(time.time() * 1000) + 3000
        mark = served.folder / f"trace-{process.pid}"
        mark.write_text(f"{(begin_ms + 60_000) * 1_000_000} 0 0\n")
        served.ask(f"PROFILE_START_TIME={begin_ms}", LONG, file=tmp_path / "trace.json")
        wait_until(served.replies.empty)
        assert end(process, "sys.exit(42)") == (42, b"", b"")
    assert not [*tmp_path.glob("*.json")]


@pytest.mark.slow
def test_disk_that_is_full_where_a_trace_goes_is_no_matter(tmp_path: Path) -> None:
    with fabric() as served, small_disk("size=16k") as disk:
        process = start(tmp_path, served.folder)
        read_until_trained(process)
        served.ask("ACTIVITIES_DURATION_MSECS=300", file=disk / "lost.json")
        wait_for_window(served)
        wait_until(lambda: served.polls[-1][1] & 2)
        served.ask("ACTIVITIES_DURATION_MSECS=300", file=tmp_path / "trace.json")
        wait_until(lambda: [*tmp_path.glob("trace_*.json")])
        assert end(process, "sys.exit(42)") == (42, b"", b"")
        assert read_events(tmp_path)


@pytest.mark.slow
def test_agent_that_is_killed_leaves_no_socket_and_a_new_one_is_found(tmp_path: Path) -> None:
    with fabric() as served:
        process = start(tmp_path, served.folder)
        read_until_trained(process)
        served.wait_for_polls(2)
        served.kill()
        wait_until(lambda: not served.path.exists())
        again = Fabric(served.folder)
        again.wait_for_polls(2)
        again.kill()
        assert end(process, "sys.exit(42)") == (42, b"", b"")


@pytest.mark.slow
def test_agent_that_comes_late_or_goes_for_good_is_no_matter(tmp_path: Path) -> None:
    with fabric() as served:
        folder = served.folder
    process = start(tmp_path, folder)
    read_until_trained(process)
    served = Fabric(Path(str(folder.parent)).parent / f"{folder.parent.name}x")
    served.kill()
    folder.parent.mkdir(mode=0o700)
    late = Fabric(folder)
    late.wait_for_polls(2)
    late.kill()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.parent.rmdir()
    assert end(process, "for _ in range(500): step()\nsys.exit(42)") == (42, b"", b"")


@pytest.mark.slow
@pytest.mark.parametrize(
    "reply",
    [b"\xff\x00garbage", b"ACTIVITIES_LOG_FILE\n=\n", b"PROFILE_START_TIME=99\n", b"A" * 4000],
    ids=["bytes", "lines", "past", "long"],
)
def test_agent_that_answers_nonsense_is_no_matter(tmp_path: Path, reply: bytes) -> None:
    with fabric() as served:
        process = start(tmp_path, served.folder)
        read_until_trained(process)
        for _ in range(3):
            served.replies.put(reply)
        served.wait_for_polls(6)
        assert end(process, "sys.exit(42)") == (42, b"", b"")


PROFILES = """
with torch.profiler.profile(with_stack=False) as mine:
    for _ in range(3): step()
mine.export_chrome_trace("mine.json")
import json
events = json.load(open("mine.json"))["traceEvents"]
print(sum(e["name"] == "Optimizer.step#SGD.step" for e in events), flush=True)
mine = None
"""


@pytest.mark.slow
def test_own_profiler_of_the_job_works_and_speaks_as_without_us(tmp_path: Path) -> None:
    script = TRAIN + "print(len(sys.argv))"
    alone = subprocess.run(
        [sys.executable, "-c", script],
        input=PROFILES.encode(),
        env=clean_environment(),
        cwd=tmp_path,
        capture_output=True,
        check=True,
        timeout=END_S,
    )
    with fabric() as served:
        process = start(tmp_path, served.folder, script)
        read_until_trained(process)
        served.wait_for_polls(2)
        code, out, err = end(process, PROFILES)
    assert (code, b"trained\n" + out) == (0, alone.stdout)
    assert [_without_time(line) for line in err.splitlines()] == [
        _without_time(line) for line in alone.stderr.splitlines()
    ]


def _without_time(line: bytes) -> bytes:
    """Drop date, time, pid and thread of a line of Kineto."""
    head, _, rest = line.partition(b" ")
    return head[:5] + rest.partition(b" ")[2].partition(b" ")[2]


# Kineto keeps the file of the trace open that it has dropped.
DROPPED = """
kineto = sys.modules["_whystuck_probe.kineto.client"]._MADE[-1]
parts = sys.modules["_whystuck_probe.kineto.process_end"].list_parts()
print(len(parts), kineto._is_in_flight(), kineto._was_collecting, flush=True)
sys.exit(42)
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_own", [False, True])
def test_own_profiler_during_a_trace_gets_its_own_whole(tmp_path: Path, *, is_own: bool) -> None:
    with fabric() as served:
        process = (start_own if is_own else start)(tmp_path, served.folder)
        read_until_trained(process)
        served.ask(LONG, file=tmp_path / "trace.json")
        wait_for_window(served)
        code, out, _ = end(process, PROFILES + DROPPED)
    assert (code, out) == (42, b"3\n1 False False\n")


@pytest.mark.slow
def test_window_that_the_own_profiler_of_the_job_leaves_no_time_for_is_not_spoken_of(
    tmp_path: Path,
) -> None:
    profile = "with torch.profiler.profile(): time.sleep(5)\n"
    with fabric() as served:
        process = start(tmp_path, served.folder)
        read_until_trained(process)
        served.wait_for_polls(1)
        mark = served.folder / f"trace-{process.pid}"
        begin_ms = int(time.time() * 1000) + 3000
        mark.write_text(f"{(begin_ms + 500) * 1_000_000} 0 0\n")
        served.ask(
            f"PROFILE_START_TIME={begin_ms}",
            "ACTIVITIES_DURATION_MSECS=500",
            file=tmp_path / "trace.json",
        )
        wait_until(served.replies.empty)
        code, out, err = end(process, profile + "time.sleep(3)")
    assert (code, out) == (0, b"")
    assert b"ERROR" not in err


@pytest.mark.slow
def test_process_that_torch_itself_leads_says_no_more_than_without_us(tmp_path: Path) -> None:
    with fabric() as served:
        process = start_own(tmp_path, served.folder, KINETO_LOG_LEVEL="0")
        read_until_trained(process)
        served.ask(LONG, file=tmp_path / "trace.json")
        wait_for_window(served)
        served.kill()
        # Longer than it takes to look: torch says more of a socket that is not there.
        then = f"for _ in range(1200): step()\nassert os.path.exists({str(served.path)!r})\n"
        code, out, err = end(process, then + "sys.exit(42)")
    assert (code, out) == (42, b"")
    # The poll that is under way at the exit, which would hold it up for seconds.
    assert err.count(b"No such file") <= 1
    assert b"profiler_st" not in err
    assert not served.path.exists()


CHILDREN = {
    "fork and exit": """
pid = os.fork()
if pid == 0:
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
""",
    "fork and profile": """
pid = os.fork()
if pid == 0:
    with torch.profiler.profile() as mine:
        layer(torch.ones(4, 16))
    sys.exit(0 if mine.events() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
""",
    "process": """
import subprocess
code = "import sys, torch; print(any('kineto' in m and m.endswith('kineto') for m in sys.modules))"
child = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
assert not child.stderr, child.stderr
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", CHILDREN)
def test_child_of_a_process_that_is_led_is_left_alone_and_ends(tmp_path: Path, how: str) -> None:
    with fabric() as served:
        process = start(tmp_path, served.folder)
        read_until_trained(process)
        served.wait_for_polls(1)
        code, out, err = end(process, CHILDREN[how] + "sys.exit(42)")
    assert (code, out) == (42, b""), err
    if how != "fork and profile":  # which says on stderr what any profile does
        assert err == b""
    assert {pid for pid, _ in served.polls} == {process.pid}


LOADER = """
import torch
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.full((2,), float(index))
if __name__ == "__main__":
    import sys, time
    loader = torch.utils.data.DataLoader(Data(), num_workers=2, multiprocessing_context=METHOD)
    print(sum(batch.sum().item() for batch in loader), flush=True)
    time.sleep(2.5)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_workers_of_a_data_loader_are_left_alone(tmp_path: Path, method: str) -> None:
    with fabric() as served:
        process = start(tmp_path, served.folder, LOADER.replace("METHOD", repr(method)))
        assert end(process) == (0, b"56.0\n", b"")
        assert {pid for pid, _ in served.polls} == {process.pid}


COMPILED = """
import torch, sys, time
torch.manual_seed(0)
layer = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(layer.parameters(), lr=0.01)
@torch.compile(backend="aot_eager")
def run(x):
    return layer(x).pow(2).sum()
for _ in range(20):
    optimizer.zero_grad()
    run(torch.ones(4, 8)).backward()
    optimizer.step()
time.sleep(1.5)
print(layer.weight.detach().numpy().tobytes().hex())
"""


@pytest.mark.slow
def test_compiled_job_has_the_same_weights_and_output(tmp_path: Path) -> None:
    with fabric() as served:
        outcomes = [end(start(tmp_path, where, COMPILED)) for where in (served.folder, "")]
        assert served.polls
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "variables",
    [
        {
            "KINETO_USE_DAEMON": "1",
            "KINETO_IPC_SOCKET_DIR": "/nonexistent",
            "KINETO_LOG_LEVEL": "99",
        },
        {"KINETO_IPC_SOCKET_DIR": "/nonexistent"},
        {"CUDA_INJECTION64_PATH": "/opt/nsys"},
        {"WHYSTUCK_DISABLE": "1"},
        {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
    ],
    ids=lambda variables: next(iter(variables)),
)
def test_process_whose_user_has_other_plans_is_left_alone(
    tmp_path: Path, variables: Mapping[str, str]
) -> None:
    with fabric() as served:
        process = start(tmp_path, served.folder, TRAIN, **variables)
        read_until_trained(process)
        # Longer than from one poll to the next: as many steps as it makes in that time.
        assert end(process, "for _ in range(700): step()") == (0, b"", b"")
        assert not served.polls
        assert not has_socket_of(served.folder)


@pytest.mark.slow
def test_folder_with_a_long_path_is_not_given_to_kineto(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 70)
    folder.mkdir(mode=0o700)
    process = start(tmp_path, folder)
    read_until_trained(process)
    assert end(process, "for _ in range(700): step()\nsys.exit(42)") == (42, b"", b"")
    assert not has_socket_of(folder)


def test_program_that_the_job_executes_has_no_socket_of_kineto(tmp_path: Path) -> None:
    with fabric() as served:
        process = start(tmp_path, served.folder)
        read_until_trained(process)
        served.wait_for_polls(2)
        then = "os.execvp('ls', ['ls', '-l', '/proc/self/fd'])"
        code, out, err = end(process, then)

    assert (code, err) == (0, b"")
    assert b"/proc/" in out
    assert b"socket:" not in out


@pytest.mark.slow
def test_door_of_sitecustomize_leads_as_the_entry_point_does(tmp_path: Path) -> None:
    extra = {"PYTHONPATH": str(PROBE_DIR / "site"), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    with fabric() as served:
        process = start(tmp_path, served.folder, TRAIN, **extra)
        read_until_trained(process)
        served.wait_for_polls(2)
        assert end(process, "sys.exit(42)") == (42, b"", b"")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signal_in_a_trace_ends_the_process_as_without_us(tmp_path: Path, number: int) -> None:
    with fabric() as served:
        process = start(tmp_path, served.folder)
        read_until_trained(process)
        served.ask(LONG, file=tmp_path / "trace.json")
        wait_for_window(served)
        os.kill(process.pid, number)
        process.communicate(timeout=END_S)
    assert process.returncode == -number


# What leads torch itself to an agent, when it is imported.
OWN = {"KINETO_USE_DAEMON": "1", "KINETO_LOG_LEVEL": "99"}


def start_own(
    tmp_path: Path, folder: Path, script: str = TRAIN, **extra: str
) -> subprocess.Popen[bytes]:
    """Start a process whose torch asks the agent in ``folder`` by itself."""
    variables = {
        **OWN,
        "KINETO_IPC_SOCKET_DIR": str(folder),
        "KINETO_CONFIG": f"{folder}/kineto.conf",
        **extra,
    }
    return start(tmp_path, "", script, **variables)


def count_steps(pid: int) -> int:
    """Return how many steps a process has made, as an agent reads it; -1 when it does not tell."""
    counter = open_counter(pid)
    if counter is None:
        return -1
    found = counter.read()
    counter.close()
    return found[-1].steps if found else 0


@pytest.mark.parametrize("starts", [start, pytest.param(start_own, marks=pytest.mark.slow)])
def test_steps_are_told_at_any_moment_and_by_this_process_only(
    tmp_path: Path, starts: Callable[..., subprocess.Popen[bytes]]
) -> None:
    script = TRAIN.replace("print(", "for _ in range(40): step()\nprint(", 1)
    script = script.replace("while not", "sys.stdin.readline()\nwhile not")
    # A child that steps, and one descriptor after the other closed and used for a file of its own.
    then = """
pid = os.fork()
if pid == 0:
    for _ in range(500): step()
    os._exit(0)
os.waitpid(pid, 0)
links = {fd: f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")}
names = {fd: os.readlink(link) for fd, link in links.items() if os.path.lexists(link)}
(counter,) = [int(fd) for fd, name in names.items() if "whystuck-steps" in name]
os.close(counter)
other = os.open("mine", os.O_CREAT | os.O_RDWR)
mine = os.dup2(other, counter)
step()
class Last:
    def __del__(self): os.write(mine, b"whole")
last = Last()
"""
    with fabric() as served:
        process = starts(tmp_path, served.folder, script)
        read_until_trained(process)
        assert count_steps(process.pid) == 40
        counter = open_counter(process.pid)
        assert counter is not None
        older, *_, newest = counter.read()
        assert 26 <= older.steps < newest.steps == 40
        assert 0 < newest.time_ns - older.time_ns < time.time_ns() - older.time_ns
        code, out, err = end(process, f"go\n{then}sys.exit(42)")
        assert (code, out, err) == (42, b"", b"")
        assert (tmp_path / "mine").read_bytes() == b"whole"
        # The loop made some, the child none, and the last was made without a descriptor.
        assert 41 <= counter.read()[-1].steps < 500
        counter.close()


@pytest.mark.parametrize(
    "way", ["sys.exit(42)", pytest.param("raise SystemExit(42)", marks=pytest.mark.slow)]
)
def test_process_that_torch_itself_leads_can_end_in_the_middle_of_a_trace(
    tmp_path: Path, way: str
) -> None:
    with fabric() as served:
        process = start_own(tmp_path, served.folder)
        read_until_trained(process)
        served.ask(LONG, file=tmp_path / "trace.json")
        wait_for_window(served)
        assert end(process, way) == (42, b"", b"")


@pytest.mark.slow
def test_process_that_torch_itself_leads_is_rescued(tmp_path: Path) -> None:
    with fabric() as served:
        script = TRAIN.replace("exec(", "print(flush=True)\nexec(")
        process = start_own(tmp_path, served.folder, script)
        read_until_trained(process)
        served.ask(
            "PROFILE_START_ITERATION=0",
            "ACTIVITIES_ITERATIONS=20000",
            file=tmp_path / "trace.json",
        )
        wait_for_window(served)
        before = count_steps(process.pid)
        # It steps no more from now on, but for one at the end.
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"while not os.path.exists('go'): time.sleep(0.05)\nstep()\n")
        process.stdin.close()
        assert process.stdout.readline() == b"\n"
        (served.folder / f"trace-{process.pid}").touch()
        (served.folder / f"rescue-{process.pid}").touch()
        wait_until(lambda: [*tmp_path.glob("trace_*.json")])
        counter = open_counter(process.pid)
        assert counter is not None
        (tmp_path / "go").touch()
        with process:
            assert process.wait(END_S) == 0
        # The number of the last one is Kineto's own: what was made up for counts.
        assert counter.read()[-1].steps > before + 19_000
        counter.close()


@pytest.mark.slow
def test_rank_that_was_asked_for_iterations_when_it_was_stuck_can_be_traced_again(
    tmp_path: Path,
) -> None:
    with fabric() as served:
        process = start(tmp_path, served.folder)
        read_until_trained(process)
        assert process.stdin is not None
        process.stdin.write(b"while not os.path.exists('go'): time.sleep(0.05)\nstep()\n")
        process.stdin.close()
        served.wait_for_polls(2)
        (served.folder / f"trace-{process.pid}").touch()
        served.ask(
            "PROFILE_START_ITERATION=0", "ACTIVITIES_ITERATIONS=3", file=tmp_path / "first.json"
        )
        wait_until(served.replies.empty)
        served.wait_for_polls(1)
        mark = served.folder / f"rescue-{process.pid}"
        mark.touch()
        wait_until(lambda: [*tmp_path.glob("first_*.json")] and not mark.exists())
        # Kineto may lose what comes while it is still putting the first one away.
        asked = served.ask_until(tmp_path, "ACTIVITIES_DURATION_MSECS=100", name="second")
        assert asked < 5
        (tmp_path / "go").touch()
        with process:
            assert process.wait(END_S) == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", ["WHYSTUCK_DISABLE", "no agent of ours"])
def test_process_that_torch_itself_leads_is_left_alone_where_nobody_asked(
    tmp_path: Path, how: str
) -> None:
    script = TRAIN.replace("exec(", 'assert "_whystuck_probe" not in sys.modules\nexec(')
    with fabric() as served:
        extra = {how: "1"} if how.isupper() else {"KINETO_CONFIG": "/nonexistent"}
        if not how.isupper():
            (served.folder / "kineto.conf").unlink()
        variables = {**OWN, "KINETO_IPC_SOCKET_DIR": str(served.folder), **extra}
        process = start(tmp_path, "", script, **variables)
        read_until_trained(process)
        assert count_steps(process.pid) == -1
        assert end(process, "sys.exit(42)") == (42, b"", b"")


BROKEN = {
    "shared_steps.py": ("        words = self._words\n", "        1 / 0\n"),
    "kineto/client.py": (
        "        if library.is_used:",
        "        1 / 0\n        if library.is_used:",
    ),
    "kineto/agent_discovery.py": (
        "    folder = os.environ.get(SOCKET",
        "    1 / 0\n    folder = os.environ.get(SOCKET",
    ),
    "kineto/folder.py": ("    if not os.path.isabs", "    1 / 0\n    if not os.path.isabs"),
}


@pytest.mark.slow
@pytest.mark.parametrize("starts", [start, start_own])
@pytest.mark.parametrize("file", BROKEN)
def test_process_with_a_broken_probe_trains_and_ends_as_without_it(
    tmp_path: Path, starts: Callable[..., subprocess.Popen[bytes]], file: str
) -> None:
    # The entry point of the installed one finds this one, which lies before it.
    (tmp_path / "whystuck").mkdir()
    (tmp_path / "whystuck" / "__init__.py").touch()
    copy_probe(tmp_path / "whystuck", file, *BROKEN[file])
    with fabric() as served:
        process = starts(tmp_path, served.folder, PYTHONPATH=str(tmp_path))
        read_until_trained(process)
        then = "assert sys.modules['whystuck'].__file__.startswith(os.getcwd())\nsys.exit(42)"
        code, out, err = end(process, then)
    assert (code, out, err) == (42, b"", b"")
