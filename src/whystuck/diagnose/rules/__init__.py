"""The rules, each in a file of its own.

A new rule is a new file, and one line here.
"""

from __future__ import annotations

from importlib import import_module

from whystuck.diagnose.rule import Rule


def _load(target: str) -> type[Rule]:
    """Import the class that ``module:class`` names, below this folder."""
    module, _, name = target.partition(":")
    rule = getattr(import_module(f"{__name__}.{module}"), name)
    if not (isinstance(rule, type) and issubclass(rule, Rule)):
        raise TypeError(f"{target} is not a rule")
    return rule


RULES: tuple[type[Rule], ...] = (
    _load("h101_rank_never_joined:RankNeverJoined"),
    _load("h102_extra_collective:ExtraCollective"),
    _load("h103_left_early:LeftEarly"),
    _load("h104_group_order_cycle:GroupOrderCycle"),
    _load("h105_op_mismatch:OpMismatch"),
    _load("h106_shape_mismatch:ShapeMismatch"),
    _load("h107_dtype_mismatch:DtypeMismatch"),
    _load("h108_split_mismatch:SplitMismatchRule"),
    _load("h109_p2p_cycle:P2pCycle"),
    _load("h110_p2p_unmatched:P2pUnmatched"),
    _load("h111_input_stalled:InputStalled"),
    _load("h112_input_worker_stuck:InputWorkerStuck"),
    _load("h113_process_stopped:ProcessStopped"),
    _load("h114_gil_held:GilHeld"),
    _load("h115_lock_deadlock:LockDeadlock"),
    _load("h116_storage_stalled:StorageStalled"),
    _load("h117_setup_slow:SetupSlow"),
    _load("h118_checkpoint_slow:CheckpointSlow"),
    _load("h119_compile_divergence:CompileDivergence"),
    _load("h120_exception_hanging:ExceptionHanging"),
    _load("h121_rendezvous_failed:RendezvousFailed"),
    _load("h122_transfer_stalled:TransferStalled"),
    _load("h123_device_stalled:DeviceStalled"),
    _load("h124_collective_not_issued:CollectiveNotIssued"),
    _load("h125_timeout_too_short:TimeoutTooShort"),
    _load("h126_device_not_bound:DeviceNotBound"),
    _load("h127_skipped_collective:SkippedCollective"),
    _load("s301_slow_rank:SlowRank"),
    _load("s308_imbalance:Imbalance"),
    _load("s310_communication_bound:CommunicationBound"),
    _load("p501_input_bound:InputBound"),
    _load("p502_launch_bound:LaunchBound"),
    _load("p503_exposed_communication:ExposedCommunication"),
    _load("p504_late_rank:LateRank"),
    _load("p505_short_kernels:ShortKernels"),
    _load("p506_host_sync:HostSync"),
    _load("p507_pageable_copies:PageableCopies"),
    _load("p508_recompilation:Recompilation"),
    _load("p509_regression:Regression"),
    _load("c201_process_killed:ProcessKilled"),
    _load("c202_host_out_of_memory:HostOutOfMemory"),
    _load("c203_native_crash:NativeCrash"),
    _load("c204_python_exception:PythonExceptionRule"),
    _load("c205_same_exception_everywhere:SameExceptionEverywhere"),
    _load("c206_device_out_of_memory:DeviceOutOfMemory"),
    _load("c207_preempted:Preempted"),
    _load("c208_hardware_error:HardwareError"),
    _load("c209_peer_lost:PeerLost"),
    _load("c210_config_error:ConfigErrorRule"),
    _load("c211_collective_timeout:CollectiveTimeout"),
    _load("c212_device_fault:DeviceFault"),
    _load("c213_reducer_error:ReducerError"),
    _load("n417_versions_differ:VersionsDiffer"),
    _load("n418_version_known_bad:VersionKnownBad"),
    _load("n422_p2p_blocked:PeerToPeerBlocked"),
    _load("n427_transport_fallback:TransportFallback"),
    _load("n428_interface_wrong:InterfaceWrong"),
    _load("v501_weights_diverged:WeightsDiverged"),
    _load("v502_not_finite:NotFiniteRule"),
    _load("v503_updates_skipped:UpdatesSkipped"),
)
