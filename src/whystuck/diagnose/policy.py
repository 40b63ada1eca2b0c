"""The thresholds that rules apply, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Policy:
    """Thresholds, each with its unit in the name."""

    # A thread that uses less of a core than this between two samples is asleep or blocked.
    idle_cpu_share: float = 0.05
    # The probe beats once a second: one older than this means that its thread could not run.
    stale_beat_s: float = 3.0
    # Between two samples, a rank that moves fewer bytes than this does no input or output:
    # loggers and heartbeats write a few.
    idle_io_bytes: int = 65536
    # ... and in so many seconds, where the samples are further apart.
    idle_io_s: float = 30.0
    # A device whose load is below this has nothing to do,
    idle_device_share: float = 0.05
    # ... and from this on it always runs some kernel: one that waits as long as it takes less
    # than this share of the power limit and of the units,
    busy_device_share: float = 0.95
    spin_share: float = 0.45
    # ... and one that computes from this share of either on. An H100 (700 W) takes 70 W idle.
    compute_share: float = 0.6
    # A call site that a rank has used this often is part of the rhythm of training.
    rhythm_uses: int = 3
    # ... when its uses are this far apart on average.
    rhythm_gap_ns: int = 10_000_000
    # A rank that computes on is blamed as `likely` once the stall is this many times the
    # longest gap seen before.
    long_gap_factor: float = 10.0
    # A snapshot in which the oldest pending op is younger than this shows no stall.
    snapshot_stall_s: float = 10.0
    # Without a record of ops, a rank at work in its loop is late when the others wait this long.
    overdue_s: float = 20.0
    # A limit is too short when a call took this share of it before,
    near_limit_share: float = 0.5
    # ... or when it is no longer than this and the ranks that were waited for are at work.
    short_limit_s: float = 300.0
    # Dumps whose oldest pending op was younger than this when they were written prove no stall,
    # or this and the longest time that an op of theirs took from its call to its end,
    moving_dump_s: float = 0.5
    # ... which counts up to this: it may have been a stall too.
    longest_queue_s: float = 30.0
    # A thread that ended with an error this long before the stall may be what a rank waits for:
    # until then the rank lives on what the thread had made ready.
    thread_error_s: float = 300.0
    # A job that ends this long after a signal came from outside may have another cause: batch
    # systems kill after 30 s to 10 minutes, and a job may ignore the signal for hours.
    teardown_s: float = 600.0
    # Clocks of a host and of a file server may differ by this.
    clock_slack_s: float = 0.25
    # So many places of one rank are named: the line, and the callers that led to it.
    places_per_rank: int = 3
    # What a cause costs in traces is told as a note from this share of the steps on,
    cost_note_share: float = 0.03
    # ... and is a warning from this one on.
    cost_warning_share: float = 0.1
    # Hosts that fall behind a little are common: late launches are told from this share on,
    launch_note_share: float = 0.05
    # ... and warned of from this one on.
    launch_warning_share: float = 0.15
    # Data parallel jobs that are well tuned still show some communication,
    comm_note_share: float = 0.05
    # ... and this much is worth work.
    comm_warning_share: float = 0.15
    # Norms, activations and optimizers are short kernels in every job: to fuse them is worth it,
    short_note_share: float = 0.1
    # ... from here on it is the first thing to do.
    short_warning_share: float = 0.25
    # Fewer short kernels in a step than this are nothing to fuse.
    short_min_count: float = 50.0
    # A rank that is late by more than chance is a defect of one place: even this share is one.
    late_warning_share: float = 0.01
    # Of fewer collectives it cannot be told that no rank is late throughout.
    sure_collectives: int = 20
    # Steps of lower numbers may compile.
    warm_up_steps: int = 2
    # A rank is named when a cause costs it this many times as much as the middle one of its peers,
    uneven_ratio: float = 2.0
    # ... and at least this share of its time more.
    uneven_share: float = 0.05
    # A job whose ranks wait for this share of the time in ops is not healthy, whoever is late.
    wait_share: float = 1 / 3
    # A step of the second run that takes this much longer than in the first is a regression.
    regression_percent: float = 5.0
    # One that takes this much longer is left open where it may be chance, and steps are few,
    doubt_percent: float = 25.0
    # ... or this much, and there are many:
    large_doubt_percent: float = 75.0
    # ... so many in both runs. Those of a busy machine then differ by the lower bound by chance.
    many_steps: int = 8
    # Of so many updates of the parameters, the last ones are judged.
    skip_window: int = 100
    # From this share on, updates that a scaler or a check for NaN skips are no search for a scale,
    skipped_share: float = 0.2
    # ... when there are as many: a job of a few steps shows no more than its search.
    skip_min_count: int = 5
