"""Writes folders of flight-recorder dumps as NCCL and gloo leave them, and judges them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.diagnose.scenes import Job
from tests.parse.dumps.builders import Entry, as_pickle

from whystuck.diagnose.engine import diagnose
from whystuck.evidence.finding import Report
from whystuck.evidence.model import Evidence, Topology
from whystuck.evidence.ops.collectives import Frame
from whystuck.pipeline import read_evidence

NCCL, GLOO = "nccl", "gloo"
DONE, STARTED, SCHEDULED = "completed", "started", "scheduled"
START_NS = 1_790_000_000_000_000_000
OP_NS = 10_000_000


@dataclass
class Dumps:
    """The dumps of a small job; each method adds ops and returns the job.

    ``groups`` gives the description and the members of each group by name; group ``0`` holds
    all ranks. gloo records no point-to-point ops, no members and no state but "scheduled".
    """

    world: int = 4
    form: str = NCCL
    version: str = "2.10"
    prefix: str = "nccl_trace_rank_"
    groups: dict[str, tuple[str, Sequence[int]]] = field(default_factory=dict)
    entries: dict[int, list[Entry]] = field(default_factory=dict)
    clock_ns: dict[int, int] = field(default_factory=dict)
    ring: int = 2000

    def __post_init__(self) -> None:
        self.groups = {"0": ("default_pg", range(self.world)), **self.groups}

    def op(
        self,
        ranks: Iterable[int],
        op: str,
        site: Sequence[Frame] = (),
        *,
        group: str = "0",
        state: str = DONE,
        times: int = 1,
        **changes: Any,
    ) -> Dumps:
        """Record a collective on some ranks."""
        for rank in ranks:
            for _ in range(times):
                self._add(rank, op, site, group, state, is_p2p=False, changes=changes)
        return self

    def send(self, source: int, target: int, site: Sequence[Frame] = (), **more: Any) -> Dumps:
        """Record one end of a transfer; the ends are positions in the group."""
        return self._add_end(source, f"send {source}->{target}", source, site, **more)

    def recv(self, target: int, source: int, site: Sequence[Frame] = (), **more: Any) -> Dumps:
        """Record the other end."""
        return self._add_end(target, f"recv {target}<-{source}", target, site, **more)

    def move(self, source: int, target: int, site: Sequence[Frame] = (), **more: Any) -> Dumps:
        """Record both ends of a transfer that is done."""
        return self.send(source, target, site, **more).recv(target, source, site, **more)

    def _add_end(
        self, end: int, op: str, position: int, site: Sequence[Frame], **more: Any
    ) -> Dumps:
        group, state = more.pop("group", "0"), more.pop("state", DONE)
        rank = self.groups[group][1][position]
        self._add(rank, op, site, group, state, is_p2p=True, changes=more)
        return self

    def _add(
        self,
        rank: int,
        op: str,
        site: Sequence[Frame],
        group: str,
        state: str,
        *,
        is_p2p: bool,
        changes: dict[str, Any],
    ) -> None:
        if is_p2p and self.form == GLOO:
            return
        mine = self.entries.setdefault(rank, [])
        same = [entry for entry in mine if entry["process_group"][0] == group]
        # A batch counts as one point-to-point op, and its end as none.
        numbers = {entry["p2p_seq_id"] for entry in same if entry["is_p2p"]}
        p2p = max(numbers, default=0) + is_p2p
        collective = sum(not entry["is_p2p"] for entry in same) + (not is_p2p)
        now = self.clock_ns[rank] = self.clock_ns.get(rank, START_NS) + OP_NS
        entry: Entry = {
            "frames": [
                {"name": frame.function, "filename": frame.file, "line": frame.line}
                for frame in site
            ],
            "record_id": len(mine),
            "pg_id": list(self.groups).index(group),
            "process_group": (group, self.groups[group][0]),
            "collective_seq_id": collective,
            "p2p_seq_id": p2p,
            "op_id": len(same) + 1,
            "profiling_name": f"{self.form}:{op}",
            "time_created_ns": now,
            "input_sizes": [[4]],
            "input_dtypes": ["Float"],
            "output_sizes": [[4]],
            "output_dtypes": ["Float"],
            "state": state if self.form == NCCL else SCHEDULED,
            "time_discovered_started_ns": now + 1000 if state != SCHEDULED else None,
            "time_discovered_completed_ns": now + 2000 if state == DONE else None,
            "retired": state == DONE,
            "timeout_ms": 600_000,
            "is_p2p": is_p2p,
        }
        if self.form == GLOO:
            entry |= {"time_discovered_started_ns": None, "time_discovered_completed_ns": None}
        mine.append(entry | changes)

    def dump(self, rank: int) -> dict[str, Any]:
        """Return the content of the file of one rank."""
        entries = self.entries.get(rank, [])
        known = [name for name in self.groups if rank in self.groups[name][1]]
        config = {
            name: {
                "name": name,
                "desc": self.groups[name][0],
                "ranks": str(list(self.groups[name][1])),
            }
            for name in known
        }
        if self.form == GLOO:
            config = {"": {"name": "", "desc": "", "ranks": "[]"}}
        return {
            "version": self.version,
            "pg_config": config,
            "comm_lib_version": "2.27.5" if self.form == NCCL else "",
            "pg_status": {
                str(list(self.groups).index(name)): self._status(entries, name) for name in known
            },
            "entries": entries[-self.ring :],
        }

    def _status(self, entries: Sequence[Entry], name: str) -> dict[str, int]:
        mine = [
            entry for entry in entries if entry["process_group"][0] == name and not entry["is_p2p"]
        ]
        numbers = [entry["collective_seq_id"] for entry in mine]
        done = [entry["collective_seq_id"] for entry in mine if entry["retired"]]
        return {
            "last_enqueued_collective": max(numbers, default=-1),
            "last_started_collective": -1,
            "last_completed_collective": max(done, default=-1),
        }

    def write(self, folder: Path, leave_out: Iterable[int] = ()) -> Path:
        """Write one file a rank."""
        for rank in range(self.world):
            if rank not in set(leave_out):
                (folder / f"{self.prefix}{rank}").write_bytes(as_pickle(self.dump(rank)))
        return folder

    def evidence(
        self, folder: Path, seen: Job | None = None, leave_out: Iterable[int] = ()
    ) -> Evidence:
        """Write the dumps, read them back, and add what else was seen of the job."""
        evidence = read_evidence(self.write(folder, leave_out))
        known = evidence.topology
        evidence = replace(
            evidence,
            topology=Topology(self.world, known.node_by_rank, known.members_by_group),
        )
        if seen is None:
            return evidence
        return replace(
            evidence,
            incident=seen.incident,
            stacks=tuple(seen.stacks),
            processes=tuple(seen.processes),
            exceptions=tuple(seen.exceptions),
            exits=tuple(seen.exits),
            fatals=tuple(seen.fatals),
            sources=seen.sources,
        )

    def report(
        self, folder: Path, seen: Job | None = None, leave_out: Iterable[int] = ()
    ) -> Report:
        """Judge the dumps, and what else was seen."""
        return diagnose(self.evidence(folder, seen, leave_out))
