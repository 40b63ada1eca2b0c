"""A rank that goes on past exceptions skips what the others wait in."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.logs.jobs import first, tell, timeout

from whystuck.diagnose import codes

WAITS = "".join(timeout(rank) for rank in (0, 1, 2))


@pytest.mark.parametrize(
    "line",
    [
        "[default3]:WARNING:ext:batch {n} dropped on this process: ValueError('cu_seqlens') -- on",
        "[rank3]: WARNING skipping batch {n}: RuntimeError('shape of sample')",
        "[rank3]: KeyError('labels') in step {n}, continuing",
        "3: caught LookupError('sample') at step {n}",
    ],
)
def test_a_rank_that_catches_and_goes_on_is_named(tmp_path: Path, line: str) -> None:
    caught = "".join(line.format(n=n) + "\n" for n in (20418, 20419, 20420))
    found = first(tmp_path, {"train.log": caught + WAITS})

    assert (found.code, found.culprits.ranks) == (codes.SKIPPED_COLLECTIVE, [3])


@pytest.mark.parametrize(
    "lines",
    [
        # all ranks, one that waits as well, once, and what tells of no exception
        "".join(f"[rank{r}]: skipping batch {n}: ValueError('x')\n" for n in "12" for r in "0123"),
        "[rank0]: skipping batch 1: ValueError('x')\n[rank0]: skipping batch 2: ValueError('x')\n",
        "[rank3]: skipping batch 1: ValueError('x')\n",
        "[rank3]: OVERFLOW! Skipping step. 1\n[rank3]: OVERFLOW! Skipping step. 2\n",
    ],
)
def test_lookalikes_blame_nobody(tmp_path: Path, lines: str) -> None:
    report = tell(tmp_path, {"train.log": lines + WAITS})

    assert codes.SKIPPED_COLLECTIVE not in {one.code for one in report.findings}
    assert not any(one.culprits.ranks for one in report.findings)
