"""What a report says of traces beside its findings: how much was read, and where the time went."""

from __future__ import annotations

import msgspec


class TraceShare(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the time of the steps.

    ``name`` is ``compute``, ``exposed_comm`` (communication while nothing computes),
    ``exposed_memory`` (copies while nothing else runs), or why the device had nothing to do:
    ``data_wait`` (the host is in the data loader), ``sync`` (in a call that waits for the device),
    ``launch`` (in another call of the runtime), ``host`` (in an op or in Python), ``idle``
    (nothing is known). ``share`` is that of the rank in the middle, ``most`` that of ``rank``,
    which has most; the rank is -1 when it is not known.
    """

    name: str
    share: float
    most: float
    rank: int = -1


class TraceBar(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of one rank went: the shares are in the order of the parts of the overview.

    ``label`` is the rank, or which part of many ranks it stands for.
    """

    label: str
    step_ms: float
    shares: list[float]


class TraceOverview(msgspec.Struct, frozen=True, kw_only=True):
    """How much the traces cover, and where the time of the steps went.

    ``ranks`` are those with a trace, as a set such as ``0-7``; ``files`` counts traces.
    ``vendor`` is ``cuda``, ``rocm``, ``mtia`` or ``cpu``. ``steps`` is the number of steps of the
    rank in the middle, ``step_ms`` their mean time. ``first_step`` and ``last_step`` are numbers of
    the profiler, -1 for steps that optimizers mark. Without steps, ``steps`` is 0, ``step_ms`` the
    time of the whole trace, and ``device_ms`` that from the first work of the device to its last,
    0 where it is not known. ``bars`` are the ranks one by one, or, where there are more than 64,
    the quantiles of their steps and the ranks that stand out.
    """

    ranks: str = ""
    files: int = 0
    world_size: int = 0
    hosts: int = 0
    vendor: str = ""
    has_device: bool = False
    steps: int = 0
    first_step: int = -1
    last_step: int = -1
    step_ms: float = 0.0
    device_ms: float = 0.0
    split: list[TraceShare] = []
    bars: list[TraceBar] = []
