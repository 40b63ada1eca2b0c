"""What the user can choose about the analysis of traces."""

from __future__ import annotations

import msgspec


class Lever(msgspec.Struct, frozen=True, kw_only=True):
    """What of a job could be faster; what several fields choose is taken together.

    ``classes`` are ``host``, ``launch``, ``compute``, ``memory`` and ``comm``; ``kernel`` and
    ``op`` are regular expressions: device work by its name, and the time of ops of the host with
    the device work launched in them. ``is_input`` takes waits for the next batch, ``links`` the
    transfers of process groups. Without any of them it is all that a rank does but to wait for
    others. ``ranks`` are those that it is meant for, all when empty. ``share`` is how much of that
    time goes.
    """

    name: str
    share: float
    classes: tuple[str, ...] = ()
    kernel: str = ""
    op: str = ""
    is_input: bool = False
    links: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()

    @property
    def is_all(self) -> bool:
        """Whether it is all of a rank's own work."""
        return not (self.classes or self.kernel or self.op or self.is_input or self.links)


class TraceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How traces are measured.

    ``all_steps`` takes the last profiler step in, whose device work may be cut off; ``tables``
    names tables to make beside the default ones, with ``only_tables`` in place of them.
    ``comm_patterns`` are regular expressions of names of kernels that communicate, beside the
    built-in ones. ``idle_threshold_ns`` parts waits
    between kernels from other idle time, ``short_kernel_ns`` is what counts as a short kernel,
    ``late_launch_ns`` as a launch that came late, and ``queue_limit`` as a full queue.
    ``kernel_sequences`` lists those of at least ``sequence_length`` kernels under operators whose
    names hold ``sequence_operator``. ``levers`` are what-if questions; without any, common ones are
    asked.
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
    levers: tuple[Lever, ...] = ()
