"""P502 and P506 by tables of torch.profiler: what the host does while the device is idle."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from whystuck.diagnose import codes
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.story import NOTE, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.logs.lines import LogEvent

_MAX_LINES = 6
# A device that works for more of the time is no faster for what the host does.
_SYNC_BUSY, _LAUNCH_BUSY = 0.7, 0.5
# Of the time of the host.
_SYNC_SHARE, _LAUNCH_SHARE, _LITTLE = 0.4, 0.2, 0.25
# Calls that wait, in a step; a loss that is printed, and the gradients that are clipped, are few.
_LEAST_SYNCS, _LEAST_ALL_SYNCS = 5.0, 100
_LEAST_LAUNCHES, _SHORT_US = 1000, 10.0
_US_PER_MS = 1000.0
_SYNC = re.compile(
    r"(?:cuda|hip|musa)(?:Stream|Device|Event)Synchronize|cuStreamSynchronize"
    r"|aclrtSynchronize\w{4,30}|hipMemcpyWithStream"
)
_LAUNCH = re.compile(
    r"(?:cuda|hip|musa)(?:Ext)?(?:Module)?Launch(?:Cooperative)?Kernel\w{0,12}|cuLaunchKernel\w{0,4}"
)
_INPUT = re.compile(r"enumerate\(DataLoader\)|DataLoader\w{0,30}(?:\.|#)_{0,2}next|next\(loader\)")
# What reads a value of the device, and so waits for it; the outermost says most.
_READS = ("aten::item", "aten::is_nonzero", "aten::nonzero", "aten::equal", "aten::_local_scalar")
_STEP = "ProfilerStep"


@dataclass
class _Profile:
    """The rows of one table, by their names, and the time of the host and the device in us."""

    rows: dict[str, LogEvent] = field(default_factory=dict)
    totals: dict[str, LogEvent] = field(default_factory=dict)

    def list_rows(self, pattern: re.Pattern[str]) -> list[LogEvent]:
        """Return the rows of calls, the one that takes longest first."""
        found = [row for name, row in self.rows.items() if pattern.match(name)]
        return sorted(found, key=lambda row: -_read(row, "self"))

    @property
    def host_us(self) -> float:
        """How long the host took in all; 0 where it is not told."""
        if total := self.totals.get("CPU"):
            return _read(total, "us")
        return self._find_whole("share", "self")

    @property
    def device_us(self) -> float:
        """How long the device worked in all; 0 where it is not told."""
        told = next((_read(row, "us") for of, row in self.totals.items() if of != "CPU"), 0.0)
        return told or self._find_whole("device_share", "device")

    @property
    def busy(self) -> float:
        """Which part of that time the device worked; 1 where it is not told."""
        return self.device_us / self.host_us if self.device_us and self.host_us else 1.0

    @property
    def steps(self) -> int:
        """How many steps were profiled, 0 where it is not told."""
        return max(
            (_count([row]) for name, row in self.rows.items() if name.startswith(_STEP)), default=0
        )

    def _find_whole(self, share: str, part: str) -> float:
        """Return what a part and its share are of, by the row with the largest share."""
        shares = [(_read(row, share), _read(row, part)) for row in self.rows.values()]
        most = max(shares, default=(0.0, 0.0))
        return 100 * most[1] / most[0] if most[0] else 0.0

    def find_share(self, rows: Sequence[LogEvent]) -> float:
        """Return which part of the time of the host some calls take."""
        return sum(_read(row, "self") for row in rows) / self.host_us if self.host_us else 0.0


def _read(row: LogEvent, name: str) -> float:
    return float(row.groups.get(name) or 0.0)


def _count(rows: Sequence[LogEvent]) -> int:
    return sum(int(row.groups["calls"]) for row in rows)


def make_profiles(view: LogView) -> Iterator[Case]:
    """Make the case of a device that is idle as its host waits for it, or launches.

    Where several tables are shown, such as those of ranks, all of them must tell the same.
    """
    profiles = _list_profiles(view)
    for make in (_make_syncs, _make_launches):
        cases = [make(profile) for profile in profiles]
        told = [case for case in cases if case is not None]
        if told and len(told) == len(cases):
            yield told[0]
            return


Make = Callable[[_Profile], Case | None]


def _list_profiles(view: LogView) -> list[_Profile]:
    found: dict[tuple[str, str], _Profile] = {}
    for row in view.list_signatures("table.profiled", "table.profile_total"):
        one = found.setdefault((row.artifact, row.groups["table"]), _Profile())
        if row.signature == "table.profiled":
            one.rows.setdefault(row.groups["name"], row)
        else:
            one.totals.setdefault(row.groups["of"], row)
    return [one for one in found.values() if one.rows]


def _make_case(profile: _Profile, code: str, summary: str, rows: Sequence[LogEvent]) -> Case:
    lines = (*rows, *profile.totals.values())
    return Case(
        code=code,
        summary=f"{summary}; the device works for {profile.busy:.0%} of the time",
        tier=NOTE,
        lines=lines[:_MAX_LINES],
        time=find_time(lines),
    )


def _make_syncs(profile: _Profile) -> Case | None:
    rows = profile.list_rows(_SYNC)
    share, count, steps = profile.find_share(rows), _count(rows), profile.steps
    few = count < _LEAST_SYNCS * steps if steps else count < _LEAST_ALL_SYNCS
    if share < _SYNC_SHARE or profile.busy > _SYNC_BUSY or few:
        return None
    reads = [row for name, row in profile.rows.items() if name.startswith(_READS)]
    reads.sort(key=lambda row: (-_count([row]), _READS.index(_find_read(row))))
    who = f", most by {reads[0].groups['name']} ({_count(reads[:1])} calls)" if reads else ""
    each = f", {count / steps:.0f} times a step" if steps else f", {count} times"
    text = f"the host waits for the device in {rows[0].groups['name']} for {share:.0%} of its time"
    return _make_case(profile, codes.HOST_SYNC, f"{text}{each}{who}", (*rows[:1], *reads[:2]))


def _find_read(row: LogEvent) -> str:
    return next(one for one in _READS if row.groups["name"].startswith(one))


def _make_launches(profile: _Profile) -> Case | None:
    rows = profile.list_rows(_LAUNCH)
    count = _count(rows)
    waits = profile.find_share([*profile.list_rows(_SYNC), *profile.list_rows(_INPUT)])
    if count < _LEAST_LAUNCHES or profile.busy > _LAUNCH_BUSY or waits > _LITTLE:
        return None
    each = profile.device_us / count
    share = profile.find_share(rows)
    if share < _LAUNCH_SHARE and each > _SHORT_US:
        return None
    most = sorted(profile.rows.values(), key=lambda row: -_read(row, "device"))
    text = (
        f"the host launches {count} kernels, of {each:.1f} us each, and takes "
        f"{profile.host_us / _US_PER_MS:.0f} ms ({share:.0%} of it in {rows[0].groups['name']})"
    )
    return _make_case(profile, codes.LAUNCH_BOUND, text, (*rows[:1], *most[:2]))
