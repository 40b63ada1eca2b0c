"""``whystuck switch``, ``--switch-file``, and what a job leaves of both, with real jobs."""

from __future__ import annotations

import errno
import fcntl
import gzip
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.backends import on_both_slowly
from tests.launch.running import END, WHYSTUCK, clean_environment, run_whystuck, torchrun
from tests.probe.oplog.op_log_file import read_op_log

from whystuck.cli.run.switch import switch
from whystuck.collect.beats import LAYOUT, MAGIC, explain_no_beat
from whystuck.evidence.errors import UsageError
from whystuck.launch import jobdir, running
from whystuck.launch.options import SwitchOptions
from whystuck.launch.running import choose_running_job, find_running_jobs, write_running_job
from whystuck.launch.switch import ranks, switch_file
from whystuck.launch.switch.switch_file import OPS_BUFFER_ENV, Switches, SwitchFileFollower
from whystuck.launch.switch.switching import SwitchState, change_state, read_state, write_state

# ----------------------------------------------------------------------------- the file, alone


def _raw(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "switch.json").read_text())
    return found


def test_change_keeps_what_it_does_not_name(tmp_path: Path) -> None:
    write_state(tmp_path, SwitchState(generation=1, at_step=0, comm="on", inspect="nan"))
    change_state(tmp_path, SwitchState(marks="on"))
    assert _raw(tmp_path) == {
        "generation": 2,
        "at_step": 0,
        "comm": "on",
        **dict.fromkeys(("step", "forward", "checkpoint", "dataloader"), "on"),
        "inspect": "nan",
    }


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"comm": "yes"}', '{"comm": "on", "x": 1}'])
def test_state_that_nobody_can_read_is_off(tmp_path: Path, text: str) -> None:
    (tmp_path / "switch.json").write_text(text)
    assert read_state(tmp_path).comm == "off"
    assert change_state(tmp_path, SwitchState(comm="on")).generation == 1


@pytest.mark.parametrize("name", ["switch.lock", "switched", "beat"])
def test_pipes_and_links_that_a_job_lays_into_its_folder_hold_nobody(
    tmp_path: Path, name: str
) -> None:
    pid = os.getpid()
    beat = LAYOUT.pack(MAGIC, 1, time.monotonic_ns(), time.time_ns(), 0, 1, 0, 0, 0, 0, 0, 1)
    (tmp_path / f"beat-{pid}").write_bytes(beat)
    laid = tmp_path / (name if "." in name else f"{name}-{pid}")
    laid.unlink(missing_ok=True)
    os.mkfifo(laid)
    told: list[object] = []

    def work() -> None:
        told.append(explain_no_beat(tmp_path / f"beat-{pid}"))
        told.append([one.answer for one in ranks.live_ranks(tmp_path)])
        write_state(tmp_path, SwitchState(generation=1, comm="on"))
        try:
            told.append(change_state(tmp_path, SwitchState(at_step=0, comm="off")).comm)
        except OSError as error:
            told.append(error.errno)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)

    assert not thread.is_alive()
    assert told[1] == ([] if name == "beat" else [None])
    assert told[2] == (errno.ENXIO if name == "switch.lock" else "off")


def test_changes_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from whystuck.launch.switch.switching import SwitchState, change_state\n"
        "for _ in range(50): change_state(Path(sys.argv[1]), SwitchState(comm='on'))\n"
    )
    command = [WHYSTUCK[0], "-c", code, str(tmp_path)]
    both = [subprocess.Popen(command), subprocess.Popen(command)]
    assert [one.wait() for one in both] == [0, 0]
    assert read_state(tmp_path).generation == 100


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """A job folder whose lock another process holds, and does not let go."""
    with (tmp_path / "switch.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield tmp_path


def test_lock_that_another_process_holds_is_waited_for_no_longer_than_some_seconds(
    held: Path,
) -> None:
    told: list[object] = []

    def work() -> None:
        try:
            change_state(held, SwitchState(at_step=0, comm="on"))
        except OSError as error:
            told.append(error.strerror)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)

    assert told == ["another process has held `switch.lock` in its folder for 10 s"]
    assert not (held / "switch.json").exists()


# --------------------------------------------------------------------------- --switch-file FILE


class Followed:
    """A switch file of the user, and a job folder beside it."""

    def __init__(self, folder: Path) -> None:
        self.file, self.job_dir = folder / "user.json", folder / "job"
        self.job_dir.mkdir()
        self.told: list[str] = []
        self.follower = SwitchFileFollower(self.file, self.job_dir, self.told.append)

    def look(self, text: str | None = None, times: int = 1) -> dict[str, Any]:
        if text is not None:
            self.file.write_text(text)
        for _ in range(times):
            self.follower.look()
        return _raw(self.job_dir) if (self.job_dir / "switch.json").exists() else {}


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    return Followed(tmp_path)


def test_file_is_forwarded_with_its_own_numbers(followed: Followed) -> None:
    assert followed.look('{"generation": 7, "at_step": 40, "marks": "on"}') == {
        "generation": 7,
        "at_step": 40,
        "comm": "off",
        **dict.fromkeys(("step", "forward", "checkpoint", "dataloader"), "on"),
        "inspect": "off",
    }


def test_file_without_numbers_gets_the_time_of_its_change(followed: Followed) -> None:
    state = followed.look('{"comm": "on"}')
    assert (state["generation"], state["at_step"]) == (followed.file.stat().st_mtime_ns, 0)


def test_file_that_does_not_change_is_forwarded_once(followed: Followed) -> None:
    followed.look('{"generation": 1, "comm": "on"}')
    change_state(followed.job_dir, SwitchState(comm="off"))
    assert followed.look(times=3)["comm"] == "off"
    assert followed.look('{"generation": 1, "comm": "on"}')["comm"] == "off", "the same words"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it is not used: "),
        ('{"comm": "o', "it is not used: "),
        ('{"comm": "yes"}', "it is not used: Invalid enum value 'yes'"),
        ('{"comma": "on"}', "unknown field `comma`"),
        ('{"generation": -4}', "it is not used: Expected `int` >= 0"),
        ("[" * 60000, "it is not used: "),
        ('{"comm": "on"}' + " " * 70000, "it has more than 65536 bytes"),
    ],
)
def test_file_that_makes_no_sense_leaves_the_state_and_is_told_once(
    followed: Followed, text: str, words: str
) -> None:
    before = followed.look('{"generation": 1, "comm": "on"}')
    assert followed.look(text) == before
    assert followed.told == [], "it may be half written"
    assert followed.look(times=3) == before
    assert len(followed.told) == 1
    assert words in followed.told[0]
    assert followed.look('{"generation": 2, "comm": "off"}')["comm"] == "off"
    followed.look(text, times=3)
    assert len(followed.told) == 2, "it went wrong once more"


def test_file_that_is_no_file_is_told(followed: Followed) -> None:
    os.mkfifo(followed.file)
    followed.look(times=2)
    assert followed.told == [
        f"the switch file `{followed.file}`: it is not used: it is not a plain file"
    ]


def test_file_that_comes_late_and_goes(followed: Followed) -> None:
    assert followed.look(times=3) == {}
    assert followed.told == [f"the switch file `{followed.file}`: it is not there yet"]
    followed.look('{"comm": "on"}')
    followed.file.unlink()
    assert followed.look(times=3)["comm"] == "on"
    assert len(followed.told) == 1


def test_marks_stand_for_four_kinds_and_one_kind_is_stronger(followed: Followed) -> None:
    followed.look('{"generation": 1, "marks": "on", "forward": "off"}')
    state = read_state(followed.job_dir)
    assert (state.step, state.forward, state.checkpoint, state.dataloader) == (
        "on",
        "off",
        "on",
        "on",
    )
    assert followed.look('{"generation": 2, "forward": "on"}')["step"] == "on"
    state = change_state(followed.job_dir, SwitchState(marks="off"))
    assert {state.step, state.forward, state.checkpoint, state.dataloader} == {"off"}


def test_volume_that_kubernetes_replaces_is_followed(followed: Followed) -> None:
    """A ConfigMap: the file is a link into a folder, which is a link that is renamed."""
    volume = followed.file.parent / "volume"
    volume.mkdir()

    def write(turn: int, text: str) -> None:
        (volume / f"..{turn}").mkdir()
        (volume / f"..{turn}" / "switch.json").write_text(text)
        (volume / "..data_tmp").symlink_to(f"..{turn}")
        (volume / "..data_tmp").rename(volume / "..data")

    write(1, '{"marks": "on"}')
    (volume / "switch.json").symlink_to("..data/switch.json")
    follower = SwitchFileFollower(volume / "switch.json", followed.job_dir, followed.told.append)
    follower.look()
    assert read_state(followed.job_dir).forward == "on"
    write(2, '{"marks": "off", "comm": "on"}')
    follower.look()
    state = read_state(followed.job_dir)
    assert (state.forward, state.comm, followed.told) == ("off", "on", [])


WRITER = """
import os, random, sys
chance = random.Random(4)
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
for turn in range(1, int(sys.argv[2]) + 1):
    on = ("off", "on")[turn % 2]
    text = '{"generation": %d, "at_step": %d, "marks": "%s", "comm": "%s"}' % (turn, turn, on, on)
    text += " " * chance.randrange(60)
    data = (text + chr(10)).encode()
    cuts = sorted(chance.sample(range(1, len(data)), chance.randrange(4)))
    os.ftruncate(fd, 0)
    for start, stop in zip([0, *cuts], [*cuts, len(data)]):
        os.pwrite(fd, data[start:stop], start)
        if chance.random() < 0.2:
            os.sched_yield()
"""


@pytest.mark.slow
def test_ten_thousand_torn_writes_never_change_the_state_wrongly(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switch_file, "_CONFIRM_S", 0)
    followed.look('{"generation": 0, "at_step": 0, "marks": "off", "comm": "off"}')
    count = 10_000
    process = subprocess.Popen([WHYSTUCK[0], "-c", WRITER, str(followed.file), str(count)])
    seen, last = 0, 0
    while True:
        is_over = process.poll() is not None
        followed.follower.look()
        state = read_state(followed.job_dir)
        generation = state.generation or 0
        word = ("off", "on")[generation % 2]
        kinds = {state.step, state.forward, state.checkpoint, state.dataloader, state.comm}
        assert (kinds, state.at_step) == ({word}, generation)
        assert generation >= last, "an older state came back"
        seen += generation > last
        last = generation
        if is_over:
            break
    assert (process.returncode, last) == (0, count)
    assert seen > 10


def test_start_when_the_file_is_there_then_the_job_begins_as_it_says(tmp_path: Path) -> None:
    file = tmp_path / "user.json"
    file.write_text('{"generation": 5, "inspect": "nan"}')
    options = SwitchOptions(comm="on", file=file, ops_buffer=64)
    switches = Switches(options, tmp_path, lambda _: None)
    switches.start()
    switches.stop()
    assert switches.variables == {OPS_BUFFER_ENV: "64"}
    state = read_state(tmp_path)
    assert (state.generation, state.comm, state.inspect) == (5, "on", "nan")


# -------------------------------------------------------------------------------- finding a job


@contextmanager
def _job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job_id: str) -> Iterator[Path]:
    with monkeypatch.context() as patch:
        patch.setenv("SLURM_JOB_ID", job_id)
        with jobdir.make_job_dir() as folder:
            write_running_job(folder, ["torchrun", "train.py"], "n0", tmp_path, os.getpid())
            yield folder


@pytest.fixture
def own_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the job folders of others out of sight."""
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setattr(jobdir, "_MEMORY", root)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(root))
    return root


def test_no_job_is_an_error(own_root: Path) -> None:
    with pytest.raises(UsageError, match="no job runs here"):
        choose_running_job(None)


def test_only_job_needs_no_name(
    own_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _job(tmp_path, monkeypatch, "4711") as folder:
        for name in (None, "4711", "47", str(os.getpid())):
            assert choose_running_job(name).folder == folder
        with pytest.raises(UsageError, match="no job `4712`") as caught:
            choose_running_job("4712")
        assert "4711 (torchrun train.py)" in caught.value.hint
    assert find_running_jobs() == []


def test_switch_says_that_another_process_holds_the_lock(
    own_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        _job(tmp_path, monkeypatch, "1") as folder,
        (folder / "switch.lock").open("w") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="cannot be told: another process has held `switch"):
            switch.main(["set", "comm=on"], standalone_mode=False)


def test_several_jobs_are_listed(
    own_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _job(tmp_path, monkeypatch, "51") as first, _job(tmp_path, monkeypatch, "512") as second:
        assert choose_running_job("51").folder == first, "the whole name wins over a beginning"
        assert choose_running_job("512").folder == second
        with pytest.raises(UsageError, match="2 jobs run here") as caught:
            choose_running_job(None)
        assert "`--job 51`" in caught.value.hint
        with pytest.raises(UsageError, match=r"`5` may be: 51 .*; 512 "):
            choose_running_job("5")


def test_folders_of_others_are_passed_over(
    own_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _job(tmp_path, monkeypatch, "1") as folder:
        (own_root / folder.name.replace("whystuck-", "whystuck-x")).symlink_to(folder)
        (own_root / f"{jobdir.PREFIX}{os.getuid()}-link").symlink_to(folder)
        (own_root / f"{jobdir.PREFIX}{os.getuid()}-file").write_text("")
        dead = own_root / f"{jobdir.PREFIX}{os.getuid()}-dead"
        dead.mkdir()
        (dead / "owner").write_text(str(2**22 + 1))
        strange = own_root / f"{jobdir.PREFIX}{os.getuid()}-strange"
        strange.mkdir()
        (strange / "owner").write_text(str(os.getpid()))
        (strange / running._FILE_NAME).write_text("[")
        reused = own_root / f"{jobdir.PREFIX}{os.getuid()}-reused"
        reused.mkdir()
        (reused / "owner").write_text(str(os.getpid()))
        (reused / running._FILE_NAME).write_text('{"pid": 1, "started_ns": 1000}')
        assert [job.folder for job in find_running_jobs()] == [folder]


# ------------------------------------------------------------------------------------ real jobs

# The parts are put in place by the script, so that the test does not rest on what they do.
PARTS = """
from _whystuck_probe import switch
for key in ("comm", *switch.MARKS):
    switch.PARTS.register(key, lambda setting: None)
switch.PARTS.register("inspect", lambda s: "" if s.value in ("off", "finite") else "no such SPEC",
                      is_spec=True)
"""
STEPS = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("buffer", os.environ["WHYSTUCK_OPS_BUFFER"], flush=True)
while True:
    model(torch.ones(2, 4)).sum().backward()
    dist.all_reduce(model.weight.grad)
    optimizer.step()
    time.sleep(0.01)
    over = torch.tensor([float(rank == 0 and os.path.exists(sys.argv[1]))])
    dist.broadcast(over, 0)
    if over.item():
        break
"""
STEPS += END
TRAIN = STEPS.replace("dist.init", PARTS + "dist.init", 1)


def _wait_for(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline_s, "it never happened"
        time.sleep(0.05)


class Running:
    """A real job under ``whystuck run``."""

    def __init__(self, tmp_path: Path, *options: str, text: str = TRAIN) -> None:
        self.cwd, self.over = tmp_path, tmp_path / "over"
        script = tmp_path / "train.py"
        script.write_text(text)
        command = [*WHYSTUCK, "run", "--evidence", "ev", *options, "--"]
        self.process = subprocess.Popen(
            [*command, *torchrun(2, script, str(self.over))],
            cwd=tmp_path,
            env=clean_environment(SLURM_JOB_ID="s-77"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.name = str(self.process.pid)
        try:
            _wait_for(lambda: len(self._steps()) == 2 and min(self._steps()) > 0)
        except BaseException:
            self.end()
            raise

    def _steps(self) -> list[int]:
        assert self.process.poll() is None, self.process.communicate()
        found = [job for job in find_running_jobs() if self.name in job.names]
        return [r.beat.optimizer_steps for job in found for r in ranks.live_ranks(job.folder)]

    def switch(self, *words: str) -> tuple[int, dict[str, Any], str]:
        done = run_whystuck("switch", *words, "--job", self.name, "--format", "json", cwd=self.cwd)
        return done.returncode, json.loads(done.stdout or "{}"), done.stderr.decode()

    def end(self) -> tuple[int, bytes]:
        self.over.touch()
        out, _ = self.process.communicate(timeout=60)
        return self.process.returncode, out


@on_both_slowly
def test_running_job_is_switched_on_all_ranks_at_one_step(tmp_path: Path) -> None:
    user_file = tmp_path / "user.json"
    job = Running(tmp_path, "--comm", "off", "--ops-buffer", "99", "--switch-file", str(user_file))
    try:
        code, shown, _ = job.switch("get")
        assert (code, shown["wanted"]["comm"]) == (0, "off")
        assert (shown["job"]["id"], shown["job"]["pid"]) == ("s-77", job.process.pid)

        code, shown, err = job.switch("set", "comm=on", "inspect=finite")
        assert code == 0, err
        applied = [rank["applied"] for rank in shown["ranks"]]
        assert [rank["rank"] for rank in shown["ranks"]] == [0, 1]
        assert applied[0] == applied[1], "at the same step"
        assert applied[0]["step"] == shown["wanted"]["at_step"] > 0
        assert (applied[0]["comm"], applied[0]["marks"], applied[0]["inspect"]) == (
            "on",
            "off",
            "finite",
        )

        code, shown, err = job.switch("set", "inspect=sync")
        assert code == 3
        assert "could not be applied as a whole by 2 ranks (0, 1)" in err
        assert shown["ranks"][0]["applied"]["error"] == "inspect: no such SPEC"

        user_file.write_text('{"inspect": "off", "marks": "on"}')
        stamp = user_file.stat().st_mtime_ns
        _wait_for(
            lambda: (
                [rank["applied"]["generation"] for rank in job.switch("get")[1]["ranks"]]
                == [stamp, stamp]
            )
        )
        code, shown, _ = job.switch("set", "marks=off", "--no-wait")
        assert (code, shown["wanted"]["generation"]) == (0, stamp + 1)
        # A rank may be done before it is looked at: with no time to wait, both are right.
        code, shown, _ = job.switch("set", "marks=on", "--timeout", "0")
        is_applied = [
            rank["applied"]["generation"] == shown["wanted"]["generation"]
            for rank in shown["ranks"]
        ]
        assert code == (0 if all(is_applied) else 3)
    finally:
        code, out = job.end()
    assert (code, sorted(out.splitlines())) == (0, [b"buffer 99"] * 2)
    folder = next((tmp_path / "ev/rounds/0").iterdir())
    for rank in (0, 1):
        kept = json.loads((folder / f"rank-{rank}/switch.json").read_text())
        assert (kept["rank"], kept["comm"]) == (rank, "on")


@pytest.mark.slow
def test_rank_that_is_stopped_is_told(tmp_path: Path) -> None:
    job = Running(tmp_path)
    try:
        _, shown, _ = job.switch("get")
        stopped = shown["ranks"][1]["pid"]
        os.kill(stopped, signal.SIGSTOP)
        done = run_whystuck(
            "switch", "set", "comm=off", "--job", job.name, "--timeout", "4", cwd=tmp_path
        )
        os.kill(stopped, signal.SIGCONT)
    finally:
        job.end()
    assert done.returncode == 3
    assert "not applied yet by" in done.stderr.decode()
    row = next(line for line in done.stdout.decode().splitlines() if line.startswith("1 "))
    assert "its last beat is" in row


# ------------------------------------------------------------------------ op logs of real jobs

# What a rank writes, without its parts: the header, and who wrote it.
LEAVES_LOG = """
import os, struct, sys
from _whystuck_probe import files
def leave_log(text):
    header = b"WSOPS001".ljust(40, b"\\0") + struct.pack("<Q", 4096)
    with open(files.path_of("ops"), "wb") as file:
        file.write(header.ljust(4096, b"\\0") + text.encode())
"""

RESTARTED = (
    LEAVES_LOG
    + """
attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
leave_log(f"attempt {attempt} of rank {rank}")
if attempt < sys.argv[1]:
    if rank == "1":
        raise ValueError("again")
    import time; time.sleep(60)
"""
)


def _read_log(path: Path) -> str:
    return gzip.decompress(path.read_bytes())[4096:].decode()


def test_op_logs_of_all_attempts_are_kept(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RESTARTED)
    command = torchrun(2, script, "2")
    command.insert(1, "--max-restarts=2")
    done = run_whystuck("run", "--evidence", "ev", "--comm", "off", "--", *command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr.decode()
    node = next((tmp_path / "ev/rounds/0").iterdir())
    for rank in (0, 1):
        found = {path.name: _read_log(path) for path in (node / f"rank-{rank}").glob("ops*")}
        assert found == {
            "ops.ring.gz": f"attempt 2 of rank {rank}",
            "ops-attempt-0.ring.gz": f"attempt 0 of rank {rank}",
            "ops-attempt-1.ring.gz": f"attempt 1 of rank {rank}",
        }
    for number in (0, 1):
        incident = tmp_path / f"ev/incidents/00{number}" / node.name
        for rank in (0, 1):
            assert _read_log(incident / f"rank-{rank}/ops.ring.gz") == (
                f"attempt {number} of rank {rank}"
            )
    # the files are where the reports look, and do not disturb them
    done = run_whystuck("diagnose", "ev/rounds", "--format", "json", cwd=tmp_path)
    assert done.returncode in (0, 1, 3), done.stderr.decode()


STALL = (
    LEAVES_LOG
    + """
import time
import torch, torch.distributed as dist
leave_log("rank " + os.environ["RANK"])
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 2:
    os._exit(0)
if dist.get_rank() == 1:
    time.sleep(600)
dist.all_reduce(torch.ones(1))
"""
)


@pytest.mark.slow
def test_op_logs_of_a_stall_are_kept_also_of_ranks_that_ended(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(STALL)
    arguments = ("run", "--evidence", "ev", "--stall-after", "4", "--on-stall", "kill", "--comm")
    done = run_whystuck(*arguments, "off", "--", *torchrun(3, script), cwd=tmp_path)
    incident = next((tmp_path / "ev/incidents/000").glob("*/rank-0")).parent
    for rank in (0, 1, 2):
        assert _read_log(incident / f"rank-{rank}/ops.ring.gz") == f"rank {rank}", done.stderr
    node = tmp_path / "ev/rounds/0" / incident.name
    assert sorted(path.parent.name for path in node.rglob("ops.ring.gz")) == [
        "rank-0",
        "rank-1",
        "rank-2",
    ]


@pytest.mark.slow
def test_op_logs_of_a_job_that_was_switched_hold_the_same_ops(tmp_path: Path) -> None:
    job = Running(tmp_path, "--ops-buffer", "65536", text=STEPS)
    try:
        for value in ("off", "on"):
            code, shown, err = job.switch("set", f"comm={value}")
            assert code == 0, (err, shown)
    finally:
        code, _ = job.end()
    assert code == 0
    assert not list((tmp_path / "ev").glob("incidents/*"))
    logs = []
    for rank in (0, 1):
        (packed,) = (tmp_path / "ev/rounds/0").glob(f"*/rank-{rank}/ops.ring.gz")
        (tmp_path / f"{rank}.ring").write_bytes(gzip.decompress(packed.read_bytes()))
        logs.append(read_op_log(tmp_path / f"{rank}.ring"))
        assert logs[rank].about["rank"] == rank
        assert len(logs[rank].ops) > 0
        assert logs[rank].is_on
    notes = [
        [(note["what"], note["step"], note["generation"]) for note in log.notes] for log in logs
    ]
    assert notes[0] == notes[1]
    assert [(what, number) for what, _, number in notes[0]] == [("on", 1), ("off", 2), ("on", 3)]
    ops = [[(op.op, op.step) for op in log.ops] for log in logs]
    assert ops[0] == ops[1], "no op is on record of one rank only"
    off, on = notes[0][1][1], notes[0][2][1]
    assert 0 < off < on
    assert not {step for _, step in ops[0]} & set(range(off, on))


DIES = """
import os, signal, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for _ in range(5):
    dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(torch.ones(1))
"""


@on_both_slowly
def test_op_log_of_a_rank_that_was_killed_is_kept(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(DIES)
    done = run_whystuck("run", "--evidence", "ev", "--", *torchrun(2, script), cwd=tmp_path)
    assert done.returncode == 1
    packed = sorted((tmp_path / "ev").rglob("rank-1/ops.ring.gz"))
    assert [path.relative_to(tmp_path / "ev").parts[0] for path in packed] == [
        "incidents",
        "rounds",
    ]
    for path in packed:
        (tmp_path / "1.ring").write_bytes(gzip.decompress(path.read_bytes()))
        log = read_op_log(tmp_path / "1.ring")
        assert [op.op for op in log.ops] == ["all_reduce"] * 5
        assert all(op.returned_ns for op in log.ops)
