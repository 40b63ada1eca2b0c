"""What a report shows beside its findings: stacks, ops, communication, executed lines, values."""

from __future__ import annotations

import msgspec


class StackNode(msgspec.Struct, frozen=True):
    """A node of the merged stack tree: a frame, and the ranks whose main thread is in it."""

    function: str
    file: str
    line: int
    ranks: str
    is_user_code: bool
    children: list[StackNode] = []


class Site(msgspec.Struct, frozen=True):
    """A line of source that issued an op."""

    file: str
    line: int
    function: str


class RankClass(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks whose op at one number of a group looks the same.

    ``state`` is ``done``, ``started``, ``pending`` (issued, not known to run), ``absent`` (the
    rank has not come to this op), ``unknown`` (no dump, or the ring has lost it) or ``end unknown``
    (on a device, of which op logs do not tell the end). ``sizes`` are those of the first rank;
    ``sizes_vary`` tells that others have others, as the op allows.
    ``sites`` is the call site, innermost user frame first; empty when frames were not recorded.
    """

    ranks: str
    state: str
    op: str = ""
    sizes: list[list[int]] = []
    sizes_vary: bool = False
    dtypes: list[str] = []
    sites: list[Site] = []


class TimelineOp(msgspec.Struct, frozen=True, kw_only=True):
    """One op of a group, and what each class of its members made of it; the largest comes first.

    ``sequence`` is the number in the group, for a transfer between two ranks the number in that
    pair. ``mark`` is ``divergence`` where the ranks part, ``pending`` at the first op that is
    not done, ``mismatch`` at others that members do not agree on, or empty.
    """

    sequence: int
    op: str
    is_p2p: bool = False
    mark: str = ""
    classes: list[RankClass] = []


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """The ops of one process group around the place that matters, oldest first.

    ``columns`` are sets of ranks whose ops look the same in all lines shown. ``alike`` names
    further groups of which the same can be said, and ``alike_ranks`` their members.
    ``mismatches`` counts the ops of the whole record whose op, size or type differs, and
    ``first_mismatches`` are the numbers of the first of them.
    """

    group: str
    desc: str
    members: str
    recorded: int
    columns: list[str] = []
    ops: list[TimelineOp] = []
    alike: list[str] = []
    alike_ranks: str = ""
    mismatches: int = 0
    first_mismatches: list[int] = []


class CommunicationRow(msgspec.Struct, frozen=True, kw_only=True):
    """What the ops of one kind, group and class of sizes cost, from the op logs.

    The class holds ops of ``bytes_from`` to below ``bytes_to`` bytes; sizes are those of
    nccl-tests. ``calls`` counts ops of the group, ``bytes`` what they moved. ``median_ms`` and
    ``p99_ms`` are from the call to the end on each rank, the wait for late ranks included;
    ``transfer_ms`` is the median from the last arrival to the end, over ops that all members came
    to. ``algbw_gbps`` and ``busbw_gbps`` are 10^9 bytes a second by that. ``error_ms`` is by how
    much ends are not known. ``exposed_share`` is the share of the time of a rank in which a thread
    waits for them, 0 for asynchronous ones, whose waits are not known; ``async_share`` tells how
    many of the calls these are. ``last_rank`` came last most often, in ``last_share`` of the ops
    and then ``late_ms`` (the median) after the others; it is -1 where nobody does, or the clocks
    do not tell. ``times_by`` is what tells the times: ``op log``, ``nccl inspector``, or nothing
    where they are unknown. A figure that is not known is null.
    """

    op: str
    group: str
    ranks: int
    bytes_from: int
    bytes_to: int
    calls: int
    bytes: int
    median_ms: float | None = None
    p99_ms: float | None = None
    transfer_ms: float | None = None
    algbw_gbps: float | None = None
    busbw_gbps: float | None = None
    error_ms: float | None = None
    exposed_share: float = 0.0
    async_share: float = 0.0
    last_rank: int = -1
    last_share: float = 0.0
    late_ms: float | None = None
    times_by: str = ""


class Communication(msgspec.Struct, frozen=True, kw_only=True):
    """What the job spent on communication, from the op logs; the costliest kind of op first.

    ``span_s`` is the time that the logs cover, ``exposed_share`` the share of it in which the rank
    in the middle waits in synchronous ops, ``exposed_most`` that of ``exposed_rank``, which waits
    most, ``exposed_for_peers`` of which before the last rank came; the rest is transfer.
    ``clock_error_ms`` is by how much the clocks of hosts may differ after they are compared by the
    ends of ops, null with one clock. ``dropped`` ops were older than what the logs hold.
    """

    rows: list[CommunicationRow] = []
    span_s: float = 0.0
    exposed_share: float = 0.0
    exposed_most: float = 0.0
    exposed_rank: int = -1
    exposed_for_peers: float = 0.0
    clock_error_ms: float | None = None
    dropped: int = 0


class ExecutedRun(msgspec.Struct, frozen=True):
    """Lines that were executed one after the other, ``times`` times round."""

    times: int
    lines: list[Site]


class ExecutedPath(msgspec.Struct, frozen=True, kw_only=True):
    """The last lines of the user's code that one thread executed, oldest first.

    ``count`` is how many it executed since recording began, ``line_ns`` what recording one costs
    there, and ``share`` what they all cost, as a share of the time until the evidence was taken;
    null when that time is not known.
    """

    rank: int
    thread: str
    is_main: bool
    count: int
    line_ns: float = 0.0
    share: float | None = None
    runs: list[ExecutedRun] = []


class OtherRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that lies beside the one of the report and is no part of it.

    ``path`` is relative to the folder that was read, ``started`` a UTC time as in
    :class:`JobInfo`, ``verdict`` that of its last incident, empty when it has none.
    """

    path: str
    started: str = ""
    command: str = ""
    exit_code: int | None = None
    verdict: str = ""


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Which job a report is about, and when.

    ``time`` is when the evidence was taken and ``started`` when the job began, in UTC as
    ``2026-11-23T07:09:17Z``. ``folder`` is the incident or round that was read, relative to the
    path that was given. ``ended`` says how the job ended after the evidence was taken, in a few
    words; empty when unknown. ``other_runs`` are runs in the same folder, the newest first.
    """

    time: str = ""
    id: str = ""
    command: str = ""
    cwd: str = ""
    started: str = ""
    ended: str = ""
    folder: str = ""
    torch_version: str = ""
    python_version: str = ""
    whystuck_version: str = ""
    other_runs: list[OtherRun] = []


class ValueRow(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank gave to (``in``) or got from (``out``) ops of one name, group and type.

    Figures are shares of the ``elements`` that were looked at: NaN, Inf (``overflow``), subnormal
    (``underflow``), at the largest number of the type (``saturated``), and zero. Those that were
    not counted are null.
    """

    rank: int
    op: str
    group: str
    side: str
    dtype: str
    elements: int
    nan: float
    overflow: float
    underflow: float | None = None
    saturated: float | None = None
    zero: float | None = None
