"""Ranks whose program ends in good order while others still need them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_pasted_near import blamed_of
from tests.logs.test_told import first_of, say
from tests.logs.test_who import WAIT

WAITS = [WAIT.format(rank) for rank in (0, 1, 3)]
STEPS = [f"[rank{rank}]: step 9 loss 2.{rank}" for rank in range(4)]
WARNINGS = [
    (
        "[rank{0}]:[W1112 08:30:02.118 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group "
        "has NOT been destroyed before we destruct ProcessGroupNCCL. On normal program exit, the "
        "application should call destroy_process_group to ensure that any pending NCCL operations "
        "have finished in this process."
    ),
    (
        "[rank{0}]:[W1112 08:30:02.118 ProcessGroupNCCL.cpp:1496] Warning: WARNING: "
        "destroy_process_group() was not called before program exit, which can leak resources."
    ),
]
RAISED = [
    "[rank2]: Traceback (most recent call last):",
    '[rank2]:   File "/w/main.py", line 9, in <module>',
    "[rank2]: KeyError: 'lr'",
]


@pytest.mark.parametrize("warning", WARNINGS, ids=["2.4", "2.6"])
def test_rank_whose_program_ended_before_others_gave_up_left_early(
    tmp_path: Path, warning: str
) -> None:
    finding = first_of(say(tmp_path, *STEPS, warning.format(2), *WAITS))

    assert (finding.code, finding.culprits.ranks) == ("H103", [2])
    assert finding.victims.ranks == "0-1,3"


@pytest.mark.parametrize("warning", WARNINGS, ids=["2.4", "2.6"])
def test_warning_of_torch_after_a_failure_is_no_end_in_good_order(
    tmp_path: Path, warning: str
) -> None:
    late = warning.replace("08:30", "08:50")

    assert first_of(say(tmp_path, *STEPS, *RAISED, warning.format(2), *WAITS)).code == "C204"
    assert first_of(say(tmp_path, *STEPS, *WAITS, late.format(2))).code == "C211"
    nameless = [line.removeprefix("[rank2]: ") for line in RAISED]
    assert first_of(say(tmp_path, *nameless, warning.format(2), *WAITS)).code != "H103"
    everybody = [warning.format(rank) for rank in range(4)]
    report = say(tmp_path, *STEPS, *everybody, WAIT.format(0))
    assert blamed_of(report)[0] == set()


SRUN = ["srun: First task exited 60s ago"]


@pytest.mark.parametrize("step", ["StepId=771.0 ", "StepId=771.extern ", "step=771.0 ", ""])
def test_task_that_ended_while_others_run_left_early(tmp_path: Path, step: str) -> None:
    lines = [*SRUN, f"srun: {step}tasks 0-1,3: running", f"srun: {step}task 2: exited"]
    finding = first_of(say(tmp_path, *STEPS, *lines, *WAITS))

    assert (finding.code, finding.culprits.ranks) == ("H103", [2])


@pytest.mark.parametrize(
    "line",
    [
        "srun: StepId=771.0 task 2: exited abnormally",
        "srun: StepId=771.0 task 2: running",
        "srun: StepId=771.0 tasks 0-3: exited",
        "INFO task 2: exited",
    ],
)
def test_other_states_of_tasks_are_no_early_end(tmp_path: Path, line: str) -> None:
    finding = first_of(say(tmp_path, *STEPS, *SRUN, line, *WAITS))

    assert finding.code == "C211"


def test_tasks_that_end_one_after_the_other_are_a_good_end(tmp_path: Path) -> None:
    lines = ["srun: StepId=771.0 tasks 0-1: running", "srun: StepId=771.0 tasks 2-3: exited"]

    assert not [one for one in say(tmp_path, *STEPS, *SRUN, *lines).findings if one.code == "H103"]


EARLY = [
    "early stopping: no improvement for 4 evals, leaving training",
    "INFO EarlyStopping triggered at epoch 7",
    "Early stopping after 12 evaluations",
    "early stop: patience exhausted",
    "Early stopping, best epoch 7. Bye",
    "val_loss 0.41 patience 5/5 -> early stop",
    "val metric is flat, leaving the training.",
    "Metric val_loss did not improve in the last 3 records. Signaling Trainer to stop.",
    "trainer.fit() returned, writing the summary",
    "on_train_end called, global_step=22490",
]
PREFIXES = ["[rank{0}]: ", "rank={0} ", "[{0}] "]


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("words", EARLY)
def test_rank_that_stops_early_by_itself_is_named(tmp_path: Path, words: str, prefix: str) -> None:
    steps = [f"{prefix.format(rank)}step 9 loss 2.{rank}" for rank in range(4)]
    finding = first_of(say(tmp_path, *steps, prefix.format(2) + words, *WAITS))

    assert (finding.code, finding.culprits.ranks) == ("H103", [2])
    everybody = [prefix.format(rank) + words for rank in range(4)]
    assert first_of(say(tmp_path, *steps, *everybody, *WAITS)).code != "H103"
    on = [f"{prefix.format(2)}step {number} loss 2.2" for number in range(10, 50)]
    assert first_of(say(tmp_path, *steps, prefix.format(2) + words, *on, *WAITS)).code != "H103"


@pytest.mark.parametrize(
    "words",
    [
        "EarlyStopping counter: 3 out of 5",
        "early stopping is enabled, patience 5",
        "callbacks: checkpoint, lr monitor and early stop",
        "early_stopping_patience=5",
        "leaving training mode for evaluation",
        "callbacks: on_train_end, on_epoch_end",
        "Trainer was signaled to stop but the required `min_epochs=4` has not been met.",
        "fit() returns a history; a fitted scaler is returned by fit",
    ],
)
def test_settings_and_counts_of_early_stopping_are_no_end(tmp_path: Path, words: str) -> None:
    finding = first_of(say(tmp_path, *STEPS, f"[rank2]: {words}", *WAITS))

    assert finding.code == "C211"
