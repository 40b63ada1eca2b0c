"""What services and clusters refuse is the fault of no rank and no host."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.logs.jobs import first, tell, trace

from whystuck.diagnose import codes

SLOW = (
    "botocore.exceptions.ClientError: An error occurred (SlowDown) when calling the GetObject "
    "operation (reached max retries: 4): Please reduce your request rate."
)


@pytest.mark.parametrize(
    "error",
    [
        SLOW,
        "google.api_core.exceptions.TooManyRequests: 429 GET https://storage/x: quota",
        "requests.exceptions.HTTPError: 503 Service Unavailable for url: https://hub/x",
        (
            "botocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling the "
            "UploadPart operation: The provided token has expired."
        ),
        "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: u",
    ],
)
@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "(node 17) "])
def test_a_service_that_refuses_blames_nobody(tmp_path: Path, error: str, prefix: str) -> None:
    lines = ["Traceback (most recent call last):", '  File "/app/r.py", line 8, in get', "    g()"]
    text = "".join(f"{prefix}{line}\n" for line in [*lines, error])
    found = first(tmp_path, {"train.log": text})

    assert found.code == codes.SAME_EXCEPTION_EVERYWHERE
    assert (found.culprits.ranks, found.culprits.nodes) == ([], [])


def test_ray_repeats_a_line_for_others(tmp_path: Path) -> None:
    error = "ValueError: bad shard"
    rows = (
        f"(RayTrainWorker pid=2201, ip=10.0.61.9) {error}",
        (
            f"(RayTrainWorker pid=2187, ip=10.0.61.4) {error} [repeated 23x across cluster] (Ray "
            "deduplicates logs by default.)"
        ),
    )
    found = first(tmp_path, {"train.log": "\n".join(rows) + "\n"})

    assert (found.code, found.culprits.nodes) == (codes.SAME_EXCEPTION_EVERYWHERE, [])


@pytest.mark.parametrize(
    "error", ["KeyError: 'token'", "ValueError: 429 classes", "RuntimeError: tokens expected: 503"]
)
def test_lookalike_is_the_rank_s_own(tmp_path: Path, error: str) -> None:
    found = first(tmp_path, {"train.log": trace(3, error) + "[rank0]: step 1\n[rank1]: step 1\n"})

    assert (found.code, found.culprits.ranks) == (codes.PYTHON_EXCEPTION, [3])


FORBIDDEN = 'Error creating: pods "llm-worker-2" is forbidden: '


@pytest.mark.parametrize(
    "line",
    [
        (
            f"  Warning  FailedCreatePod  2m (x31 over 63m)  pytorchjob-controller  {FORBIDDEN}"
            "exceeded quota: gpus, requested: requests.nvidia.com/gpu=8, used: "
            "requests.nvidia.com/gpu=24, limited: requests.nvidia.com/gpu=24"
        ),
        f"12m  Warning  FailedCreate  job/llm  {FORBIDDEN}exceeded quota: mem",
        (
            f"Warning  FailedCreate  2m  job-controller  {FORBIDDEN}maximum cpu usage per "
            "Container is 32, but limit is 64"
        ),
        (
            'Warning  FailedCreate  2m  job-controller  Error creating: admission webhook "q.io" '
            "denied the request: no budget"
        ),
        "  881204   gpu  llm-70b   lea  PD  0:00  8 (QOSMaxGRESPerUser)",
        "  881204   gpu  llm-70b   lea  PD  0:00  8 (AssocGrpGRES)",
    ],
)
def test_a_cluster_that_refuses_a_part_of_the_job(tmp_path: Path, line: str) -> None:
    text = f"NAME READY STATUS\nllm-master-0   1/1   Running   0   63m\n\n{line}\n"
    found = first(tmp_path, {"paste.txt": text})

    assert (found.code, found.details["kind"]) == (codes.CONFIG_ERROR, "quota")
    assert (found.culprits.ranks, found.culprits.nodes) == ([], [])


@pytest.mark.parametrize(
    "line",
    [
        "Normal  SuccessfulCreatePod  63m  pytorchjob-controller  Created pod: llm-worker-1",
        "  881204   gpu  llm-70b   lea  PD  0:00  8 (Priority)",
        "  881204   gpu  llm-70b   lea   R  2:00  8 n[1-8]",
        "INFO quota of gpus: 24 used, 32 allowed",
    ],
)
def test_lookalike_of_a_quota(tmp_path: Path, line: str) -> None:
    report = tell(tmp_path, {"paste.txt": f"NAME READY STATUS\n{line}\n"})

    assert not report.findings


FLOOR = "Exception: Current loss scale already at minimum - cannot decrease scale anymore."
STEPS = "{'loss': 3.4471, 'grad_norm': 1.207, 'learning_rate': 0.00055, 'epoch': 0.27}\n"


def test_what_is_shown_below_for_comparison_is_older(tmp_path: Path) -> None:
    text = f"{trace(0, FLOOR)}\nearlier, for comparison:\n{STEPS}"
    assert first(tmp_path, {"paste.txt": text}).code == codes.UPDATES_SKIPPED
