"""The rules, each in a file of its own.

A new rule is a new file, and one line here.
"""

from __future__ import annotations

from whystuck.diagnose.rule import Rule
from whystuck.diagnose.rules.cost.p501_input_bound import InputBound
from whystuck.diagnose.rules.cost.p502_launch_bound import LaunchBound
from whystuck.diagnose.rules.cost.p503_exposed_communication import ExposedCommunication
from whystuck.diagnose.rules.cost.p504_late_rank import LateRank
from whystuck.diagnose.rules.cost.p505_short_kernels import ShortKernels
from whystuck.diagnose.rules.cost.p506_host_sync import HostSync
from whystuck.diagnose.rules.cost.p507_pageable_copies import PageableCopies
from whystuck.diagnose.rules.cost.p508_recompilation import Recompilation
from whystuck.diagnose.rules.cost.p509_regression import Regression
from whystuck.diagnose.rules.crash.c201_process_killed import ProcessKilled
from whystuck.diagnose.rules.crash.c202_host_out_of_memory import HostOutOfMemory
from whystuck.diagnose.rules.crash.c203_native_crash import NativeCrash
from whystuck.diagnose.rules.crash.c204_python_exception import PythonExceptionRule
from whystuck.diagnose.rules.crash.c205_same_exception_everywhere import SameExceptionEverywhere
from whystuck.diagnose.rules.crash.c206_device_out_of_memory import DeviceOutOfMemory
from whystuck.diagnose.rules.crash.c207_preempted import Preempted
from whystuck.diagnose.rules.crash.c208_hardware_error import HardwareError
from whystuck.diagnose.rules.crash.c209_peer_lost import PeerLost
from whystuck.diagnose.rules.crash.c210_config_error import ConfigErrorRule
from whystuck.diagnose.rules.crash.c211_collective_timeout import CollectiveTimeout
from whystuck.diagnose.rules.crash.c212_device_fault import DeviceFault
from whystuck.diagnose.rules.crash.c213_reducer_error import ReducerError
from whystuck.diagnose.rules.hang.h101_rank_never_joined import RankNeverJoined
from whystuck.diagnose.rules.hang.h102_extra_collective import ExtraCollective
from whystuck.diagnose.rules.hang.h103_left_early import LeftEarly
from whystuck.diagnose.rules.hang.h104_group_order_cycle import GroupOrderCycle
from whystuck.diagnose.rules.hang.h105_op_mismatch import OpMismatch
from whystuck.diagnose.rules.hang.h106_shape_mismatch import ShapeMismatch
from whystuck.diagnose.rules.hang.h107_dtype_mismatch import DtypeMismatch
from whystuck.diagnose.rules.hang.h108_split_mismatch import SplitMismatchRule
from whystuck.diagnose.rules.hang.h109_p2p_cycle import P2pCycle
from whystuck.diagnose.rules.hang.h110_p2p_unmatched import P2pUnmatched
from whystuck.diagnose.rules.hang.h111_input_stalled import InputStalled
from whystuck.diagnose.rules.hang.h112_input_worker_stuck import InputWorkerStuck
from whystuck.diagnose.rules.hang.h113_process_stopped import ProcessStopped
from whystuck.diagnose.rules.hang.h114_gil_held import GilHeld
from whystuck.diagnose.rules.hang.h115_lock_deadlock import LockDeadlock
from whystuck.diagnose.rules.hang.h116_storage_stalled import StorageStalled
from whystuck.diagnose.rules.hang.h117_setup_slow import SetupSlow
from whystuck.diagnose.rules.hang.h118_checkpoint_slow import CheckpointSlow
from whystuck.diagnose.rules.hang.h119_compile_divergence import CompileDivergence
from whystuck.diagnose.rules.hang.h120_exception_hanging import ExceptionHanging
from whystuck.diagnose.rules.hang.h121_rendezvous_failed import RendezvousFailed
from whystuck.diagnose.rules.hang.h122_transfer_stalled import TransferStalled
from whystuck.diagnose.rules.hang.h123_device_stalled import DeviceStalled
from whystuck.diagnose.rules.hang.h124_collective_not_issued import CollectiveNotIssued
from whystuck.diagnose.rules.hang.h125_timeout_too_short import TimeoutTooShort
from whystuck.diagnose.rules.hang.h126_device_not_bound import DeviceNotBound
from whystuck.diagnose.rules.hang.h127_skipped_collective import SkippedCollective
from whystuck.diagnose.rules.node.n401_disk_failed import DiskFailed
from whystuck.diagnose.rules.node.n402_disk_slow import DiskSlow
from whystuck.diagnose.rules.node.n403_shm_small import ShmSmall
from whystuck.diagnose.rules.node.n404_limits_low import LimitsLow
from whystuck.diagnose.rules.node.n405_cgroup_tight import CgroupTight
from whystuck.diagnose.rules.node.n406_clock_skewed import ClockSkewed
from whystuck.diagnose.rules.node.n407_dns_failed import DnsFailed
from whystuck.diagnose.rules.node.n408_nic_down import NicDown
from whystuck.diagnose.rules.node.n409_nic_errors import NicErrors
from whystuck.diagnose.rules.node.n410_fabric_errors import FabricErrors
from whystuck.diagnose.rules.node.n411_device_missing import DeviceMissing
from whystuck.diagnose.rules.node.n412_device_errors import DeviceErrors
from whystuck.diagnose.rules.node.n413_device_throttled import DeviceThrottled
from whystuck.diagnose.rules.node.n414_device_busy import DeviceBusy
from whystuck.diagnose.rules.node.n415_pcie_degraded import PcieDegraded
from whystuck.diagnose.rules.node.n416_link_down import LinkDown
from whystuck.diagnose.rules.node.n417_versions_differ import VersionsDiffer
from whystuck.diagnose.rules.node.n418_version_known_bad import VersionKnownBad
from whystuck.diagnose.rules.node.n419_allreduce_wrong import AllReduceWrong
from whystuck.diagnose.rules.node.n420_allreduce_slow import AllReduceSlow
from whystuck.diagnose.rules.node.n421_pair_failed import PairFailed
from whystuck.diagnose.rules.node.n422_p2p_blocked import PeerToPeerBlocked
from whystuck.diagnose.rules.node.n423_gemm_slow import GemmSlow
from whystuck.diagnose.rules.node.n424_gemm_wrong import GemmWrong
from whystuck.diagnose.rules.node.n425_kernel_log_errors import KernelLogErrors
from whystuck.diagnose.rules.node.n426_memory_low import MemoryLow
from whystuck.diagnose.rules.node.n427_transport_fallback import TransportFallback
from whystuck.diagnose.rules.node.n428_interface_wrong import InterfaceWrong
from whystuck.diagnose.rules.slow.s301_slow_rank import SlowRank
from whystuck.diagnose.rules.slow.s302_slow_node import SlowNode
from whystuck.diagnose.rules.slow.s303_slow_link import SlowLinkRule
from whystuck.diagnose.rules.slow.s304_whole_job_slower import WholeJobSlower
from whystuck.diagnose.rules.slow.s305_serial_checkpoint import SerialCheckpoint
from whystuck.diagnose.rules.slow.s306_cpu_starved import CpuStarved
from whystuck.diagnose.rules.slow.s307_gc_pauses import GcPauses
from whystuck.diagnose.rules.slow.s308_imbalance import Imbalance
from whystuck.diagnose.rules.slow.s309_starved_input import StarvedInput
from whystuck.diagnose.rules.slow.s310_communication_bound import CommunicationBound
from whystuck.diagnose.rules.slow.s311_memory_pressure import MemoryPressure
from whystuck.diagnose.rules.values.v501_weights_diverged import WeightsDiverged
from whystuck.diagnose.rules.values.v502_not_finite import NotFiniteRule
from whystuck.diagnose.rules.values.v503_updates_skipped import UpdatesSkipped

RULES: tuple[type[Rule], ...] = (
    RankNeverJoined,
    ExtraCollective,
    LeftEarly,
    GroupOrderCycle,
    OpMismatch,
    ShapeMismatch,
    DtypeMismatch,
    SplitMismatchRule,
    P2pCycle,
    P2pUnmatched,
    InputStalled,
    InputWorkerStuck,
    ProcessStopped,
    GilHeld,
    LockDeadlock,
    StorageStalled,
    SetupSlow,
    CheckpointSlow,
    CompileDivergence,
    ExceptionHanging,
    RendezvousFailed,
    TransferStalled,
    DeviceStalled,
    CollectiveNotIssued,
    TimeoutTooShort,
    DeviceNotBound,
    SkippedCollective,
    SlowRank,
    CpuStarved,
    SlowNode,
    SlowLinkRule,
    WholeJobSlower,
    SerialCheckpoint,
    StarvedInput,
    GcPauses,
    Imbalance,
    CommunicationBound,
    MemoryPressure,
    InputBound,
    LaunchBound,
    ExposedCommunication,
    LateRank,
    ShortKernels,
    HostSync,
    PageableCopies,
    Recompilation,
    Regression,
    ProcessKilled,
    HostOutOfMemory,
    NativeCrash,
    PythonExceptionRule,
    SameExceptionEverywhere,
    DeviceOutOfMemory,
    Preempted,
    HardwareError,
    PeerLost,
    ConfigErrorRule,
    CollectiveTimeout,
    DeviceFault,
    ReducerError,
    DiskFailed,
    DiskSlow,
    ShmSmall,
    LimitsLow,
    CgroupTight,
    ClockSkewed,
    DnsFailed,
    NicDown,
    NicErrors,
    FabricErrors,
    DeviceMissing,
    DeviceErrors,
    DeviceThrottled,
    DeviceBusy,
    PcieDegraded,
    LinkDown,
    AllReduceWrong,
    AllReduceSlow,
    PairFailed,
    GemmSlow,
    GemmWrong,
    KernelLogErrors,
    MemoryLow,
    VersionsDiffer,
    VersionKnownBad,
    PeerToPeerBlocked,
    TransportFallback,
    InterfaceWrong,
    WeightsDiverged,
    NotFiniteRule,
    UpdatesSkipped,
)
