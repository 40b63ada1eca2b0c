"""The watched file: what ranks take over from it, when, and what they tell."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.backends import adapt, on_both_slowly
from tests.launch.running import END, clean_environment
from tests.probe.job import PROBE_DIR, copy_probe, job_dir, start_rank

from whystuck.collect.beats import read_beat
from whystuck.probe import files
from whystuck.probe.oplog.main_thread import run_in_main_thread
from whystuck.probe.progress import Counts
from whystuck.probe.switch import MARKS, MAX_BYTES, Later, Parts, Setting, Switch


class Bench:
    """One switch with a part for each kind, and what came of it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "switch.json"
        self.counts = Counts()
        self.parts = Parts()
        self.seen: list[tuple[str, int, int]] = []
        self.told: list[dict[str, object]] = []
        self.parts.register("comm", self._note)
        self.parts.register("inspect", self._refuse, is_spec=True)
        self.switch = Switch(str(self.file), self.parts, self.counts, self.told.append)

    def _note(self, setting: Setting) -> None:
        self.seen.append((setting.value, setting.generation, setting.step))

    def _refuse(self, setting: Setting) -> str:
        if setting.value == "raise":
            raise OSError("disk full")
        return "" if setting.value in ("off", "nan") else f"`{setting.value}` is not understood"

    def write(self, **state: object) -> None:
        part = self.file.with_name("part")
        part.write_text(json.dumps(state))
        part.replace(self.file)
        self.switch.look()

    def truncate(self, text: str) -> None:
        self.file.write_text(text)
        self.switch.look()

    def step(self) -> None:
        """Make one optimizer step, as the hook of the probe counts it."""
        self.counts.optimizer_steps += 1
        if self.counts.due is not None:
            self.counts.due(self.counts.optimizer_steps)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_change_before_the_first_step_is_applied_at_once(bench: Bench) -> None:
    bench.write(generation=1, at_step=50, comm="on")
    assert bench.seen == [("on", 1, 0)]
    assert bench.told == [
        {
            "generation": 1,
            "step": 0,
            "comm": "on",
            "marks": "off",
            "kinds": {"step": "off", "forward": "off", "checkpoint": "off", "dataloader": "off"},
            "inspect": "off",
            "error": "",
            "disarmed": {},
        }
    ]
    assert bench.counts.due is None


def test_part_that_was_disarmed_stays_off_and_says_why(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.write(generation=1, comm="on", inspect="nan")
    bench.step()
    bench.write(generation=2, at_step=3, inspect="off")
    monkeypatch.setattr(files, "DISARMED", {"ops": "it cost too much"})
    assert (bench.parts.is_on("ops"), bench.parts.list_keys("records")) == (True, [])
    bench.switch.turn_off("ops")
    bench.switch.look()
    told = bench.told[-1]
    assert (told["comm"], told["inspect"], told["error"]) == ("off", "nan", "")
    assert told["disarmed"] == {"ops": "it cost too much"}

    bench.step()
    bench.step()
    bench.switch.look()
    assert bench.told[-1]["inspect"] == "off", "what was due is done"
    bench.write(generation=3, at_step=3, comm="on", inspect="nan")
    bench.step()
    bench.switch.look()
    told = bench.told[-1]
    assert (told["comm"], told["inspect"]) == ("off", "nan")
    assert told["error"] == "comm: the probe has disarmed it: it cost too much"

    files.DISARMED["all"] = "it is forbidden"
    bench.switch.turn_off("all")
    bench.write(generation=4, inspect="finite")
    bench.step()
    bench.switch.look()
    told = bench.told[-1]
    assert (told["inspect"], told["generation"]) == ("off", 4)
    assert told["error"] == "inspect: the probe has disarmed it: it is forbidden"


@pytest.mark.slow
def test_ten_thousand_torn_files_never_change_the_state_wrongly(bench: Bench) -> None:
    chance = random.Random(8)
    word = "off"
    for turn in range(1, 10_001):
        new = ("off", "on")[chance.randrange(2)]
        text = json.dumps({"generation": turn, "comm": new, "inspect": "off"})
        bench.truncate(text[: chance.randrange(len(text))])
        assert bench.parts.values["comm"] == word
        if chance.random() < 0.1:
            bench.truncate(text)
            word = new
            assert (bench.told[-1]["generation"], bench.parts.values["comm"]) == (turn, word)
            assert bench.told[-1]["error"] == ""


def test_marks_stand_for_four_kinds_and_one_kind_is_stronger(bench: Bench) -> None:
    for key in MARKS:
        bench.parts.register(key, lambda _: None)
    bench.write(generation=1, marks="on", forward="off")
    told = bench.told[-1]
    assert (told["marks"], told["error"]) == ("mixed", "")
    assert told["kinds"] == {**dict.fromkeys(MARKS, "on"), "forward": "off"}
    bench.write(generation=2, marks="on")
    assert bench.told[-1]["marks"] == "on"


def test_change_waits_for_its_step(bench: Bench) -> None:
    bench.step()
    bench.write(generation=2, at_step=4, comm="on")
    for _ in range(2):
        bench.step()
    assert bench.seen == []
    bench.step()
    assert bench.seen == [("on", 2, 4)]
    assert bench.counts.due is None
    assert bench.told == [], "the job's thread writes no file"
    bench.switch.look()
    assert bench.told[0]["step"] == 4


def test_change_whose_step_is_over_is_applied_at_the_next(bench: Bench) -> None:
    for _ in range(9):
        bench.step()
    bench.write(generation=2, at_step=4, comm="on")
    assert bench.seen == []
    bench.step()
    assert bench.seen == [("on", 2, 10)]


def test_change_that_is_overtaken_is_applied_with_the_next(bench: Bench) -> None:
    bench.step()
    bench.write(generation=2, at_step=5, comm="on")
    bench.write(generation=3, at_step=7, inspect="nan")
    for _ in range(6):
        bench.step()
    bench.switch.look()
    assert bench.seen == [("on", 3, 7)]
    assert (bench.told[-1]["generation"], bench.told[-1]["inspect"]) == (3, "nan")


def test_file_without_a_generation_has_the_time_of_its_change(bench: Bench) -> None:
    bench.write(comm="on")
    bench.write(comm="on")
    stamps = [one["generation"] for one in bench.told]
    assert stamps[-1] == bench.file.stat().st_mtime_ns
    assert len(set(stamps)) == len(stamps)


def test_file_that_is_written_again_with_the_same_words_changes_nothing(bench: Bench) -> None:
    bench.write(generation=1, comm="on")
    bench.write(generation=1, comm="on")
    assert len(bench.seen) == len(bench.told) == 1


def test_file_changed_within_one_tick_of_the_clock_is_seen(bench: Bench) -> None:
    bench.write(generation=1, comm="off")
    before = bench.file.stat()
    bench.file.write_text(json.dumps({"generation": 2, "comm": "on"}).replace(" ", "", 1))
    bench.file.write_text(json.dumps({"generation": 2, "comm": "on"}))
    os.utime(bench.file, ns=(before.st_atime_ns, before.st_mtime_ns))
    bench.switch.look()
    assert bench.seen[-1] == ("on", 2, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"generation": 2, "comm": "of',
        "[]",
        '"on"',
        "null",
        "\x00\xff",
        "[" * 60000,
        '{"generation": -1, "comm": "off"}',
        '{"generation": true, "comm": "off"}',
        '{"generation": "2", "comm": "off"}',
        '{"generation": 2, "at_step": 1.5, "comm": "off"}',
        '{"generation": 9223372036854775808, "comm": "off"}',
        '{"generation": 2, "comm": "off"}' + " " * MAX_BYTES,
    ],
)
def test_nonsense_changes_nothing_until_it_makes_sense(bench: Bench, text: str) -> None:
    bench.write(generation=1, comm="on")
    bench.truncate(text)
    bench.step()
    bench.switch.look()
    assert bench.seen == [("on", 1, 0)]
    assert len(bench.told) == 1
    bench.truncate('{"generation": 3, "comm": "off"}')
    bench.step()
    assert bench.seen[-1] == ("off", 3, 2)


def test_file_that_goes_leaves_the_state(bench: Bench) -> None:
    bench.write(generation=1, comm="on")
    bench.file.unlink()
    bench.switch.look()
    bench.file.mkdir()
    bench.switch.look()
    bench.file.rmdir()
    os.mkfifo(bench.file)
    bench.switch.look()
    assert bench.parts.values["comm"] == "on"
    assert len(bench.told) == 1


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"comm": 1}, 'comm: the value must be "on" or "off"'),
        ({"comm": "On"}, 'comm: the value must be "on" or "off"'),
        ({"comm": None}, 'comm: the value must be "on" or "off"'),
        ({"inspect": ["nan"]}, "inspect: the value must be a text"),
        ({"inspect": "what"}, "inspect: `what` is not understood"),
        ({"inspect": "raise"}, "inspect: OSError: disk full"),
        ({"forward": "on"}, "forward: this key is not known here"),
        ({"colour": "red"}, "colour: this key is not known here"),
    ],
)
def test_part_that_cannot_be_applied_is_told_and_stays(
    bench: Bench, wrong: dict[str, object], error: str
) -> None:
    bench.write(generation=1, comm="on", inspect="nan")
    bench.write(**{"generation": 2, "comm": "on", **wrong})
    told = bench.told[-1]
    assert (told["generation"], told["error"]) == (2, error)
    assert (told["comm"], told["marks"], told["inspect"]) == ("on", "off", "nan")
    bench.write(generation=3, comm="off")
    assert bench.told[-1]["error"] == "", "what was wrong then is not told again"


def test_part_that_is_on_its_way_is_asked_until_it_has_come(bench: Bench) -> None:
    answers: list[str] = [Later("busy"), Later("busy"), "", ""]
    asked: list[str] = []

    def apply(setting: Setting) -> str:
        asked.append(setting.value)
        return answers.pop(0)

    bench.parts.register("comm", apply)
    bench.write(generation=1, comm="on")
    assert [(one["comm"], one["error"]) for one in bench.told] == [("off", "comm: busy")]
    bench.switch.look()
    assert len(bench.told) == 1
    bench.switch.look()
    bench.switch.look()
    assert [(one["comm"], one["error"]) for one in bench.told[1:]] == [("on", "")]
    assert asked == ["on"] * 3


def test_part_that_is_on_its_way_stays_wanted_when_another_changes(bench: Bench) -> None:
    answers: list[str] = [Later("busy"), ""]
    bench.parts.register("comm", lambda _: answers.pop(0))
    bench.write(generation=1, comm="on")
    bench.write(generation=2, inspect="nan")
    last = bench.told[-1]
    assert (last["generation"], last["comm"], last["inspect"], last["error"]) == (
        2,
        "on",
        "nan",
        "",
    )


def test_task_for_a_busy_main_thread_waits_for_it_alone() -> None:
    ran: list[bool] = []
    answers: list[str] = []

    def task() -> str:
        ran.append(threading.current_thread() is threading.main_thread())
        return "done"

    reader, writer = os.pipe()
    main = Path(f"/proc/self/task/{threading.main_thread().native_id}/syscall")

    def ask() -> None:
        while not main.read_text().startswith(f"0 {reader:#x} "):
            pass
        answers.extend(run_in_main_thread(task) for _ in range(2))
        os.write(writer, b"x")

    other = threading.Thread(target=ask)
    other.start()
    os.read(reader, 1)  # it runs no instruction until then
    other.join()
    os.close(reader)
    os.close(writer)
    assert [type(answer) for answer in answers] == [Later, Later]
    while not ran:
        pass
    assert ran == [True]
    other = threading.Thread(target=lambda: answers.append(run_in_main_thread(task)))
    other.start()
    while other.is_alive():
        pass
    assert (answers[-1], ran) == ("done", [True, True])


def test_errors_have_a_bound(bench: Bench) -> None:
    bench.write(generation=1, **{f"{'k' * 100}{number}": "x" for number in range(300)})
    assert len(str(bench.told[0]["error"])) <= 500


def test_acknowledgement_that_fails_is_tried_again(bench: Bench) -> None:
    told: list[dict[str, object]] = []
    disk_full = [True]

    def acknowledge(one: dict[str, object]) -> None:
        if disk_full:
            disk_full.pop()
            raise OSError
        told.append(one)

    switch = Switch(str(bench.file), bench.parts, bench.counts, acknowledge)
    bench.file.write_text('{"generation": 1, "comm": "on"}')
    with pytest.raises(OSError, match=r"^$"):
        switch.look()
    switch.look()
    switch.look()
    assert [one["generation"] for one in told] == [1]


def test_step_in_a_forked_child_switches_nothing(bench: Bench) -> None:
    bench.step()
    bench.write(generation=2, comm="on")
    pid = os.fork()
    if pid == 0:
        bench.step()
        os._exit(len(bench.seen))
    assert os.waitpid(pid, 0)[1] == 0
    bench.step()
    assert bench.seen == [("on", 2, 2)]


def test_steps_of_many_threads_apply_each_change_once(bench: Bench) -> None:
    """Writers that truncate, steps of two threads, looks of a third: all at the same time."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def repeat(work: Callable[[], None]) -> threading.Thread:
        def loop() -> None:
            try:
                while not stop.is_set():
                    work()
            except BaseException as error:
                failures.append(error)
                raise

        thread = threading.Thread(target=loop)
        thread.start()
        return thread

    bench.step()
    threads = [repeat(bench.step), repeat(bench.step), repeat(bench.switch.look)]
    for generation in range(1, 200):
        bench.file.write_text(json.dumps({"generation": generation, "comm": "on"}))
    deadline_s = time.monotonic() + 30
    while not bench.told or bench.told[-1]["generation"] != 199:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures
    generations = [generation for _, generation, _ in bench.seen]
    assert generations == sorted(set(generations))
    assert generations[-1] == 199


# ------------------------------------------------------------------------------------ real jobs

TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100000):
    model(torch.ones(2, 4)).sum().backward()
    dist.all_reduce(model.weight.grad)
    optimizer.step()
    time.sleep(0.005)
    over = torch.tensor([float(rank == 0 and os.path.exists(sys.argv[1]))])
    dist.broadcast(over, 0)
    if over.item():
        break
"""
TRAIN += END
# As a part of whystuck would do it.
REGISTER = "\nPARTS = Parts()\nPARTS.register('tested', lambda setting: None)\n"


def _wait_for(condition: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline_s, "it never happened"
        time.sleep(0.02)


def _acks(folder: Path) -> list[dict[str, object]]:
    # Without those that are being written.
    paths = [path for path in folder.glob("switched-*") if not path.suffix]
    found = [json.loads(path.read_text()) for path in paths]
    return sorted(found, key=lambda ack: str(ack["rank"]))


def _steps(folder: Path) -> list[int]:
    beats = [read_beat(path) for path in folder.glob("beat-*")]
    return [beat.optimizer_steps for beat in beats if beat is not None]


@pytest.mark.slow
@on_both_slowly
def test_ranks_of_a_real_job_switch_between_the_same_two_steps(tmp_path: Path) -> None:
    site = copy_probe(tmp_path, "switch.py", "\nPARTS = Parts()\n", REGISTER)
    script, done = tmp_path / "train.py", tmp_path / "done"
    script.write_text(adapt(TRAIN))
    with job_dir() as folder:
        target = folder / "switch.json"
        target.write_text('{"generation": 1, "tested": "on"}')
        process = subprocess.Popen(
            ["torchrun", "--standalone", "--nproc-per-node", "2", str(script), str(done)],
            env=clean_environment(PYTHONPATH=str(site), WHYSTUCK_JOB_DIR=str(folder)),
            cwd=tmp_path,
        )
        try:
            _wait_for(lambda: len(_acks(folder)) == 2)
            assert [(one["generation"], one["step"], one["tested"]) for one in _acks(folder)] == [
                (1, 0, "on"),
                (1, 0, "on"),
            ]
            _wait_for(lambda: len(_steps(folder)) == 2 and min(_steps(folder)) > 0)
            # far enough ahead: 5 ms a step at the least, and both ranks look once a second
            at_step = max(_steps(folder)) + 1200
            part = folder / "part"
            part.write_text(json.dumps({"generation": 2, "at_step": at_step, "tested": "off"}))
            part.replace(target)
            _wait_for(lambda: [one["generation"] for one in _acks(folder)] == [2, 2])
            assert [(one["rank"], one["step"], one["tested"]) for one in _acks(folder)] == [
                (0, at_step, "off"),
                (1, at_step, "off"),
            ]
            # a hand that truncates, and asks for what is not there
            target.write_text('{"generation": 3, "other": "on"')
            with target.open("a") as file:
                file.write("}")
            _wait_for(lambda: [one["generation"] for one in _acks(folder)] == [3, 3])
            assert {one["error"] for one in _acks(folder)} == {"other: this key is not known here"}
        finally:
            done.touch()
            process.wait()
        assert process.returncode == 0


COMPILED = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
from _whystuck_probe import progress
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
from torch._dynamo.testing import CompileCounter
counter = CompileCounter()

@torch.compile(backend=counter)
def step():
    optimizer.step()

for number in range(6):
    model(torch.ones(2, 4)).sum().backward()
    # a change comes and goes, as the probe's thread sees it
    progress.COUNTS.due = (lambda steps: None) if number % 2 else None
    step()
    optimizer.zero_grad(set_to_none=False)
    if number == 1:
        compiled = counter.frame_count
assert progress.COUNTS.optimizer_steps == 6, progress.COUNTS.optimizer_steps
assert counter.frame_count == compiled, (counter.frame_count, compiled)
print("same", flush=True)
dist.destroy_process_group()
"""


def test_compiled_step_is_not_compiled_anew_by_a_change(tmp_path: Path) -> None:
    with job_dir() as folder:
        process = start_rank(tmp_path, folder, script=COMPILED)
        out, err = process.communicate(timeout=200)
    assert (process.returncode, out) == (0, b"same\n"), err.decode()


def test_importing_the_probe_without_torch_does_not_load_the_switch() -> None:
    code = (
        "import os, sys\n"
        f"sys.path.insert(0, {str(PROBE_DIR / 'site')!r})\n"
        "os.environ['WHYSTUCK_JOB_DIR'] = '/'\n"
        "try:\n"
        "    import sitecustomize\n"
        "except ImportError as error:\n"
        "    assert error.name == 'sitecustomize'\n"
        "assert '_whystuck_probe.install' in sys.modules\n"
        "assert '_whystuck_probe.switch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-S", "-c", code], check=True, env=clean_environment())
