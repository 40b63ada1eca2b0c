"""Where no rank is known, the pod, the host or the process is named; never somebody by a guess."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

from whystuck.report.text import render_text

TRACE = (
    "Traceback (most recent call last):",
    '  File "/app/train.py", line 61, in <module>',
    "    batch = next(it)",
    "KeyError: 'labels'",
)
LOST = (
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"
)


@pytest.mark.parametrize(
    ("own", "other", "node", "text"),
    [
        ("[pod/sft-1/torch] ", "[pod/sft-0/torch] ", "sft-1", "a rank on sft-1"),
        ("gpu-n3: ", "gpu-n4: ", "gpu-n3", "a rank on gpu-n3"),
        (
            "(Trainer pid=9120, ip=10.0.0.6) ",
            "(Trainer pid=44, ip=10.0.0.5) ",
            "10.0.0.6",
            "process 9120 on 10.0.0.6",
        ),
    ],
    ids=["pod", "host", "process"],
)
def test_pod_host_or_process_is_named(
    tmp_path: Path, own: str, other: str, node: str, text: str
) -> None:
    lines = [f"{other}step 12 loss 2.1", *(own + line for line in TRACE), f"{other}{LOST}"]

    finding = first_of(say(tmp_path, *lines))

    assert (finding.code, finding.culprits.ranks, finding.culprits.nodes) == ("C204", [], [node])
    assert finding.summary.startswith(f"{text} raised KeyError")


def test_known_rank_is_named_alone(tmp_path: Path) -> None:
    finding = first_of(say(tmp_path, *(f"[rank3]: {line}" for line in TRACE)))

    assert (finding.code, finding.culprits.ranks, finding.culprits.nodes) == ("C204", [3], [])


def test_place_of_an_unknown_rank_has_no_number(tmp_path: Path) -> None:
    report = say(tmp_path, *(f"gpu-n3: {line}" for line in TRACE))

    text = render_text(report, color=False, width=100)

    assert "in <module> · a rank" in text
    assert "rank -1" not in text


def test_host_of_one_of_two_candidates_is_not_named(tmp_path: Path) -> None:
    other = [*TRACE[:3], "ValueError: 7 is no label"]
    say(tmp_path, *other, name="gpu-n3.log")

    report = say(tmp_path, *TRACE, name="gpu-n4.log")

    assert len(report.findings) == 2
    assert not any(finding.culprits.nodes for finding in report.findings)
