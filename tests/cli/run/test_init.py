"""The start scripts of ``whystuck init``: what goes wrong in such scripts does not here."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from tests.disks import freezable_disk
from tests.launch.running import clean_environment, run_whystuck, torchrun

from whystuck.cli.run.init import make_script
from whystuck.collect.processes.proc_files import is_alive

KINDS = ["bash", "slurm", "kubernetes"]
# Takes the place of `whystuck run ... --`, whose own tests are elsewhere.
PASS_ON = '#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n'


class Script:
    """A start script whose job is some lines of shell."""

    def __init__(self, folder: Path, job: str, *, prepare: str = ":") -> None:
        self.folder = folder
        self.logs = folder / "my logs"
        (folder / "bin").mkdir()
        stub = folder / "bin/whystuck"
        stub.write_text(PASS_ON)
        stub.chmod(0o755)
        text = make_script("bash", ("bash", "-c", job)).replace("\n    :\n", f"\n    {prepare}\n")
        self.path = folder / "start.sh"
        self.path.write_text(text)

    def start(self, **variables: str) -> subprocess.Popen[str]:
        """Start it."""
        path = f"{self.folder}/bin{os.pathsep}{os.environ['PATH']}"
        environment = {"PATH": path, "LOG_DIR": str(self.logs), "HOSTNAME": "n7", **variables}
        return subprocess.Popen(
            ["bash", str(self.path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )

    def run(self, **variables: str) -> tuple[int, str]:
        """Run it to its end; return the code and the output."""
        process = self.start(**variables)
        output, _ = process.communicate(timeout=50)
        return process.returncode, output

    @property
    def log(self) -> str:
        """The one log."""
        (path,) = self.logs.glob("*.log")
        return path.read_text()


@pytest.mark.parametrize("code", [0, 1, 7, 42])
def test_the_code_of_the_job_is_kept(tmp_path: Path, code: int) -> None:
    assert Script(tmp_path, f"exit {code}").run()[0] == code


def test_the_code_of_a_job_that_a_signal_ended_is_kept(tmp_path: Path) -> None:
    assert Script(tmp_path, "kill -SEGV $$").run()[0] == 128 + signal.SIGSEGV


def test_log_and_output_are_the_same_and_whole(tmp_path: Path) -> None:
    script = Script(tmp_path, "seq 20000; echo last >&2; exit 3")
    code, output = script.run()

    assert code == 3
    assert script.log == output
    assert "20000\nlast\n" in output


def test_stages_have_time_host_and_state(tmp_path: Path) -> None:
    _, output = Script(tmp_path, "exit 5").run()

    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d n7 "
    told = re.findall(rf"(?m)^{stamp}(.*)$", output)
    assert told[:4] == [
        "stage prepare begins",
        "stage prepare ends with code 0",
        "stage train begins",
        "stage train ends with code 5",
    ]
    assert told[4].startswith("failed with code 5; the log is ")


def test_a_step_that_fails_before_the_job_ends_it_with_its_code(tmp_path: Path) -> None:
    script = Script(tmp_path, "echo trains", prepare="false; echo goes on")
    code, output = script.run()

    assert code == 1
    assert "goes on" not in output
    assert "trains" not in output
    assert "stage prepare ends with code 1" in output


def test_each_start_has_a_log_of_its_own(tmp_path: Path) -> None:
    script = Script(tmp_path, "echo out")
    script.run()
    script.run()
    script.run(HOSTNAME="n8")

    assert len(list(script.logs.glob("*.log"))) == 3
    assert len(list(script.logs.glob("*-n8-*.log"))) == 1


def test_logs_are_for_their_owner_and_what_the_job_writes_follows_its_umask(
    tmp_path: Path,
) -> None:
    script = Script(tmp_path, f"echo HF_TOKEN=x; echo y >{tmp_path}/of-job; umask")
    before = os.umask(0o022)
    try:
        _, output = script.run()
    finally:
        os.umask(before)

    assert "\n0022\n" in output
    (log,) = script.logs.glob("*.log")
    modes = [path.stat().st_mode & 0o777 for path in (log, tmp_path / "of-job", script.logs)]
    assert modes == [0o600, 0o644, 0o755]


def test_a_signal_reaches_the_job_at_once_and_its_code_is_kept(tmp_path: Path) -> None:
    job = "trap 'echo saved; exit 9' TERM; echo up; sleep 60 & wait"
    process = Script(tmp_path, job).start()
    assert process.stdout is not None
    for line in process.stdout:
        if line == "up\n":
            break
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=50)

    assert process.returncode == 9
    assert "saved\n" in output


def test_what_a_job_leaves_running_holds_up_nobody(tmp_path: Path) -> None:
    script = Script(tmp_path, "sleep 60 & echo done; exit 2")
    code, output = script.run()

    assert code == 2
    assert "done\n" in output
    assert "stage train ends with code 2" in script.log


@pytest.mark.parametrize("how", ["file", "signal"])
def test_a_scene_that_is_kept_is_released_and_the_real_code_follows(
    tmp_path: Path, how: str
) -> None:
    script = Script(tmp_path, "true", prepare="exit 6")
    process = script.start(HOLD_S="600")
    assert process.stdout is not None
    for line in process.stdout:
        if "the scene is kept" in line:
            break
    if how == "file":
        (script.logs / "release").touch()
    else:
        process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=50)

    assert process.returncode == 6
    assert "the scene is left" in output


def test_words_of_the_command_are_quoted(tmp_path: Path) -> None:
    script = Script(tmp_path, "printf '%s|' \"a b\" '$HOME'; echo \"$0\"")

    assert "a b|$HOME|" in script.run()[1]


HOSTILE = (
    "printf", "%s\\0", "a\nEND_OF_START\ntouch broken\n", "  \n    \n", "$(touch broken)", "`id`",
    "a'b\\n\"c", "@START@", "@COMMAND@", "\x1b[31m\r\x7f", "x\u2028y\x85z", "\u202e", "'\\\n'",
    os.fsdecode(b"\xff\xfe"), "-e", "\x01a", "",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_no_word_of_the_command_is_more_than_a_word(tmp_path: Path, kind: str) -> None:
    script = make_script(kind, HOSTILE)
    if kind == "kubernetes":
        yaml = pytest.importorskip("yaml")
        script = next(iter(yaml.safe_load_all(script)))["data"]["start.sh"]
    elif kind == "slurm":
        script = script.partition("<<'END_OF_START'\n")[2].partition("\nEND_OF_START\n")[0]
    (line,) = (one for one in script.split("\n") if one.startswith("COMMAND=("))
    done = subprocess.run(
        ["bash", "-c", f'{line}; "${{COMMAND[@]:10}}"'],
        check=True, capture_output=True, cwd=tmp_path, env={"LOG_DIR": "logs", "LC_ALL": "C"},
    )  # fmt: skip

    assert done.stdout.split(b"\0")[:-1] == [os.fsencode(word) for word in HOSTILE[2:]]
    assert not (tmp_path / "broken").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_scripts_are_shell_and_run_the_job_under_watch(tmp_path: Path, kind: str) -> None:
    done = run_whystuck("init", kind, cwd=tmp_path)
    text = done.stdout.decode()
    assert done.returncode == 0

    if kind == "kubernetes":
        yaml = pytest.importorskip("yaml")
        config, service, job = yaml.safe_load_all(text)
        script = config["data"]["start.sh"]
        pod = job["spec"]["template"]["spec"]
        assert service["metadata"]["name"] == pod["subdomain"]
        assert {one["name"] for one in pod["volumes"]} == {"start", "shm", "logs"}
    else:
        script = text
    path = tmp_path / "start.sh"
    path.write_text(script)
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
    assert "whystuck run --check --hold " in script
    assert "| tee" not in script
    assert "$$HOSTNAME" not in script


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="there is no shellcheck")
@pytest.mark.parametrize("kind", ["bash", "slurm"])
def test_scripts_pass_shellcheck(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "start.sh"
    path.write_text(make_script(kind))
    done = subprocess.run(["shellcheck", str(path)], check=False, capture_output=True, text=True)

    assert done.stdout == ""


def test_the_script_for_slurm_keeps_the_code_and_starts_each_node(tmp_path: Path) -> None:
    # GIVEN stand-ins for Slurm: one node
    script = Script(tmp_path, "echo trains on $MASTER_ADDR; exit 4")
    for name, text in (
        ("srun", 'while [ "$1" != bash ]; do shift; done; exec "$@"'),
        ("scontrol", "echo n7"),
    ):
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    script.path.write_text(make_script("slurm", ("bash", "-c", "echo on $MASTER_ADDR; exit 4")))
    code, output = script.run(
        SLURM_JOB_ID="77", SLURM_NNODES="1", SLURM_JOB_NODELIST="n7", SLURM_SUBMIT_DIR=str(tmp_path)
    )

    assert code == 4
    assert "on n7\n" in output
    assert (script.logs / "start-0.sh").exists()


@pytest.mark.parametrize(
    ("kind", "coordinator", "words"),
    [
        ("slurm", "", []),
        ("slurm", "n 0", ["--coordinator", "n 0"]),
        ("kubernetes", "", []),
        ("kubernetes", "n0", ["--coordinator", "n0", "--nnodes", "4", "--node-rank", "3"]),
    ],
)
def test_nodes_meet_where_that_is_asked_for(kind: str, coordinator: str, words: list[str]) -> None:
    (line,) = (one for one in make_script(kind, ("a",)).split("\n") if "COMMAND=(" in one)
    known = {"HOLD_S": "0", "MAX_RESTARTS": "2", "LOG_DIR": "logs", "NNODES": "4"}
    done = subprocess.run(
        ["bash", "-euc", f'{line.strip()}; printf "%s\\0" "${{COMMAND[@]}}"'],
        check=True, capture_output=True,
        env=known | {"NODE_RANK": "3", "COORDINATOR": coordinator, "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    told = done.stdout.decode().split("\0")[:-1]

    assert told[told.index("logs/whystuck") + 1 :] == [*words, "--", "a"]


@pytest.mark.parametrize(
    ("kind", "options", "nodes"),
    [
        ("slurm", [], ["--nnodes", "4", "--rdzv-backend", "c10d", "--rdzv-endpoint", "n0:1"]),
        ("kubernetes", [], ["--nnodes", "3", "--rdzv-backend", "c10d", "--rdzv-endpoint", "n0:1"]),
        ("bash", [], []),
        ("slurm", ["--nnodes=2:4"], []),
        ("slurm", ["--rdzv_endpoint", "n9:1"], []),
        ("kubernetes", ["--master-addr", "n9"], []),
    ],
)
def test_torchrun_of_each_node_starts_a_part_of_one_job(
    kind: str, options: list[str], nodes: list[str]
) -> None:
    command = ("torchrun", *options, "--nproc-per-node", "8", "a b.py")
    (line,) = (one for one in make_script(kind, command).split("\n") if "COMMAND=(" in one)
    known = {"SLURM_NNODES": "4", "NNODES": "3", "SLURM_JOB_ID": "7", "MASTER_ADDR": "n0"}
    known |= {"HOLD_S": "0", "MAX_RESTARTS": "0", "LOG_DIR": "logs", "MASTER_PORT": "1"}
    done = subprocess.run(
        ["bash", "-ec", f'{line.strip()}; printf "%s\\0" "${{COMMAND[@]}}"'],
        check=True, capture_output=True, env=known | {"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    words = done.stdout.decode().split("\0")[:-1]
    words = words[words.index("torchrun") + 1 :]

    assert words[: len(nodes)] == nodes
    assert words[-3 - len(options) :] == [*options, "--nproc-per-node", "8", "a b.py"]
    assert ("--rdzv-id" in words) is bool(nodes)


def test_a_file_is_written_when_asked_for(tmp_path: Path) -> None:
    done = run_whystuck("init", "-o", "job.sh", "bash", "--", "python", "a b.py", cwd=tmp_path)

    assert (done.returncode, done.stdout) == (0, b"")
    text = (tmp_path / "job.sh").read_text()
    assert "\" -- python 'a b.py')" in text


def test_a_folder_for_logs_that_is_not_there_is_made(tmp_path: Path) -> None:
    script = Script(tmp_path, "echo out")
    process = subprocess.run(
        ["bash", str(script.path)],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}", "HOSTNAME": "n7"},
        capture_output=True,
        check=True,
        timeout=50,
    )
    assert process.stdout.count(b"out\n") == 1
    (log,) = (tmp_path / "logs").glob("job-n7-*.log")
    assert re.fullmatch(r"job-n7-\d{8}T\d{6}Z-\d+\.log", log.name)


def test_a_variable_that_is_not_set_ends_the_job_before_it_starts(tmp_path: Path) -> None:
    code, output = Script(tmp_path, "echo trains", prepare='echo "$NOT_SET"').run()

    assert code != 0
    assert "trains" not in output


@pytest.mark.skipif(os.getuid() != 0, reason="a namespace of pids needs root")
@pytest.mark.parametrize("moment", ["training", "holding"])
def test_as_the_first_process_of_a_container_it_ends_at_once(tmp_path: Path, moment: str) -> None:
    # GIVEN the script as PID 1, which has no default for signals
    is_holding = moment == "holding"
    job = "trap 'exit 9' TERM; echo up; sleep 600 & wait"
    script = Script(tmp_path, job, prepare="exit 6" if is_holding else ":")
    script.path.write_text(f'echo "pid $$"\n{script.path.read_text()}')
    path = f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "LOG_DIR": str(script.logs), "HOSTNAME": "n7", "HOLD_S": "600"}
    process = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", "bash", str(script.path)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "pid 1\n"
    for line in process.stdout:
        if ("the scene is kept" if is_holding else "up\n") in line:
            break
    (first,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(first), signal.SIGTERM)
    process.communicate(timeout=50)

    assert process.returncode == (6 if is_holding else 9)


# ------------------------------------------------------------------------- the script as it is made

JOB = """
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
Path(f"pid-{dist.get_rank()}").write_text(str(os.getpid()))
print("rank", dist.get_rank(), "is here", flush=True)
dist.barrier()
if dist.get_rank() == 1:
    if sys.argv[1] == "raise":
        raise ValueError("bad row")
    time.sleep(3600)
dist.barrier()
"""


def start_real(
    folder: Path, command: list[str], options: str = "run", **variables: str
) -> subprocess.Popen[str]:
    """Start the script as it is made, with `whystuck` itself; ``options`` are more of `run`."""
    script = folder / "start.sh"
    text = make_script("bash", tuple(command))
    script.write_text(text.replace("whystuck run --check", f"whystuck {options}"))
    return subprocess.Popen(
        ["bash", str(script)],
        cwd=folder, env=clean_environment(LOG_DIR="logs", **variables),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [("raise", 1), ("hang", 124)])
def test_what_it_keeps_are_processes_and_each_rank_has_a_log_with_times(
    tmp_path: Path, how: str, code: int
) -> None:
    # GIVEN a real job that fails, or hangs
    train = tmp_path / "train.py"
    train.write_text(JOB)
    process = start_real(tmp_path, torchrun(2, train, how), "run --stall-after 4", HOLD_S="600")
    assert process.stdout is not None
    for line in process.stdout:
        if "the scene is kept for" in line:
            break
    pids = [int((tmp_path / f"pid-{rank}").read_text()) for rank in (0, 1)]
    assert all(map(is_alive, pids))
    (tmp_path / "logs/whystuck/release").touch()
    output, _ = process.communicate(timeout=90)

    assert process.returncode == code
    assert output.count("the scene is kept") == 0
    assert not any(map(is_alive, pids))
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+"
    for rank in (0, 1):
        (log,) = (tmp_path / "logs/whystuck/rounds/0").glob(f"*/rank-{rank}/log.txt")
        assert re.search(rf"(?m)^{stamp}.* rank {rank} is here$", log.read_text())


@pytest.mark.slow
def test_a_signal_to_the_script_ends_all_ranks_of_a_real_job(tmp_path: Path) -> None:
    train = tmp_path / "train.py"
    train.write_text(JOB)
    process = start_real(tmp_path, torchrun(2, train, "wait"), "run", HOLD_S="600")
    assert process.stdout is not None
    seen = 0
    for line in process.stdout:
        seen += "is here" in line
        if seen == 2:
            break
    pids = [int((tmp_path / f"pid-{rank}").read_text()) for rank in (0, 1)]
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=90)

    # torchrun ends with 1 when it was told to end, and nothing is kept then.
    assert process.returncode == 1
    assert "the scene is kept" not in output
    assert not any(map(is_alive, pids))


@pytest.mark.slow
def test_its_checks_read_past_the_cache_and_say_what_a_bandwidth_is(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(
        'checks = ["disk", "allreduce"]\n[disk]\ntest_mb = 4\nmin_free_mb = 0\n'
        "min_free_share = 0.0\n[allreduce]\nmegabytes = 1\nmin_gloo_gbps = 0.0\n"
    )
    with freezable_disk(tmp_path) as disk:
        checked = f"run --check --check-policy {policy}"
        process = start_real(disk.path, ["true"], checked)
        output, _ = process.communicate(timeout=120)
        log = (disk.path / "logs/whystuck/fault.log").read_text()
        (record,) = disk.path.rglob("checks.json")
        results = json.loads(record.read_text())["results"]

    assert process.returncode == 0, output
    assert re.search(rf"(?m) {disk.path} RW TEST: \d+ MB/s \d+ MB/s$", log)
    (read,) = {one["facts"]["read"] for one in results if one["subject"] == str(disk.path)}
    assert read == "past the cache (O_DIRECT)"
    (told,) = (one for one in results if one["name"] == "allreduce")
    assert "busbw = 2(n-1)/n" in told["facts"]["bus bandwidth"]
    reduced = r"AllReduce Check: Succeed \(all_reduce, gloo, n=2, 1 MiB float32, bus bandwidth "
    assert re.search(reduced + r"[\d.]+ GB/s, min over ranks\)", log)
