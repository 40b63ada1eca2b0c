"""A signal from outside: pending until the job has outlived it."""

from __future__ import annotations

import signal

from whystuck.launch.processes.outside import SI_KERNEL, OutsideSignal

_S = 1_000_000_000


def _message(number: int, seconds: int, *, code: int = SI_KERNEL) -> dict[str, int]:
    return {"number": number, "code": code, "sender_pid": 0, "time_ns": seconds * _S}


def test_signal_is_pending_until_the_job_moves_long_after_it() -> None:
    outside = OutsideSignal()
    assert not outside.is_pending
    outside.note_progress(5 * _S)
    outside.note(_message(signal.SIGTERM, 100))
    assert outside.is_pending
    outside.note_progress(130 * _S)
    assert outside.is_pending, "it may be writing its last checkpoint"
    outside.note_progress(161 * _S)
    assert not outside.is_pending
    assert outside.number == signal.SIGTERM, "the record stays"


def test_second_signal_counts_where_the_first_was_outlived() -> None:
    outside = OutsideSignal()
    outside.note(_message(signal.SIGINT, 100))
    outside.note(_message(signal.SIGTERM, 101))
    assert (outside.number, outside.is_interrupt) == (signal.SIGINT, True)
    outside.note_progress(200 * _S)
    outside.note(_message(signal.SIGTERM, 300))
    assert (outside.number, outside.is_interrupt) == (signal.SIGTERM, False)
    assert outside.is_pending
