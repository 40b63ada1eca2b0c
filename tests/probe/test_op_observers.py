"""When the probe looks at ops again, where its looks are dear."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")


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
        self.completion._stretch = 8.0

    def issue(self, number: int, form: int, now_ns: int = 0) -> None:
        place, issued_ns = self.ring.place(number), now_ns or time.monotonic_ns()
        struct.pack_into("<Qq", self.ring.map, place, number, issued_ns)
        struct.pack_into("<I", self.ring.map, place + 56, form)
        self.completion._pending.append((number, None, False, issued_ns, form))

    def ended(self, number: int, form: int, took_ns: int) -> None:
        self.issue(number, form)
        self.completion._pending.pop()
        self.completion._learn(form, took_ns)


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


class _Clock:
    """Time that goes on only while the thread rests."""

    def __init__(self) -> None:
        self.now_ns, self.used_ns = 10**12, 10**15

    def monotonic_ns(self) -> int:
        return self.now_ns

    def thread_time_ns(self) -> int:
        self.used_ns += 10**8  # as if looks were dear
        return self.used_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)


class _Work:
    def __init__(self, clock: _Clock, end_ns: int) -> None:
        self._clock, self._end_ns = clock, end_ns

    def is_completed(self) -> bool:
        return self._clock.now_ns >= self._end_ns


class _Steps:
    """What the thread waits for: that a step issues its op, every 400 ms."""

    def __init__(self, job: _Job, clock: _Clock, took_ns: int) -> None:
        self._job, self._clock, self._took_ns = job, clock, took_ns
        self.count = 0
        self.ends_ns: list[int] = []

    def acquire(self) -> None:
        self.count += 1
        self._clock.now_ns += 400_000_000
        self._job.issue(self.count, form=1, now_ns=self._clock.now_ns)
        self._job.completion._pending.pop()
        self.ends_ns.append(self._clock.now_ns + self._took_ns)
        work = _Work(self._clock, self.ends_ns[-1])
        self._job.completion.new.append((self.count, work, False))


@pytest.mark.parametrize("took_ms", [3, 20, 47, 100, 110])
def test_an_op_like_the_last_one_has_two_looks_and_a_close_end(
    job: _Job, monkeypatch: pytest.MonkeyPatch, took_ms: int
) -> None:
    clock = _Clock()
    monkeypatch.setattr("whystuck.probe.oplog.completion.time", clock)
    steps = _Steps(job, clock, took_ms * 1_000_000)
    one = job.completion
    one._gate, one._unbox = steps, lambda work: work
    warm = looks = 0
    while steps.count < 60:
        one._wait()
        one._look()
        if steps.count <= 20:
            warm = one._looks
        looks = one._looks
    assert (looks - warm) / 40 <= 2.1
    for number in range(21, 60):
        end_ns = steps.ends_ns[number - 1]
        pending_ns, done_ns = struct.unpack_from("<qq", job.ring.map, job.ring.place(number) + 32)
        assert done_ns - 66_000_000 <= end_ns <= done_ns
        if took_ms > 80:
            assert pending_ns <= end_ns < pending_ns + 66_000_000


def test_where_looks_are_dear_no_op_has_to_wake_the_thread_for_some_seconds(
    job: _Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[tuple[float, bool]] = []
    one = job.completion

    class Clock(_Clock):
        def sleep(self, seconds: float) -> None:
            rests.append((seconds, one.is_idle))

    class Gate:
        def acquire(self) -> None:
            one.is_over = True

    monkeypatch.setattr("whystuck.probe.oplog.completion.time", Clock())
    one._gate, one.is_idle = Gate(), False
    one._wait()

    assert not any(is_idle for _, is_idle in rests)
    *looked_on, _ = (seconds for seconds, _ in rests)
    assert 1.0 < sum(looked_on) < 3.5
    assert max(looked_on) <= 0.128

    # GIVEN one that comes meanwhile
    rests.clear()
    one._vain_looks, one.is_over = 0, False
    one.new.append((1, None, False))
    one._wait()
    assert len(rests) == 1
