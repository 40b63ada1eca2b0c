"""What was seen inside the tensors of ranks: values that are not finite, and checksums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class NotFinite:
    """An op of one rank of which some input or output is not finite.

    ``side`` is ``in`` or ``out``; ``number`` counts the ops of the rank, ``seq`` those of the group
    (point-to-point ops apart), and ``step`` the optimizer steps made before. ``nan`` and ``inf``
    count elements of the first such tensor, which is the one at ``place``. ``peer`` is the global
    rank to which a send goes, -1 for other ops, and ``passed`` its number among the sends to it;
    ``received`` counts the receives from each rank, and from any (-1), that were issued before.
    ``time_ns`` is when the op was issued by the clock of its host, 0 when unknown.
    """

    rank: int
    side: str
    number: int
    name: str
    group: str
    seq: int
    step: int
    place: int
    shape: tuple[int, ...]
    dtype: str
    nan: int
    inf: int
    peer: int = -1
    passed: int = 0
    received: Mapping[int, int] = field(default_factory=dict)
    time_ns: int = 0
    artifact: str = ""
    row: int = -1

    @property
    def op(self) -> tuple[str, int, bool]:
        """What tells a collective from all others of the job."""
        return self.group, self.seq, self.is_p2p

    @property
    def is_p2p(self) -> bool:
        """Whether it is a send or receive, whose numbers differ from rank to rank."""
        return self.name in {"send", "recv", "recv_any"}


@dataclass(frozen=True)
class TensorSet:
    """The parameters of one optimizer of one rank, in its order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]


@dataclass(frozen=True)
class Checksums:
    """The checksums of a set of tensors at one moment.

    ``step`` is the number of optimizer steps made; ``when`` is ``after`` that step, ``before`` the
    next one, or ``grads``: the gradients that the next one uses. ``sums`` has one element for each
    tensor of ``tensors``.
    """

    rank: int
    generation: int
    optimizer: int
    step: int
    when: str
    tensors: TensorSet
    sums: NDArray[np.uint64] = field(repr=False)
    artifact: str = ""
    row: int = -1


@dataclass(frozen=True)
class ScalerUpdate:
    """One update of the parameters that a gradient scaler or a check for NaN decides on.

    Most updates that were made have no row. ``updates`` numbers this one in its series, from 1, and
    ``skips`` counts those of them that were skipped, this one included. ``source`` is ``scaler``
    (of torch), ``deepspeed``, or ``guard`` (a check in the job); ``series`` tells several of one
    source apart. ``scale`` is the one in force before the update, ``init`` the one that the scaler
    began with; both are None where they are not known. Ops with numbers from ``first_op`` to
    ``last_op`` belong to it.
    """

    rank: int
    step: int
    scale: float | None
    is_skipped: bool
    first_op: int
    last_op: int
    updates: int = 0
    skips: int = 0
    source: str = "scaler"
    series: int = 0
    init: float | None = None
    generation: int = 0
    artifact: str = ""
    row: int = -1


@dataclass(frozen=True)
class Shares:
    """How many elements of one type one rank gave to (``in``) or got from (``out``) ops of a name.

    ``count`` elements were looked at. ``counted`` of them were also looked at for what is
    ``subnormal``, ``zero`` or ``saturated``: at the largest number of the type.
    """

    rank: int
    side: str
    name: str
    group: str
    dtype: str
    count: int
    counted: int
    nan: int
    inf: int
    subnormal: int
    saturated: int
    zero: int


@dataclass(frozen=True)
class OpResult:
    """The checksum of what one rank got from an op whose result all members of its group share.

    ``shape`` and ``dtype`` are those of the first tensor, ``number``, ``seq`` and ``step`` as in
    :class:`NotFinite`.
    """

    rank: int
    number: int
    name: str
    group: str
    seq: int
    step: int
    shape: tuple[int, ...]
    dtype: str
    checksum: int
    artifact: str = ""
    row: int = -1


@dataclass(frozen=True)
class Said:
    """What a check of the user's said about an op."""

    rank: int
    call: str
    text: str
    name: str
    group: str
    seq: int
    step: int
    artifact: str = ""
    row: int = -1


@dataclass(frozen=True)
class Inspection:
    """All that was seen inside the tensors of one rank."""

    rank: int
    spec: str = ""
    ops: int = 0
    not_finite: tuple[NotFinite, ...] = ()
    checksums: tuple[Checksums, ...] = ()
    scaler: tuple[ScalerUpdate, ...] = ()
    results: tuple[OpResult, ...] = ()
    shares: tuple[Shares, ...] = ()
    said: tuple[Said, ...] = ()
    is_full: bool = False
