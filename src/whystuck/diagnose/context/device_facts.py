"""What the driver of devices tells of a stall: which of them spin, compute, or have nothing to do.

A kernel of NCCL that waits keeps a device busy with few of its units: load 100 % at a fraction of
the power limit. Work of a training step takes most of either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from whystuck.diagnose.policy import Policy
from whystuck.evidence.finding import Citation
from whystuck.evidence.nodes.devices import DeviceEntry, DeviceLook, DeviceState, RunningKernel
from whystuck.evidence.ranks import format_ranks, name_ranks

_MHZ = 1e6


class Mode(StrEnum):
    """What a device does, in each look at it."""

    IDLE = "idle"
    SPINNING = "spinning"
    COMPUTING = "computing"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class DeviceModes:
    """What the devices of some ranks do; ``odd`` are those that alone do not spin as the others do.

    ``is_sure`` is whether power and units agree, and processes tell whose the odd devices are.
    """

    by_rank: Mapping[int, Mode]
    odd: tuple[int, ...] = ()
    mode: Mode = Mode.UNKNOWN
    is_sure: bool = False

    @property
    def details(self) -> dict[str, str]:
        """Ranks by mode, as reports have them: ``{"spinning": "0-2", "computing": "3"}``."""
        found: dict[str, set[int]] = {}
        for rank, mode in sorted(self.by_rank.items()):
            found.setdefault(mode.value, set()).add(rank)
        return {mode: format_ranks(ranks) for mode, ranks in found.items()}

    @property
    def tail(self) -> str:
        """What follows in a sentence about the op, empty where they say nothing together."""
        if self.odd:
            who = f"the device of {name_ranks(self.odd)}"
            does = "runs nothing" if self.mode is Mode.IDLE else "computes"
            return f"{who} {does}, while those of the others spin"
        if self.mode is Mode.SPINNING:
            return "all devices spin, as a kernel does that waits"
        return "no device runs anything" if self.mode is Mode.IDLE else ""


def judge_devices(
    devices: Sequence[DeviceState], ranks: Collection[int], policy: Policy
) -> DeviceModes:
    """Compare what the devices of ranks do.

    Args:
        devices: All devices of the evidence.
        ranks: Those that wait for the same op.
        policy: The thresholds.

    Returns:
        What each does. There are odd ones when the devices of all ranks are known, fewer than
        half of them compute or have nothing to do, and all others spin.
    """
    entries = {rank: one.entry for one in devices for rank in one.entry.ranks if rank in ranks}
    by_rank = {rank: judge_device(entry, policy) for rank, entry in entries.items()}
    found = set(by_rank.values())
    if set(by_rank) != set(ranks) or not by_rank:
        return DeviceModes(by_rank)
    if len(found) == 1:
        return DeviceModes(by_rank, mode=found.pop())
    others = found - {Mode.SPINNING}
    odd = tuple(sorted(rank for rank, mode in by_rank.items() if mode is not Mode.SPINNING))
    if len(others) > 1 or not others <= {Mode.IDLE, Mode.COMPUTING} or 2 * len(odd) >= len(by_rank):
        return DeviceModes(by_rank)
    is_sure = all(_is_sure(entries[rank], policy) for rank in odd)
    return DeviceModes(by_rank, odd, others.pop(), is_sure)


def judge_device(entry: DeviceEntry, policy: Policy) -> Mode:
    """Tell what a device does in all looks at it; unknown where they differ."""
    if any(look.is_lost for look in entry.looks):
        return Mode.LOST
    # The figure of the first look may be a mean that began before the stall was there.
    found = {_judge_look(look, policy) for look in entry.looks}
    mode = found.pop() if len(found) == 1 else Mode.UNKNOWN
    is_shared = len(entry.ranks) > 1
    return Mode.UNKNOWN if is_shared and mode is not Mode.IDLE else mode


def _judge_look(look: DeviceLook, policy: Policy) -> Mode:
    if look.utilization is None:
        return Mode.UNKNOWN
    if look.utilization <= policy.idle_device_share:
        return Mode.IDLE
    if look.utilization < policy.busy_device_share:
        return Mode.UNKNOWN
    power, units = _measure_power(look), look.sm_active
    shares = [share for share in (power, units) if share is not None]
    if any(share >= policy.compute_share for share in shares):
        return Mode.COMPUTING
    is_low = bool(shares) and all(share < policy.spin_share for share in shares)
    return Mode.SPINNING if is_low else Mode.UNKNOWN


def _measure_power(look: DeviceLook) -> float | None:
    """Return the power as a share of its limit."""
    return look.power / look.power_limit if look.power is not None and look.power_limit else None


def _is_sure(entry: DeviceEntry, policy: Policy) -> bool:
    least = policy.compute_share
    powers = [_measure_power(look) for look in entry.looks]
    # GPM compares two looks, so that the first one has none of it.
    units = [look.sm_active for look in entry.looks[1:]]
    figures = [*powers, *units]
    return (
        bool(units)
        and not entry.is_guessed
        and all(one is not None and one >= least for one in figures)
    )


def cite_devices(
    devices: Sequence[DeviceState], ranks: Iterable[int], first: Collection[int], most: int
) -> list[Citation]:
    """Cite what the driver told of the devices of ranks, some of them first."""
    by_rank = {rank: one for one in devices for rank in one.entry.ranks}
    chosen = sorted(set(ranks) & set(by_rank), key=lambda rank: (rank not in first, rank))
    places = {(one.artifact, one.row): one for rank in chosen[:most] for one in [by_rank[rank]]}
    return [cite_device(state) for state in places.values()]


def cite_device(state: DeviceState) -> Citation:
    """Cite what the driver told of a device at last."""
    entry = state.entry
    whose = f" of {name_ranks(entry.ranks)}" if entry.ranks else ""
    guess = " (by its environment)" if entry.ranks and entry.is_guessed else ""
    figures = ", ".join(_describe(entry.looks[-1])) if entry.looks else ""
    text = f"device {entry.index}{whose}{guess}: {figures or 'the driver tells nothing'}"
    return Citation(text, state.artifact, state.row)


def _describe(look: DeviceLook) -> Iterable[str]:
    if look.is_lost:
        yield "the driver no longer reaches it"
    if look.utilization is not None:
        yield f"load {100 * look.utilization:.0f} %"
    if look.power is not None:
        limit = f" of {look.power_limit:.0f}" if look.power_limit else ""
        yield f"{look.power:.0f}{limit} W"
    if look.sm_active is not None:
        yield f"{100 * look.sm_active:.0f} % of its units active"
    if look.sm_clock is not None:
        most = f" of {look.sm_clock_max / _MHZ:.0f}" if look.sm_clock_max else ""
        yield f"clock {look.sm_clock / _MHZ:.0f}{most} MHz"
    if look.temperature is not None:
        yield f"{look.temperature:.0f} °C"
    if look.throttled:
        yield f"held down by {', '.join(look.throttled)}"
    yield from _describe_errors(look)


def _describe_errors(look: DeviceLook) -> Iterable[str]:
    if look.ecc_uncorrected:
        yield f"{look.ecc_uncorrected:.0f} uncorrected memory errors since the driver was loaded"
    if look.row_remap_failed:
        yield "no spare row of memory is left"
    if look.xid_errors:
        yield f"Xid {look.last_xid}"


_OF_NCCL = ("nccl", "void nccl", "rccl")


def list_own_kernels(kernels: Iterable[RunningKernel], ranks: Collection[int]) -> dict[str, str]:
    """Return the kernel that keeps the device of each rank of which there is a dump.

    One that is not NCCL's goes first: NCCL's own waits on all devices alike.
    """
    found: dict[int, str] = {}
    for one in sorted(kernels, key=lambda kernel: kernel.name.startswith(_OF_NCCL)):
        if one.rank in ranks:
            found.setdefault(one.rank, one.name)
    return {str(rank): name for rank, name in sorted(found.items())}


def cite_kernels(
    kernels: Iterable[RunningKernel], ranks: Collection[int], most: int
) -> list[Citation]:
    """Cite which kernels ran on the devices of ranks."""
    return [
        Citation(f"the device of rank {one.rank} runs {one.name}", one.artifact, one.row)
        for one in kernels
        if one.rank in ranks
    ][:most]


def describe_kernels(kernels: Iterable[RunningKernel], ranks: Collection[int]) -> str:
    """Say which kernels that are not NCCL's keep devices; empty where there are none."""
    found = list_own_kernels(kernels, ranks)
    own = {rank: name for rank, name in found.items() if not name.startswith(_OF_NCCL)}
    return "".join(f"; the device of rank {rank} runs {name}" for rank, name in own.items())
