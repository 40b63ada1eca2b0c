"""Whose a process is: real processes, and the control groups of several runtimes."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whystuck.agent.metrics.rank.attribution import (
    LABELS,
    Attribution,
    labels_of_cgroup,
    labels_of_environment,
)
from whystuck.evidence.errors import UsageError

UID = "0f3c8a52-9e0b-4b6f-8a3d-2f1c5d7e9b10"
CONTAINER = "c0ffee" * 10 + "abcd"
POD = {"pod_uid": UID, "container": CONTAINER[:12]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"0::/kubepods/burstable/pod{UID}/{CONTAINER}", POD),
        (f"0::/kubepods/pod{UID}/{CONTAINER}", POD),
        (f"5:memory:/kubepods/besteffort/pod{UID}/{CONTAINER}\n1:name=systemd:/x", POD),
        (
            (
                "0::/kubepods.slice/kubepods-burstable.slice/"
                f"kubepods-burstable-pod{UID.replace('-', '_')}.slice/"
                f"cri-containerd-{CONTAINER}.scope"
            ),
            POD,
        ),
        (
            (
                f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/"
                f"crio-{CONTAINER}.scope/container"
            ),
            POD,
        ),
        (
            (
                "0::/system.slice/containerd.service/kubepods-burstable-"
                f"pod{UID.replace('-', '_')}.slice:cri-containerd:{CONTAINER}"
            ),
            POD,
        ),
        (
            (
                "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
                f"kubelet-kubepods-besteffort-pod{UID.replace('-', '_')}.slice/"
                f"cri-containerd-{CONTAINER}.scope"
            ),
            POD,
        ),
        (f"0::/kubepods/pod{UID.replace('-', '')}/{CONTAINER}", POD),
        (f"0::/system.slice/docker-{CONTAINER}.scope", {"container": CONTAINER[:12]}),
        (f"12:cpu,cpuacct:/docker/{CONTAINER}", {"container": CONTAINER[:12]}),
        (
            "0::/system.slice/slurmstepd.scope/job_81523/step_0/user/task_3",
            {"slurm_job_id": "81523", "slurm_step": "0"},
        ),
        (
            "9:memory:/slurm/uid_1000/job_7/step_batch/task_0",
            {"slurm_job_id": "7", "slurm_step": "batch"},
        ),
        ("0::/slurm/uid_1000/job_7", {"slurm_job_id": "7"}),
        ("0::/", {}),
        ("0::/user.slice/user-1000.slice/session-3.scope", {}),
        (f"0::/home/job_7/step_1/pod{UID}", {}),
        ("nonsense", {}),
        ("", {}),
    ],
)
def test_control_group_tells_pod_container_and_job(text: str, expected: dict[str, str]) -> None:
    assert labels_of_cgroup(text) == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {}),
        (
            {"RANK": "12", "TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "77"},
            {"job": "77", "rank": "12", "slurm_job_id": "77"},
        ),
        ({"TORCHELASTIC_RUN_ID": "none"}, {}),
        ({"TORCHELASTIC_RUN_ID": "llama", "RANK": "-1"}, {"job": "llama"}),
        ({"RANK": "1" * 40}, {}),
        ({"RANK": "٣"}, {}),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, {}),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "8"}, {"rank": "5"}),
        ({"RANK": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, {"rank": "2"}),
        ({"OMPI_COMM_WORLD_RANK": "3"}, {"rank": "3"}),
        ({"SLURM_STEP_ID": "4294967291"}, {"slurm_step": "4294967291"}),
        ({"HOSTNAME": "node-3"}, {}),
        ({"HOSTNAME": "pod-3", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, {"pod": "pod-3"}),
        (
            {"POD_NAME": "a", "POD_NAMESPACE": "b", "CONTAINER_NAME": "c", "HOSTNAME": "d"},
            {"pod": "a", "namespace": "b", "container": "c"},
        ),
        ({"POD_NAME": "a\nb"}, {}),
        ({"SLURM_JOB_ID": "x" * 5000}, {"job": "x" * 128, "slurm_job_id": "x" * 128}),
    ],
)
def test_environment_tells_job_and_rank(
    environment: dict[str, str], expected: dict[str, str]
) -> None:
    assert labels_of_environment(environment) == expected


@settings(max_examples=200)
@given(st.text(max_size=300), st.dictionaries(st.sampled_from(["RANK", "POD_NAME"]), st.text()))
def test_any_text_is_read_without_error(text: str, environment: dict[str, str]) -> None:
    assert set(labels_of_cgroup(text)) <= set(LABELS)
    assert set(labels_of_environment(environment)) <= set(LABELS)


@contextmanager
def process(**environment: str) -> Iterator[int]:
    """Run a process with this environment; yield its pid when it has begun."""
    command = [sys.executable, "-S", "-c", "input(print(flush=True) or '')"]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child.pid
        child.kill()


def test_real_process_is_told_with_labels_of_your_own() -> None:
    attribution = Attribution({"team": "MY_TEAM", "absent": "NOT_SET"})

    with process(RANK="6", SLURM_JOB_ID="900", MY_TEAM="vision") as pid:
        labels = attribution(pid)

    assert {
        "job": "900",
        "rank": "6",
        "slurm_job_id": "900",
        "team": "vision",
    }.items() <= labels.items()
    assert "absent" not in labels
    assert attribution(pid) == {}


def test_what_was_read_of_an_older_process_is_kept() -> None:
    attribution = Attribution()

    first = attribution(os.getppid())

    assert attribution(os.getppid()) == first


def test_young_process_is_read_again_after_exec(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN one that is looked at between fork and exec
    monkeypatch.setattr("whystuck.agent.metrics.rank.attribution._REREAD_S", 0.0)
    code = (
        "import os; input(print(flush=True) or ''); os.execve('/bin/cat', ['cat'], {'RANK': '1'})"
    )
    with subprocess.Popen(
        [sys.executable, "-S", "-u", "-c", code],
        env={"RANK": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        attribution = Attribution()
        before = attribution(child.pid)
        child.stdin.write(b"\n")
        child.stdin.flush()
        end_s = time.monotonic() + 20
        while attribution(child.pid) == before and time.monotonic() < end_s:
            time.sleep(0.02)
        after = attribution(child.pid)
        child.kill()

    assert (before["rank"], after["rank"]) == ("0", "1")


@pytest.mark.parametrize("pid", [-1, 0, 2**31, 2**62])
def test_pid_that_is_none_gives_nothing(pid: int) -> None:
    assert Attribution()(pid) == {}


@pytest.mark.parametrize(
    ("label", "variable", "problem"),
    [
        ("rank", "X", "gives itself"),
        ("node", "X", "gives itself"),
        ("a b", "X", "no name of a label"),
        ("Team", "X", "no name of a label"),
        ("team", "", "no name of a variable"),
        ("team", "A=B", "no name of a variable"),
        ("team", "WANDB_API_KEY", "looks like a secret"),
    ],
)
def test_label_that_cannot_be_is_refused(label: str, variable: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        Attribution({label: variable})

    assert caught.value.hint
