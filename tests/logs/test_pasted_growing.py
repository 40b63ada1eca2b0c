"""Pasted stacks of a rank in a save, beside looks at the file that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import say
from tests.logs.test_who import WAIT

from whystuck.evidence.finding import Verdict

SAVE = [
    'Thread 2291 (active): "MainThread"',
    "    _save (torch/serialization.py:862)",
    "    save (torch/serialization.py:628)",
    "    save_full (train/io.py:77)",
    "    main (train/main.py:240)",
]
REST = [
    "others:",
    'Thread 2292 (active): "MainThread"',
    "    barrier (torch/distributed/distributed_c10d.py:3683)",
    "    save_full (train/io.py:79)",
    "    main (train/main.py:240)",
]
STACKS = ["py-spy rank 0, three times, always like", *SAVE, *REST]
SIZES = [38927335424, 40957378560, 42983227392]


def list_sizes(*sizes: int | str, file: str = "ep1.pt") -> list[str]:
    return [f"-rw-r--r-- 1 me me {size} Nov 24 03:2{k} {file}" for k, size in enumerate(sizes)]


LOOKS = {
    "loop": ["$ while true; do date +%T; ls -l /s/ep1.pt | awk '{print $5}'; sleep 60; done"]
    + [text for k, size in enumerate(SIZES) for text in (f"03:2{k}:44", str(size))],
    "ls": list_sizes(*SIZES),
    "ls -lh": list_sizes("37G", "39G", "41G"),
    "du": ["$ for i in 1 2 3; do du -sh /s/ckpt/step_9; sleep 30; done"]
    + [f"{size}\t/s/ckpt/step_9" for size in ("37G", "38G", "41G")],
    "script": [
        f"[watch] 03:2{k}:44 rank0 io 1.9 GiB (~34 MB/s) ep1/optim.pt.tmp size {size}"
        for k, size in enumerate(("37 GiB", "39.1 GiB", "41 GiB"))
    ],
    "script of bytes": [f"03:2{k}:44 /s/ep1.pt: size={size}" for k, size in enumerate(SIZES)],
    "stat": ["$ watch -n 60 stat -c %s /s/global_step9/mp_rank_00_model_states.pt"]
    + [str(size) for size in SIZES],
}


@pytest.mark.parametrize("tool", LOOKS)
def test_save_whose_file_grows_is_not_stuck(tmp_path: Path, tool: str) -> None:
    report = say(tmp_path, *STACKS, *LOOKS[tool])

    assert report.verdict is Verdict.WAITING
    assert [(one.code, one.culprits.ranks) for one in report.findings[:1]] == [("H118", [0])]


def test_rate_is_told_where_looks_have_times(tmp_path: Path) -> None:
    (found,) = (
        one for one in say(tmp_path, *STACKS, *LOOKS["loop"]).findings if one.code[0] == "H"
    )

    assert found.measures["mb_per_s"] == pytest.approx(33.8, abs=0.1)


@pytest.mark.parametrize(
    "looks",
    [
        list_sizes(SIZES[0], SIZES[0], SIZES[0]),
        list_sizes(SIZES[0], SIZES[1], SIZES[1]),
        list_sizes(*SIZES[:2]),
        [f"03:2{k}:44 /s/ep1.pt: size={SIZES[0]}" for k in range(4)],
        [f"03:2{k}:44 /s/{k}.pt: size={size}" for k, size in enumerate(SIZES)],
        list_sizes(*SIZES, file="train.log"),
        list_sizes(*SIZES, file="ckpt_save.log"),
        [],
    ],
    ids=[
        "still",
        "still since",
        "two looks",
        "still by a script",
        "other files",
        "log",
        "log of saves",
        "none",
    ],
)
def test_file_that_does_not_grow_tells_of_no_progress(tmp_path: Path, looks: list[str]) -> None:
    report = say(tmp_path, *STACKS, *looks)

    assert "H118" not in {one.code for one in report.findings}
    assert report.verdict is not Verdict.WAITING


TWICE = [
    "$ ls -l /s/run3/; sleep 90; ls -l /s/run3/",
    "$ ls -lh --time-style=+%T /s/run3 ; sleep 90 ; ls -lh --time-style=+%T /s/run3",
    "$ stat -c '%s' /s/run3/ep1.pt && sleep 90 && stat -c '%s' /s/run3/ep1.pt",
]


@pytest.mark.parametrize("command", TWICE)
def test_two_looks_of_one_command_are_at_one_file(tmp_path: Path, command: str) -> None:
    shown = [str(size) for size in SIZES[:2]] if "stat" in command else list_sizes(*SIZES[:2])
    report = say(tmp_path, *STACKS, command, *shown)
    (found,) = (one for one in report.findings if one.code[0] == "H")

    assert (found.code, found.culprits.ranks) == ("H118", [0])
    assert found.measures["mb_per_s"] == pytest.approx(22.6, abs=0.1)


@pytest.mark.parametrize("commands", [TWICE[0], TWICE[1].replace(" ; ", "; ")])
def test_two_commands_with_a_pause_between_them_look_at_one_file(
    tmp_path: Path, commands: str
) -> None:
    first, second = list_sizes(*SIZES[:2])
    look, _, rest = commands.partition("; ")
    report = say(tmp_path, *STACKS, look, first, f"$ {rest}", second)
    (found,) = (one for one in report.findings if one.code[0] == "H")

    assert (found.code, found.culprits.ranks) == ("H118", [0])
    assert found.measures["mb_per_s"] == pytest.approx(22.6, abs=0.1)


@pytest.mark.parametrize("second", ["$ ls -l /s/run3/", "$ sleep 90; ls -l /s/run4/"])
def test_two_commands_may_look_at_two_files(tmp_path: Path, second: str) -> None:
    shown = list_sizes(*SIZES[:2])
    report = say(tmp_path, *STACKS, "$ ls -l /s/run3/", shown[0], second, shown[1])

    assert "H118" not in {one.code for one in report.findings}


@pytest.mark.parametrize(
    "command",
    [
        "$ ls -l /s/run3/; sleep 90; ls -l /s/run4/",
        "$ ls -l /s/run3/; ls -l /s/run3/",
        "$ ls -l /s/run3/",
    ],
)
def test_two_sizes_of_other_commands_may_be_of_two_files(tmp_path: Path, command: str) -> None:
    report = say(tmp_path, *STACKS, command, *list_sizes(*SIZES[:2]))

    assert "H118" not in {one.code for one in report.findings}


def test_two_looks_at_a_file_that_does_not_grow_tell_of_no_progress(tmp_path: Path) -> None:
    report = say(tmp_path, *STACKS, TWICE[0], *list_sizes(SIZES[0], SIZES[0]))

    assert "H118" not in {one.code for one in report.findings}


def test_file_that_grows_excuses_no_rank_that_is_elsewhere(tmp_path: Path) -> None:
    at = [STACKS[0], SAVE[0], "    reward (train/reward.py:12)", *SAVE[4:], *REST]

    assert "H118" not in {one.code for one in say(tmp_path, *at, *LOOKS["ls"]).findings}


@pytest.mark.parametrize(
    "heading",
    [
        "py-spy rank 3, three times in 5 min, always like",
        "pystack on rank 3 gives this",
        "stack trace of rank 3 below",
    ],
)
def test_tool_and_rank_above_a_stack_tell_whose_it_is(tmp_path: Path, heading: str) -> None:
    report = say(tmp_path, heading, *SAVE, *REST, *LOOKS["ls"])

    assert report.findings[0].culprits.ranks == [3]


@pytest.mark.parametrize(
    "heading", ["py-spy rank 3 and rank 4 look alike", "stack of rank 3 waits for another one"]
)
def test_sentences_about_several_ranks_name_none(tmp_path: Path, heading: str) -> None:
    report = say(tmp_path, heading, *SAVE, *REST, *LOOKS["ls"])

    assert report.findings[0].culprits.ranks == []


# --------------------------------------------------- several files in one loop, and what is written

OTHER = 98711043920
IN_ONE_LOOP = (
    "$ for i in 1 2 3; do date +%T; stat -c %s /s/ep1.pt.tmp; ls -l /s/ep0.pt | cut -d' ' -f5; "
    "grep ^write_bytes /proc/2291/io; sleep 60; done"
)


def look(*sizes: int, written: bool = True) -> list[str]:
    lines = [IN_ONE_LOOP]
    for k, size in enumerate(sizes):
        lines += [f"03:2{k}:44", str(size), str(OTHER)]
        lines += [f"write_bytes: {size + 7 * 10**12}"] if written else []
    return lines


PIDSTAT = [
    "$ pidstat -d 60 3 -p 2291",
    "Linux 5.15.0 (n1)  11/24/26  _x86_64_  (96 CPU)",
    "03:20:44 AM   UID       PID   kB_rd/s   kB_wr/s kB_ccwr/s iodelay  Command",
    *(
        f"03:2{k}:44 AM  1000      2291      0.00  3788{k}.00      0.00       0  python"
        for k in (1, 2, 3)
    ),
]
PROC = [
    "$ while :; do date +%T; cat /proc/2291/io | grep write_bytes; sleep 60; done",
    *(
        text
        for k, size in enumerate(SIZES)
        for text in (f"03:2{k}:44", f"write_bytes: {size + 10**12}")
    ),
]
PIDS = [
    "Process 2291: python train.py",
    *SAVE,
    "Process 2292: python train.py",
    *REST[1:],
]


@pytest.mark.parametrize("looks", [look(*SIZES), look(*SIZES, written=False), PIDSTAT, PROC])
def test_process_that_writes_is_not_stuck(tmp_path: Path, looks: list[str]) -> None:
    report = say(tmp_path, *PIDS, *looks)

    assert report.verdict is Verdict.WAITING
    assert [one.code for one in report.findings[:1]] == ["H118"]
    assert report.findings[0].measures["mb_per_s"] == pytest.approx(35, abs=4)


@pytest.mark.parametrize(
    "looks",
    [
        look(SIZES[0], SIZES[0], SIZES[0]),
        look(*SIZES[:2]),
        [line.replace("2291", "2292") for line in PIDSTAT],
        [line.replace("2291", "2292") for line in PROC],
        [line.replace("3788", "1") for line in PIDSTAT],
    ],
    ids=["still", "two looks", "other of pidstat", "other process", "little"],
)
def test_process_that_does_not_write_is_not_excused(tmp_path: Path, looks: list[str]) -> None:
    assert "H118" not in {one.code for one in say(tmp_path, *PIDS, *looks).findings}


SAID = [
    "02:06:12.902 rank3 saving full state dict to /s/ep1.pt.tmp",
    "[rank3]: Saving model to /s/ep1.pt",
    "2026-11-24 03:01:12 [rank 3] torch.save -> /s/ep1.pt",
    "rank 3: writing /s/ep1.pt",
    "INFO [r3] dumping weights to /s/ep1.safetensors",
]


@pytest.mark.parametrize("said", SAID)
def test_process_that_writes_is_the_rank_that_said_it_would(tmp_path: Path, said: str) -> None:
    report = say(tmp_path, said, *PIDS, *look(*SIZES))

    assert [(one.code, one.culprits.ranks) for one in report.findings[:1]] == [("H118", [3])]


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([*SAID[:2], "[rank3]: saved checkpoint to /s/ep1.pt", *PIDS], id="over"),
        pytest.param([SAID[1], SAID[1].replace("3", "4"), *PIDS], id="two ranks"),
        pytest.param([SAID[1], *PIDS[:6], "Process 2293: python", *SAVE], id="two writers"),
        pytest.param([SAID[1], *PIDS[:6]], id="nobody waits"),
        pytest.param(["saving to /s/ep1.pt, as rank 3 told", *PIDS], id="of somebody else"),
    ],
)
def test_process_that_writes_is_of_no_rank_where_it_is_open(
    tmp_path: Path, lines: list[str]
) -> None:
    report = say(tmp_path, *lines, *look(*SIZES))

    assert not any(one.culprits.ranks for one in report.findings)


# ------------------------------------------------------ only its words tell of the rank that writes

WAITED = [WAIT.format(rank) for rank in (0, 2)]
WAITED_OLD = [
    f"[E ProcessGroupNCCL.cpp:474] [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=412, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for "
    "600203 milliseconds before timing out."
    for rank in (0, 2)
]
IN_BARRIER = ["py-spy, rank 2:", *REST[1:]]


@pytest.mark.parametrize("said", SAID)
@pytest.mark.parametrize("waits", [WAITED, WAITED_OLD, IN_BARRIER], ids=["new", "old", "stack"])
@pytest.mark.parametrize("tool", ["loop", "ls -lh", "script of bytes"])
def test_file_that_grows_while_others_wait_is_a_slow_save(
    tmp_path: Path, tool: str, waits: list[str], said: str
) -> None:
    looks = [line.replace("ep1.safetensors", "ep1.pt") for line in LOOKS[tool]]
    report = say(tmp_path, said.replace(".safetensors", ".pt"), *waits, *looks)
    found = next(one for one in report.findings if one.code[0] in "HC")

    assert (found.code, found.culprits.ranks) == ("H118", [3])
    assert report.verdict is Verdict.WAITING


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([SAID[1], SAID[1].replace("3", "4"), *WAITED], id="two say it"),
        pytest.param([*WAITED], id="nobody says it"),
        pytest.param([SAID[1], "[rank3]: saved checkpoint to /s/ep1.pt", *WAITED], id="over"),
        pytest.param([SAID[1].replace("3", "2"), *WAITED], id="it waits itself"),
    ],
)
def test_file_that_grows_names_no_rank_where_it_is_open(tmp_path: Path, lines: list[str]) -> None:
    report = say(tmp_path, *lines, *LOOKS["ls -lh"])

    assert not any(one.culprits.ranks for one in report.findings)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([*WAITED, *list_sizes("37G", "37G", "37G")], id="still"),
        pytest.param([*WAITED, *list_sizes("37G", "39G", "41G", file="train.log")], id="log"),
        pytest.param([*LOOKS["ls -lh"]], id="nobody waits"),
        pytest.param(
            [
                *WAITED,
                *LOOKS["ls -lh"],
                "py-spy, rank 1:",
                SAVE[0],
                "    reward (train/reward.py:12)",
                "    main (train/main.py:240)",
            ],
            id="one is elsewhere",
        ),
    ],
)
def test_wait_for_something_else_is_no_slow_save(tmp_path: Path, lines: list[str]) -> None:
    assert "H118" not in {one.code for one in say(tmp_path, SAID[1], *lines).findings}


GAVE_UP = (
    "[rank3]:[E602 11:17:52.400612945 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=17, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
    "Timeout(ms)=1800000) ran for 1800088 milliseconds before timing out."
)
ALONE = ["the others are in the barrier", "$ py-spy dump -p 2291", *SAVE]


@pytest.mark.parametrize("tool", ["loop", "ls", "du"])
@pytest.mark.parametrize("stacks", [STACKS, ALONE], ids=["rank", "process"])
def test_save_that_goes_on_is_what_ranks_waited_for_until_their_limit(
    tmp_path: Path, stacks: list[str], tool: str
) -> None:
    report = say(tmp_path, *stacks, *LOOKS[tool], GAVE_UP)

    assert [one.code for one in report.findings] == ["H118"]


def test_save_that_does_not_go_on_leaves_it_open(tmp_path: Path) -> None:
    report = say(tmp_path, *ALONE, *list_sizes(SIZES[0], SIZES[0], SIZES[0]), GAVE_UP)

    assert all(one.code != "H118" for one in report.findings)
    assert report.verdict is not Verdict.WAITING


ONE_STACK = {
    "thread": ["rank 0:", *SAVE],
    "frames": ["rank 0:", *SAVE[1:]],
    "py-spy": ["py-spy dump of rank 0, twice the same:", *SAVE],
}


@pytest.mark.parametrize("tool", LOOKS)
@pytest.mark.parametrize("form", ONE_STACK)
def test_stack_of_the_saver_alone_beside_its_file_is_enough(
    tmp_path: Path, form: str, tool: str
) -> None:
    report = say(tmp_path, "fifteen others are in the barrier", *ONE_STACK[form], *LOOKS[tool])

    assert report.verdict is Verdict.WAITING
    assert [(one.code, one.culprits.ranks) for one in report.findings[:1]] == [("H118", [0])]


GATHERING = [
    SAVE[0],
    "    all_gather_into_tensor (torch/distributed/distributed_c10d.py:3811)",
    *SAVE[1:],
]


@pytest.mark.parametrize(
    "lines",
    [
        [*ONE_STACK["frames"], *list_sizes(SIZES[0], SIZES[0], SIZES[0])],
        [*ONE_STACK["frames"], *list_sizes(*SIZES, file="train.log")],
        ["rank 0:", *GATHERING, *LOOKS["ls"]],
        ["rank 0:", *REST[1:], *LOOKS["ls"]],
        ["rank 0:", "    reward (train/reward.py:12)", *SAVE[4:], *LOOKS["ls"]],
        LOOKS["ls"],
    ],
    ids=["still", "log", "gathers", "waits", "elsewhere", "no stack"],
)
def test_file_beside_another_stack_tells_of_no_slow_save(tmp_path: Path, lines: list[str]) -> None:
    report = say(tmp_path, *lines)

    assert not any(one.code == "H118" and one.culprits.ranks for one in report.findings)


def test_exception_of_another_rank_goes_before_a_save_that_goes_on(tmp_path: Path) -> None:
    raised = ["[rank3]: Traceback (most recent call last):", '[rank3]:   File "run.py", line 4']
    raised += ["[rank3]:     step()", "[rank3]: KeyError: 'ids'"]
    report = say(tmp_path, *raised, *ONE_STACK["frames"], *LOOKS["ls"])

    assert report.findings[0].culprits.ranks == [3]
