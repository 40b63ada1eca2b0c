"""What logs say went wrong: one module makes the cases of one class, and the story ranks them."""

from __future__ import annotations

from whystuck.diagnose.logs.cases.compiling.compiler_children import make_compiler_children
from whystuck.diagnose.logs.cases.compiling.recompiles import make_recompiles
from whystuck.diagnose.logs.cases.config import make_config_errors
from whystuck.diagnose.logs.cases.costs.breakdowns import make_breakdowns
from whystuck.diagnose.logs.cases.costs.pageable import make_pageable
from whystuck.diagnose.logs.cases.costs.profiles import make_profiles
from whystuck.diagnose.logs.cases.costs.run_paces import make_run_paces
from whystuck.diagnose.logs.cases.devices.abnormal import make_abnormal
from whystuck.diagnose.logs.cases.devices.absent import make_absent
from whystuck.diagnose.logs.cases.devices.device_faults import make_device_fault
from whystuck.diagnose.logs.cases.devices.device_memory import make_device_memory
from whystuck.diagnose.logs.cases.devices.downed import make_downed
from whystuck.diagnose.logs.cases.devices.fabric_managers import make_fabric_managers
from whystuck.diagnose.logs.cases.devices.flapping import make_flapping
from whystuck.diagnose.logs.cases.devices.hardware import make_hardware
from whystuck.diagnose.logs.cases.devices.miscomputing import make_miscomputing
from whystuck.diagnose.logs.cases.devices.pairs import make_pairs
from whystuck.diagnose.logs.cases.devices.pcie import make_pcie
from whystuck.diagnose.logs.cases.devices.port_errors import make_port_errors
from whystuck.diagnose.logs.cases.devices.ports import make_ports
from whystuck.diagnose.logs.cases.devices.power_limits import make_power_limits
from whystuck.diagnose.logs.cases.devices.shared_devices import make_unbound
from whystuck.diagnose.logs.cases.devices.told_errors import make_told_errors
from whystuck.diagnose.logs.cases.devices.wrong_sums import make_wrong_sums
from whystuck.diagnose.logs.cases.late_phases import make_late_phases
from whystuck.diagnose.logs.cases.network.blocked import make_blocked
from whystuck.diagnose.logs.cases.network.clocks_off import make_clocks_off
from whystuck.diagnose.logs.cases.network.interfaces import make_unaddressed
from whystuck.diagnose.logs.cases.network.launchers import make_unstarted
from whystuck.diagnose.logs.cases.network.packets import make_packets
from whystuck.diagnose.logs.cases.network.paths import make_paths
from whystuck.diagnose.logs.cases.network.rendezvous import make_rendezvous
from whystuck.diagnose.logs.cases.network.transfers import make_transfers
from whystuck.diagnose.logs.cases.network.transports import make_transports
from whystuck.diagnose.logs.cases.ops.calls import make_calls
from whystuck.diagnose.logs.cases.ops.counted_calls import make_counted_calls
from whystuck.diagnose.logs.cases.ops.crossed import make_crossed
from whystuck.diagnose.logs.cases.ops.crossed_orders import make_crossed_orders
from whystuck.diagnose.logs.cases.ops.held_back import make_held_back
from whystuck.diagnose.logs.cases.ops.horovod import make_horovod_mismatch
from whystuck.diagnose.logs.cases.ops.left_alone import make_left_alone
from whystuck.diagnose.logs.cases.ops.left_behind import make_left_behind
from whystuck.diagnose.logs.cases.ops.left_out import make_left_out
from whystuck.diagnose.logs.cases.ops.mismatch import make_mismatches
from whystuck.diagnose.logs.cases.ops.missing import make_missing
from whystuck.diagnose.logs.cases.ops.parted import make_parted
from whystuck.diagnose.logs.cases.ops.recorder_told import make_recorder_told
from whystuck.diagnose.logs.cases.ops.told_history import make_told_history
from whystuck.diagnose.logs.cases.ops.uneven import make_left, make_pauses, make_uneven
from whystuck.diagnose.logs.cases.processes.aborts import make_aborts
from whystuck.diagnose.logs.cases.processes.debuggers import make_debuggers
from whystuck.diagnose.logs.cases.processes.elsewhere import make_elsewhere
from whystuck.diagnose.logs.cases.processes.ended_early import make_ended_early
from whystuck.diagnose.logs.cases.processes.ends import make_crashes, make_killed
from whystuck.diagnose.logs.cases.processes.exceptions import make_exceptions
from whystuck.diagnose.logs.cases.processes.gil_held import make_gil_held
from whystuck.diagnose.logs.cases.processes.gone import make_gone
from whystuck.diagnose.logs.cases.processes.lock_files import make_lock_files
from whystuck.diagnose.logs.cases.processes.not_ended import make_not_ended
from whystuck.diagnose.logs.cases.processes.process_states import make_process_states
from whystuck.diagnose.logs.cases.processes.stopped import make_stopped
from whystuck.diagnose.logs.cases.processes.stuck_workers import make_stuck_workers
from whystuck.diagnose.logs.cases.processes.swallowed import make_swallowed
from whystuck.diagnose.logs.cases.processes.thread_errors import make_thread_errors
from whystuck.diagnose.logs.cases.resources.memlock import make_memlock
from whystuck.diagnose.logs.cases.resources.memory import make_host_memory
from whystuck.diagnose.logs.cases.resources.memory_daemons import make_daemons
from whystuck.diagnose.logs.cases.resources.process_limits import make_process_limits
from whystuck.diagnose.logs.cases.resources.shared_memory import make_shared_memory
from whystuck.diagnose.logs.cases.resources.stale_files import make_stale_files
from whystuck.diagnose.logs.cases.resources.storage import make_silent_storage
from whystuck.diagnose.logs.cases.saves.growing_saves import make_growing_saves
from whystuck.diagnose.logs.cases.saves.lagging_shards import make_lagging_shards
from whystuck.diagnose.logs.cases.saves.save_steps import make_save_steps
from whystuck.diagnose.logs.cases.saves.saves import make_slow_saves
from whystuck.diagnose.logs.cases.saves.serial_saves import make_serial_saves
from whystuck.diagnose.logs.cases.saves.slow_storage import make_slow_storage
from whystuck.diagnose.logs.cases.short_limits import make_short_limits
from whystuck.diagnose.logs.cases.slow.built_late import make_built_late
from whystuck.diagnose.logs.cases.slow.busy import make_busy
from whystuck.diagnose.logs.cases.slow.comm_phases import make_comm_phases
from whystuck.diagnose.logs.cases.slow.extremes import make_extremes
from whystuck.diagnose.logs.cases.slow.few_cpus import make_few_cpus
from whystuck.diagnose.logs.cases.slow.kernel_shares import make_kernel_shares
from whystuck.diagnose.logs.cases.slow.link_speeds import make_link_speeds
from whystuck.diagnose.logs.cases.slow.memory_pressure import make_memory_pressure
from whystuck.diagnose.logs.cases.slow.quotas import make_quotas
from whystuck.diagnose.logs.cases.slow.slow_hosts import make_slow_hosts
from whystuck.diagnose.logs.cases.slow.slow_tables import make_starved, make_throttled
from whystuck.diagnose.logs.cases.slow.starved_phases import make_starved_phases
from whystuck.diagnose.logs.cases.slow.stragglers import make_stragglers
from whystuck.diagnose.logs.cases.slow.uneven_work import make_uneven_work
from whystuck.diagnose.logs.cases.slow.whole_job import make_whole_job
from whystuck.diagnose.logs.cases.stacks.departed import make_departed
from whystuck.diagnose.logs.cases.stacks.lone_calls import make_lone_calls
from whystuck.diagnose.logs.cases.stacks.parted_sites import make_parted_sites
from whystuck.diagnose.logs.cases.stacks.past import make_past
from whystuck.diagnose.logs.cases.stacks.stacked_past import make_recorded_past, make_stacked_past
from whystuck.diagnose.logs.cases.timeouts import make_lost, make_timeouts
from whystuck.diagnose.logs.cases.transfers.gathered_shapes import make_gathered_shapes
from whystuck.diagnose.logs.cases.transfers.left_out_sends import make_left_out_sends
from whystuck.diagnose.logs.cases.transfers.micro_batches import make_micro_batches
from whystuck.diagnose.logs.cases.transfers.past_receives import make_past_receives
from whystuck.diagnose.logs.cases.transfers.told_splits import make_told_splits
from whystuck.diagnose.logs.cases.transfers.told_transfers import make_told_transfers
from whystuck.diagnose.logs.cases.transfers.transfer_rings import make_transfer_rings
from whystuck.diagnose.logs.cases.transfers.wrong_splits import make_wrong_splits
from whystuck.diagnose.logs.cases.values.checksums import make_checksums
from whystuck.diagnose.logs.cases.values.reducer import make_reducer_errors
from whystuck.diagnose.logs.cases.values.same_changes import make_same_changes
from whystuck.diagnose.logs.cases.values.values import make_not_finite, make_skipped
from whystuck.diagnose.logs.story import Maker

MAKERS: tuple[Maker, ...] = (
    make_stopped,
    make_host_memory,
    make_daemons,
    make_device_memory,
    make_hardware,
    make_fabric_managers,
    make_downed,
    make_flapping,
    make_unaddressed,
    make_device_fault,
    make_miscomputing,
    make_absent,
    make_memlock,
    make_process_limits,
    make_shared_memory,
    make_config_errors,
    make_unstarted,
    make_transports,
    make_unbound,
    make_reducer_errors,
    make_parted_sites,
    make_stacked_past,
    make_recorded_past,
    make_mismatches,
    make_horovod_mismatch,
    make_gathered_shapes,
    make_wrong_splits,
    make_uneven,
    make_crossed,
    make_crossed_orders,
    make_missing,
    make_debuggers,
    make_recorder_told,
    make_checksums,
    make_same_changes,
    make_not_finite,
    make_skipped,
    make_exceptions,
    make_killed,
    make_aborts,
    make_crashes,
    make_clocks_off,
    make_rendezvous,
    make_slow_saves,
    make_growing_saves,
    make_lagging_shards,
    make_serial_saves,
    make_save_steps,
    make_busy,
    make_built_late,
    make_recompiles,
    make_compiler_children,
    make_stale_files,
    make_silent_storage,
    make_process_states,
    make_elsewhere,
    make_left,
    make_left_alone,
    make_ended_early,
    make_transfer_rings,
    make_abnormal,
    make_swallowed,
    make_left_out,
    make_left_behind,
    make_held_back,
    make_told_history,
    make_told_splits,
    make_told_transfers,
    make_micro_batches,
    make_past_receives,
    make_left_out_sends,
    make_parted,
    make_past,
    make_lone_calls,
    make_departed,
    make_counted_calls,
    make_not_ended,
    make_thread_errors,
    make_gil_held,
    make_stuck_workers,
    make_gone,
    make_lock_files,
    make_link_speeds,
    make_blocked,
    make_packets,
    make_paths,
    make_transfers,
    make_ports,
    make_port_errors,
    make_pairs,
    make_calls,
    make_late_phases,
    make_short_limits,
    make_timeouts,
    make_lost,
    make_pauses,
    make_stragglers,
    make_slow_hosts,
    make_uneven_work,
    make_extremes,
    make_starved,
    make_starved_phases,
    make_slow_storage,
    make_memory_pressure,
    make_throttled,
    make_power_limits,
    make_pcie,
    make_told_errors,
    make_wrong_sums,
    make_quotas,
    make_few_cpus,
    make_whole_job,
    make_kernel_shares,
    make_profiles,
    make_breakdowns,
    make_pageable,
    make_run_paces,
    make_comm_phases,
)
