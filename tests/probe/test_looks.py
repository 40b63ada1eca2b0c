"""When the probe looks at ops again, where its looks are dear."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class _Job:
    """A completion, and the records of its ops."""

    def __init__(self, folder: Path) -> None:
        import torch.distributed

        from whystuck.probe.oplog.completion import Completion
        from whystuck.probe.oplog.ring import Ring

        assert torch.distributed.is_available()
        self.ring = Ring(str(folder / "ops"))
        self.completion: Any = Completion(self.ring)
        # As if each look took more than the budget.
        self.completion._stretch = 4.0

    def issue(self, number: int, form: int) -> None:
        place = self.ring.place(number)
        struct.pack_into("<Qq", self.ring.map, place, number, time.monotonic_ns())
        struct.pack_into("<I", self.ring.map, place + 56, form)
        self.completion._pending.append((number, None, False))

    def ended(self, number: int, form: int, took_ns: int) -> None:
        self.issue(number, form)
        self.completion._pending.pop()
        self.completion._learn(number, took_ns)


@pytest.fixture
def job(tmp_path: Path) -> _Job:
    return _Job(tmp_path)


def test_an_op_like_none_before_is_looked_at_as_usual(job: _Job) -> None:
    job.ended(1, form=1, took_ns=10**15)
    job.issue(2, form=2)
    assert job.completion._foresee_s() == 0


def test_an_op_is_looked_at_when_the_last_one_like_it_was_over(job: _Job) -> None:
    job.ended(1, form=1, took_ns=10**15)
    job.issue(2, form=1)
    # It takes longer than may be rested at once.
    assert 0.1 < job.completion._foresee_s() < 0.2


def test_of_several_ops_the_first_to_end_counts(job: _Job) -> None:
    job.ended(1, form=1, took_ns=10**15)
    job.ended(2, form=2, took_ns=0)
    job.issue(3, form=1)
    job.issue(4, form=2)
    assert job.completion._foresee_s() <= 0


def test_where_looks_are_cheap_they_stay_close(job: _Job) -> None:
    job.ended(1, form=1, took_ns=10**15)
    job.issue(2, form=1)
    job.completion._stretch = 1.0
    assert job.completion._foresee_s() == 0


def test_forms_that_are_kept_have_a_bound(job: _Job) -> None:
    for form in range(5000):
        job.ended(1, form=form, took_ns=1)
    assert len(job.completion._took_ns) <= 1024
