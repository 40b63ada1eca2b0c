"""Simulates ranks whose hosts run ahead of their devices, and writes the dumps that they leave.

Each rank has a program: the ops it issues, step by step. Its host issues them some ops ahead of
its device. The device starts an op when what is queued before it is over, an op ends when all of
its members have started it with equal forms. What does not match, or never starts, stays pending,
with all that is queued behind it. A watchdog looks at the ops every 100 ms.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.parse.dumps.builders import as_pickle

START_NS = 1_790_000_000_000_000_000
MS = 1_000_000
SECOND = 1000 * MS
POLL_NS = 100 * MS
HUNG_NS = 600 * SECOND
TRANSFER_NS = MS
NEVER = -1
# No step has more ops.
_LONG_STEP = 100

Groups = Mapping[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Op:
    """One op of a program: ``name`` as it is recorded, and the work of the device before it.

    After an op that ``syncs``, the host waits until all its ops are over.
    """

    group: str
    name: str
    size: int
    line: int
    step: int = 0
    dtype: str = "Float"
    work_ns: int = 5 * MS
    host_ns: int = MS // 5
    syncs: bool = False

    @property
    def ends(self) -> tuple[int, int] | None:
        """The positions of sender and receiver in the group; None of a collective."""
        kind, _, rest = self.name.partition(" ")
        if kind not in {"send", "recv"}:
            return None
        left, right = rest.split("->" if kind == "send" else "<-")
        return (int(left), int(right)) if kind == "send" else (int(right), int(left))


Program = list[Op]


@dataclass
class Queues:
    """A job: its groups and programs, and how its hosts and devices work.

    ``ahead`` is the number of ops that a host may be ahead. With ``streams``, each group has a
    queue of its own on the device, and a step begins when all ops of the last one are over.
    ``host_stops`` and ``device_stops`` give the op of a rank that is never issued or started;
    ``device_hangs`` the one that its device alone does not end, ``cut`` one that nobody ends.
    """

    groups: Groups
    programs: dict[int, Program]
    rng: random.Random
    ahead: int = 20
    streams: bool = False
    timing: bool = False
    frames: bool = True
    active_only: bool = False
    ring: int = 2000
    clocks_ns: dict[int, int] = field(default_factory=dict)
    host_stops: dict[int, int] = field(default_factory=dict)
    device_stops: dict[int, int] = field(default_factory=dict)
    device_hangs: dict[int, int] = field(default_factory=dict)
    cut: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        ranks = sorted(self.programs)
        self.created: dict[int, list[int]] = {rank: [] for rank in ranks}
        self.started: dict[int, list[int]] = {}
        self.ended: dict[int, list[int]] = {}
        self._meetings: dict[tuple[object, ...], dict[int, int]] = {}
        self._counts: dict[tuple[object, ...], int] = {}
        self._keys: dict[tuple[int, int], tuple[object, ...]] = {}
        self._open = dict.fromkeys(ranks, 0)

    def run(self) -> Queues:
        """Let the job go on until it ends or hangs."""
        for rank, program in self.programs.items():
            self.started[rank] = [NEVER] * len(program)
            self.ended[rank] = [NEVER] * len(program)
        while sum(self._issue(rank) + self._start(rank) for rank in self.programs):
            pass
        return self

    @property
    def is_over(self) -> bool:
        """Whether all ops of all programs ended."""
        return all(min(ended) != NEVER for ended in self.ended.values())

    @property
    def is_issued(self) -> bool:
        """Whether all hosts came to the end of their programs."""
        return all(len(self.created[rank]) == len(self.programs[rank]) for rank in self.programs)

    @property
    def last_ns(self) -> int:
        """When the last thing happened."""
        times = (*self.created.values(), *self.started.values(), *self.ended.values())
        return max(max(one, default=0) for one in times)

    def _issue(self, rank: int) -> int:
        program, created, ended = self.programs[rank], self.created[rank], self.ended[rank]
        before = len(created)
        while len(created) < len(program) and len(created) != self.host_stops.get(rank):
            index = len(created)
            free_ns = created[-1] if created else START_NS
            if index >= self.ahead:
                if ended[index - self.ahead] == NEVER:
                    break
                free_ns = max(free_ns, ended[index - self.ahead])
            if index and program[index - 1].syncs:
                if NEVER in ended[:index]:
                    break
                free_ns = max(free_ns, *ended[:index])
            op = program[index]
            created.append(free_ns + op.host_ns)
            ends = op.ends
            count = (rank, op.group, op.name if ends else "")
            self._counts[count] = self._counts.get(count, 0) + 1
            self._keys[rank, index] = (op.group, ends, self._counts[count])
        return len(created) - before

    def _start(self, rank: int) -> int:
        started, ended = self.started[rank], self.ended[rank]
        while self._open[rank] < len(ended) and ended[self._open[rank]] != NEVER:
            self._open[rank] += 1
        number = 0
        for index in range(self._open[rank], len(self.created[rank])):
            if started[index] != NEVER:
                continue
            ready_ns = self._find_ready(rank, index)
            if ready_ns == NEVER or self.device_stops.get(rank) == index:
                if self.streams:
                    continue
                break
            started[index] = max(ready_ns, self.created[rank][index])
            number += 1
            self._meet(rank, index)
        return number

    def _find_ready(self, rank: int, index: int) -> int:
        """Tell when what an op has to wait for on its device was over."""
        program, ended = self.programs[rank], self.ended[rank]
        op, stop = program[index], self.device_stops.get(rank)
        if stop is not None and index >= stop:
            return NEVER
        earlier = range(max(0, self._open[rank] - 1), index)
        if not self.streams:
            times = [ended[other] for other in earlier]
            return NEVER if NEVER in times else max([START_NS, *times]) + op.work_ns
        # One stream of kernels feeds the queues of all groups; a step begins after the last one.
        first = index
        while first and program[first - 1].step == op.step:
            first -= 1
        group = [ended[other] for other in earlier if program[other].group == op.group]
        if self._open[rank] < first or NEVER in group:
            return NEVER
        over_ns = max([START_NS, *ended[max(0, first - _LONG_STEP) : first]])
        worked_ns = over_ns + sum(other.work_ns for other in program[first : index + 1])
        return max([worked_ns, *group])

    def _meet(self, rank: int, index: int) -> None:
        key = self._keys[rank, index]
        there = self._meetings.setdefault(key, {})
        there[rank] = index
        group, ends, _ = key
        members = self.groups[str(group)][1]
        if len(there) < (len(members) if ends is None else 2):
            return
        forms = {
            (op.name if ends is None else "", op.size, op.dtype)
            for one, at in there.items()
            for op in [self.programs[one][at]]
        }
        if len(forms) > 1 or any(self.cut == at for at in there.items()):
            return
        over_ns = max(self.started[one][at] for one, at in there.items()) + TRANSFER_NS
        for one, at in there.items():
            if self.device_hangs.get(one) != at:
                self.ended[one][at] = over_ns

    def write(self, folder: Path, when_ns: Mapping[int, int] | None = None) -> Path:
        """Write a dump of each rank; long after the job hung, unless times are given."""
        for rank in self.programs:
            now_ns = (when_ns or {}).get(rank, self.last_ns + HUNG_NS)
            path = folder / f"nccl_trace_rank_{rank}"
            path.write_bytes(as_pickle(self.dump(rank, now_ns)))
            written_ns = now_ns + self.clocks_ns.get(rank, 0) + 20 * MS
            os.utime(path, ns=(written_ns, written_ns))
        return folder

    def dump(self, rank: int, now_ns: int) -> dict[str, Any]:
        """Return the content of the file of a rank at a moment."""
        names = [name for name, (_, members) in self.groups.items() if rank in members]
        phase_ns = random.Random(rank).randrange(POLL_NS)
        entries = []
        status = {name: [0, 0] for name in names}
        counts: dict[tuple[str, bool], int] = {}
        for index, created_ns in enumerate(self.created[rank]):
            op = self.programs[rank][index]
            if created_ns > now_ns:
                break
            key = op.group, op.ends is not None
            counts[key] = counts.get(key, 0) + 1
            entry = self._record(rank, index, now_ns, phase_ns)
            entry["collective_seq_id"] = counts.get((op.group, False), 0)
            entry["p2p_seq_id"] = counts.get((op.group, True), 0)
            entry["pg_id"], entry["record_id"] = names.index(op.group), index
            status[op.group][0] = counts[key]
            if entry["state"] == "completed":
                status[op.group][1] = counts[key]
            entries.append(entry)
        if self.active_only:
            entries = [entry for entry in entries if entry["state"] != "completed"]
        return {
            "version": "2.10",
            "pg_config": {
                name: {"name": name, "desc": desc, "ranks": str(list(members))}
                for name, (desc, members) in self.groups.items()
                if name in names
            },
            "comm_lib_version": "2.27.5",
            "pg_status": {
                str(number): {
                    "last_enqueued_collective": status[name][0] or -1,
                    "last_started_collective": -1,
                    "last_completed_collective": status[name][1] or -1,
                }
                for number, name in enumerate(names)
            },
            "entries": entries[-self.ring :],
        }

    def _record(self, rank: int, index: int, now_ns: int, phase_ns: int) -> dict[str, Any]:
        op, clock_ns = self.programs[rank][index], self.clocks_ns.get(rank, 0)
        started_ns, ended_ns = self.started[rank][index], self.ended[rank][index]
        is_done = NEVER < ended_ns <= now_ns
        is_started = self.timing and NEVER < started_ns <= now_ns
        state = "completed" if is_done else "started" if is_started else "scheduled"
        frames = [
            {"name": "step", "filename": "/job/model.py", "line": op.line},
            {"name": "<module>", "filename": "/job/train.py", "line": 99},
        ]

        def notice(time_ns: int) -> int:
            return clock_ns + min(now_ns, time_ns + (phase_ns - time_ns) % POLL_NS)

        return {
            "frames": frames if self.frames else [],
            "process_group": (op.group, self.groups[op.group][0]),
            "op_id": index + 1,
            "profiling_name": f"nccl:{op.name}",
            "time_created_ns": self.created[rank][index] + clock_ns,
            "input_sizes": [[op.size]],
            "input_dtypes": [op.dtype],
            "output_sizes": [[op.size]],
            "output_dtypes": [op.dtype],
            "state": state,
            "time_discovered_started_ns": notice(started_ns) if is_started else None,
            "time_discovered_completed_ns": notice(ended_ns) if is_done else None,
            "retired": is_done,
            "timeout_ms": 600_000,
            "is_p2p": op.ends is not None,
        }


def unroll(
    make_step: Mapping[int, Sequence[Op]], steps: int, rng: random.Random
) -> dict[int, Program]:
    """Repeat the ops of a step on each rank, with work that varies a little."""
    return {
        rank: [
            replace(
                op,
                step=step,
                work_ns=round(op.work_ns * rng.uniform(0.9, 1.2)),
                host_ns=round(op.host_ns * rng.uniform(0.7, 1.5)),
            )
            for step in range(steps)
            for op in ops
        ]
        for rank, ops in make_step.items()
    }
