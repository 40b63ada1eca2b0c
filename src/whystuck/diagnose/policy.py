"""The thresholds that rules apply, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """Thresholds, each with its unit in the name."""

    # A thread that uses less of a core than this between two samples is asleep or blocked.
    idle_cpu_share: float = 0.05
    # Between two samples, a rank that moves fewer bytes than this does no input or output:
    # loggers and heartbeats write a few.
    idle_io_bytes: int = 65536
    # A call site that a rank has used this often is part of the rhythm of training.
    rhythm_uses: int = 3
    # ... when its uses are this far apart on average.
    rhythm_gap_ns: int = 10_000_000
    # A rank that computes on is blamed as `likely` once the stall is this many times the
    # longest gap seen before.
    long_gap_factor: float = 10.0
    # A snapshot in which the oldest pending op is younger than this shows no stall.
    snapshot_stall_s: float = 10.0
    # A limit is too short when a call took this share of it before,
    near_limit_share: float = 0.5
    # ... or when it is no longer than this and the ranks that were waited for are at work.
    short_limit_s: float = 300.0
    # Dumps whose oldest pending op was younger than this when they were written prove no stall,
    # or this and the longest time that an op of theirs took from its call to its end,
    moving_dump_s: float = 0.5
    # ... which counts up to this: it may have been a stall too.
    longest_queue_s: float = 30.0
    # Clocks of a host and of a file server may differ by this.
    clock_slack_s: float = 0.25
    # So many places of one rank are named: the line, and the callers that led to it.
    places_per_rank: int = 3
    # A step of the second run that takes this much longer than in the first is a regression.
    regression_percent: float = 5.0
