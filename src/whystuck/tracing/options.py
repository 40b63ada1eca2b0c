"""What the user can choose about the analysis of traces."""

from __future__ import annotations

import msgspec


class TraceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How traces are measured.

    ``all_steps`` takes the last profiler step in, whose device work may be cut off; ``tables``
    names tables to make beside the default ones, with ``only_tables`` in place of them.
    ``comm_patterns`` are regular expressions of names of kernels that communicate, beside the
    built-in ones. ``idle_threshold_ns`` parts waits
    between kernels from other idle time, ``short_kernel_ns`` is what counts as a short kernel,
    ``late_launch_ns`` as a launch that came late, and ``queue_limit`` as a full queue.
    ``kernel_sequences`` lists those of at least ``sequence_length`` kernels under operators whose
    names hold ``sequence_operator``.
    """

    all_steps: bool = False
    tables: tuple[str, ...] = ()
    only_tables: bool = False
    comm_patterns: tuple[str, ...] = ()
    idle_threshold_ns: int = 30_000
    short_kernel_ns: int = 10_000
    late_launch_ns: int = 100_000
    queue_limit: int = 1024
    ranks_per_node: int = 0
    sequence_operator: str = ""
    sequence_length: int = 3
