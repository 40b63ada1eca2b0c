"""The thresholds of checks: a table of ours, and one of the user that goes over it."""

from __future__ import annotations

import errno
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from whystuck.evidence.decoding import convert
from whystuck.evidence.errors import UsageError

_OURS = Path(__file__).with_name("policy.toml")
_MAX_BYTES = 1 << 18
_HINT = "`whystuck check --show-policy` prints the table with all names"


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of the file."""


class DiskPolicy(_Table, frozen=True):
    """``[disk]``."""

    paths: tuple[str, ...]
    test_mb: int
    budget_s: float
    min_read_mb_per_s: float
    min_write_mb_per_s: float
    max_sync_ms: float
    min_files_per_s: float
    min_free_mb: int
    min_free_share: float
    min_free_inodes: int


class ShmPolicy(_Table, frozen=True):
    """``[shm]``."""

    min_free_mb: int


class LimitsPolicy(_Table, frozen=True):
    """``[limits]``."""

    min_open_files: int
    note_open_files: int
    min_processes: int
    min_locked_mb: int
    min_stack_kb: int
    min_address_gb: int
    min_file_gb: int
    min_cpu_hours: int


class CgroupPolicy(_Table, frozen=True):
    """``[cgroup]``."""

    min_free_mb: int
    min_free_share: float
    min_cpus: float
    max_throttled_share: float
    min_periods: int
    min_free_processes: int


class MemoryPolicy(_Table, frozen=True):
    """``[memory]``."""

    min_available_mb: int
    min_available_share: float
    error_available_mb: int
    max_pressure_percent: float


class ClockPolicy(_Table, frozen=True):
    """``[clock]``."""

    max_offset_s: float
    error_offset_s: float
    max_error_s: float


class DnsPolicy(_Table, frozen=True):
    """``[dns]``."""

    max_lookup_s: float
    server_timeout_s: float


class NicPolicy(_Table, frozen=True):
    """``[nic]``."""

    sample_s: float
    max_error_share: float
    min_errors: int
    max_carrier_losses: int


class FabricPolicy(_Table, frozen=True):
    """``[fabric]``."""

    max_symbol_errors: int
    max_link_downed: int
    max_receive_errors: int


class KernelLogPolicy(_Table, frozen=True):
    """``[kernel-log]``."""

    max_age_s: float
    max_lines: int


class DevicePolicy(_Table, frozen=True):
    """``[device]``."""

    count: int
    max_temperature_c: int
    max_foreign_mib: int
    max_replays: int


class GemmPolicy(_Table, frozen=True):
    """``[gemm]``."""

    seconds: float
    deep_seconds: float
    max_slowdown_share: float
    min_host_gflops_per_core: float
    max_below_median_share: float
    min_device_tflops: dict[str, float]


class AllReducePolicy(_Table, frozen=True):
    """``[allreduce]``."""

    megabytes: int
    repeats: int
    sweep_kib: tuple[int, ...]
    min_gloo_gbps: float
    min_nccl_gbps: float


class TrainingPolicy(_Table, frozen=True):
    """``[training]``."""

    steps: int


class NodesPolicy(_Table, frozen=True):
    """``[nodes]``."""

    meet_s: float
    end_wait_s: float
    clock_wait_s: float
    max_clock_offset_s: float
    megabytes: int
    repeats: int
    budget_s: float
    pair_s: float
    device_megabytes: int
    device_pair_s: float
    rounds: int
    min_gloo_gbps: float
    min_nccl_gbps: float
    min_share_of_quartile: float
    max_host_below_median_share: float


class CheckPolicy(_Table, frozen=True, rename={"kernel_log": "kernel-log"}):
    """All thresholds."""

    blocking: tuple[str, ...]
    checks: tuple[str, ...]
    deadlines: dict[str, float]
    disk: DiskPolicy
    shm: ShmPolicy
    limits: LimitsPolicy
    cgroup: CgroupPolicy
    memory: MemoryPolicy
    clock: ClockPolicy
    dns: DnsPolicy
    nic: NicPolicy
    fabric: FabricPolicy
    kernel_log: KernelLogPolicy
    device: DevicePolicy
    gemm: GemmPolicy
    allreduce: AllReducePolicy
    training: TrainingPolicy
    nodes: NodesPolicy

    def find_deadline(self, name: str) -> float:
        """Return how many seconds a check may take."""
        return self.deadlines.get(name, self.deadlines["default"])


def read_policy(path: Path | None = None) -> CheckPolicy:
    """Return the thresholds; those of a file of the user go over ours.

    Raises:
        UsageError: The file cannot be read, or holds what is no threshold.
    """
    if path is None:
        return _make(_read_ours())
    try:
        table = tomllib.loads(_read_small(path).decode())
    except (OSError, ValueError, RecursionError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise UsageError(f"cannot read the policy `{path}`: {reason}", hint=_HINT) from problem
    try:
        return _make(_lay_over(_read_ours(), table))
    except msgspec.ValidationError as problem:
        raise UsageError(f"the policy `{path}` is wrong: {problem}", hint=_HINT) from problem


def _read_small(path: Path) -> bytes:
    """Return what a file holds; raises OSError where it cannot be read, or is too large."""
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {_MAX_BYTES} bytes")
    return data


def read_policy_text() -> str:
    """Return our table as it stands, with the sources of its figures."""
    return _OURS.read_text()


@cache
def _read_ours() -> Mapping[str, Any]:
    return tomllib.loads(read_policy_text())


def _make(table: Mapping[str, Any]) -> CheckPolicy:
    return convert(table, CheckPolicy)


def _lay_over(base: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with what ``table`` says, table by table."""
    merged = dict(base)
    for name, value in table.items():
        ours = base.get(name)
        is_table = isinstance(ours, Mapping) and isinstance(value, Mapping)
        merged[name] = _lay_over(ours, value) if is_table else value  # type: ignore[arg-type]
    return merged
