"""The built-in rules: a new rule is one file here, and one line in the tuple."""

from __future__ import annotations

from whystuck.diagnose.rule import Rule
from whystuck.diagnose.rules.c201_process_killed import ProcessKilled
from whystuck.diagnose.rules.c203_native_crash import NativeCrash
from whystuck.diagnose.rules.c204_python_exception import PythonExceptionRule
from whystuck.diagnose.rules.c205_same_exception_everywhere import SameExceptionEverywhere
from whystuck.diagnose.rules.c207_preempted import Preempted
from whystuck.diagnose.rules.c209_peer_lost import PeerLost
from whystuck.diagnose.rules.c211_collective_timeout import CollectiveTimeout
from whystuck.diagnose.rules.h101_rank_never_joined import RankNeverJoined
from whystuck.diagnose.rules.h102_extra_collective import ExtraCollective
from whystuck.diagnose.rules.h103_left_early import LeftEarly
from whystuck.diagnose.rules.h104_group_order_cycle import GroupOrderCycle
from whystuck.diagnose.rules.h105_op_mismatch import OpMismatch
from whystuck.diagnose.rules.h106_shape_mismatch import ShapeMismatch
from whystuck.diagnose.rules.h107_dtype_mismatch import DtypeMismatch
from whystuck.diagnose.rules.h111_input_stalled import InputStalled
from whystuck.diagnose.rules.h112_input_worker_stuck import InputWorkerStuck
from whystuck.diagnose.rules.h113_process_stopped import ProcessStopped
from whystuck.diagnose.rules.h114_gil_held import GilHeld
from whystuck.diagnose.rules.h115_lock_deadlock import LockDeadlock
from whystuck.diagnose.rules.h117_setup_slow import SetupSlow
from whystuck.diagnose.rules.h118_checkpoint_slow import CheckpointSlow
from whystuck.diagnose.rules.h120_exception_hanging import ExceptionHanging
from whystuck.diagnose.rules.h127_skipped_collective import SkippedCollective

RULES: tuple[type[Rule], ...] = (
    RankNeverJoined,
    ExtraCollective,
    LeftEarly,
    GroupOrderCycle,
    OpMismatch,
    ShapeMismatch,
    DtypeMismatch,
    InputStalled,
    InputWorkerStuck,
    ProcessStopped,
    GilHeld,
    LockDeadlock,
    SetupSlow,
    CheckpointSlow,
    ExceptionHanging,
    SkippedCollective,
    ProcessKilled,
    NativeCrash,
    PythonExceptionRule,
    SameExceptionEverywhere,
    Preempted,
    PeerLost,
    CollectiveTimeout,
)
