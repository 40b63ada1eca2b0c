"""Writes the flight-recorder dumps of a made-up training job of any size, one rank at a time.

Ranks are laid out as TP x DP x PP with TP fastest. In each step a rank does tensor-parallel gathers
and reductions for two micro-batches forwards and two backwards, then reduces and gathers over its
data-parallel group, then reduces over the world. One rank stops before its first op of a step; the
others go on until they wait, directly or not, for it. Files have the layout torch gives them, with
frames and strings shared and all lists written out.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.parse.dumps.torch_pickle import as_torch_pickle

FRAMES = [
    ("all_gather_into_tensor", "torch/distributed/distributed_c10d.py", 3978),
    ("wrapper", "torch/distributed/c10d_logger.py", 83),
    ("gather_along_first_dim", "model/tensor_parallel/mappings.py", 121),
    ("forward", "model/tensor_parallel/layers.py", 871),
    ("_call_impl", "torch/nn/modules/module.py", 1762),
    ("forward", "model/transformer_layer.py", 420),
    ("train_step", "model/training.py", 1240),
    ("main", "pretrain.py", 322),
]
HIDDEN = 4096
TENSOR_OPS = 32
# Names and ranks have one width, so that the dump of one rank can be made from that of another.
NAME_WIDTH = 5
START_NS = 1_790_000_000_000_000_000
STEP_NS = 500_000_000
OP_NS = 1_000_000


class Op(NamedTuple):
    """One op of a step."""

    group: str
    name: str
    input_sizes: list[list[int]]
    output_sizes: list[list[int]]
    dtype: str


@dataclass(frozen=True)
class Layout:
    """How the ranks of a job are divided, and where it stops."""

    world: int
    tensor: int = 8
    pipeline: int = 4
    steps: int = 57
    stopped: int = 5

    @property
    def data(self) -> int:
        """The number of replicas."""
        return self.world // (self.tensor * self.pipeline)

    def place(self, rank: int) -> tuple[int, int, int]:
        """Return the place of a rank: tensor, data, pipeline."""
        return (
            rank % self.tensor,
            rank // self.tensor % self.data,
            rank // (self.tensor * self.data),
        )

    def rank(self, tensor: int, data: int, pipeline: int) -> int:
        """Return the rank at a place."""
        return (pipeline * self.data + data) * self.tensor + tensor

    def groups(self, rank: int) -> dict[str, tuple[str, list[int]]]:
        """Return the groups of a rank by name, each with its description and members."""
        tensor, data, pipeline = self.place(rank)
        first_data = 1 + self.pipeline * self.data
        return {
            "0": ("default_pg", list(range(self.world))),
            f"{1 + pipeline * self.data + data:0{NAME_WIDTH}}": (
                "TENSOR_MODEL_PARALLEL_GROUP",
                [self.rank(other, data, pipeline) for other in range(self.tensor)],
            ),
            f"{first_data + pipeline * self.tensor + tensor:0{NAME_WIDTH}}": (
                "DATA_PARALLEL_GROUP",
                [self.rank(tensor, other, pipeline) for other in range(self.data)],
            ),
        }

    def pending(self, rank: int) -> int:
        """Return the op of the last step in which a rank waits; it has not even begun when -1."""
        _tensor, data, pipeline = self.place(rank)
        _stopped_tensor, stopped_data, stopped_pipeline = self.place(self.stopped)
        if rank == self.stopped:
            return -1
        if pipeline != stopped_pipeline:
            return TENSOR_OPS + 2
        return 0 if data == stopped_data else TENSOR_OPS


def make_ops(layout: Layout, rank: int) -> list[Op]:
    """Make the ops of one step of a rank."""
    _world, tensor, data = layout.groups(rank)
    rows = 1024
    ops = []
    for _layer in range(TENSOR_OPS // 2):
        whole, part = [[rows * layout.tensor, HIDDEN]], [[rows, HIDDEN]]
        ops.append(Op(tensor, "_all_gather_base", part, whole, "BFloat16"))
        ops.append(Op(tensor, "_reduce_scatter_base", whole, part, "BFloat16"))
    share = (1 << 20) // layout.data
    ops.append(Op(data, "_reduce_scatter_base", [[1 << 20]], [[share]], "Float"))
    ops.append(Op(data, "_all_gather_base", [[share]], [[1 << 20]], "BFloat16"))
    ops.append(Op("0", "all_reduce", [[1]], [[1]], "Float"))
    return ops


def make_dump(layout: Layout, rank: int) -> dict[str, Any]:
    """Make the dump of a rank, as torch 2.13 lays it out for NCCL."""
    groups = layout.groups(rank)
    pg_id = {name: number for number, name in enumerate(groups)}
    entries = list(_make_entries(layout, rank, groups, pg_id))
    counted: dict[str, int] = dict.fromkeys(groups, 0)
    over: dict[str, int] = dict.fromkeys(groups, 0)
    for entry in entries:
        name = entry["process_group"][0]
        counted[name] = entry["collective_seq_id"]
        over[name] += entry["retired"]
    return {
        "version": "2.10",
        "pg_config": {
            name: {"name": name, "desc": desc, "ranks": _write_ranks(ranks)}
            for name, (desc, ranks) in groups.items()
        },
        "comm_lib_version": "2.27.5",
        "pg_status": {
            str(pg_id[name]): {
                "last_enqueued_collective": counted[name],
                "last_started_collective": -1,
                "last_completed_collective": over[name],
            }
            for name in groups
        },
        "entries": entries,
    }


def _write_ranks(ranks: list[int]) -> str:
    return "[" + ", ".join(f"{rank:{NAME_WIDTH}}" for rank in ranks) + "]"


def _make_entries(
    layout: Layout, rank: int, groups: dict[str, tuple[str, list[int]]], pg_id: dict[str, int]
) -> Iterator[dict[str, Any]]:
    frames = [dict(zip(("name", "filename", "line"), frame, strict=True)) for frame in FRAMES]
    ops = make_ops(layout, rank)
    pending = layout.pending(rank)
    seq = dict.fromkeys(groups, 0)
    record = 0
    for step in range(layout.steps):
        last = step == layout.steps - 1
        for number, op in enumerate(ops):
            if last and number > pending:
                return
            seq[op.group] += 1
            yield _make_entry(
                op,
                record,
                seq[op.group],
                pg_id[op.group],
                groups[op.group][0],
                START_NS + step * STEP_NS + number * OP_NS,
                done=not (last and number == pending),
                frames=frames[number % 2 :],
            )
            record += 1


def _make_entry(  # noqa: PLR0913 - one argument for each thing that differs
    op: Op,
    record: int,
    seq: int,
    pg_id: int,
    desc: str,
    created_ns: int,
    *,
    done: bool,
    frames: list[dict[str, Any]],
) -> dict[str, Any]:
    return {
        "frames": frames,
        "record_id": record,
        "pg_id": pg_id,
        "process_group": (op.group, desc),
        "thread_name": "pt_main_thread",
        "thread_id": "23456244340032",
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": f"nccl:{op.name}",
        "time_created_ns": created_ns,
        "input_sizes": op.input_sizes,
        "input_dtypes": [op.dtype],
        "output_sizes": op.output_sizes,
        "output_dtypes": [op.dtype],
        "state": "completed" if done else "started",
        "time_discovered_started_ns": created_ns + 50_000,
        "time_discovered_completed_ns": created_ns + 900_000 if done else None,
        "retired": done,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }


def write_dumps(folder: Path, layout: Layout, *, plain: bool = False) -> int:
    """Write the dumps of all ranks.

    Args:
        folder: Where to, made when missing.
        layout: The job.
        plain: Pickle with Python, faster; lists then are shared between entries.

    Returns:
        The number of entries.
    """
    folder.mkdir(parents=True, exist_ok=True)
    templates: dict[int, tuple[int, bytes, int]] = {}
    total = 0
    for rank in range(layout.world):
        kind = layout.pending(rank)
        if kind not in templates:
            dump = make_dump(layout, rank)
            data = pickle.dumps(dump, protocol=2) if plain else as_torch_pickle(dump)
            templates[kind] = rank, data, len(dump["entries"])
        model, data, count = templates[kind]
        (folder / f"nccl_trace_rank_{rank}").write_bytes(_rename(data, layout, model, rank))
        total += count
    return total


def _rename(data: bytes, layout: Layout, model: int, rank: int) -> bytes:
    """Make the dump of a rank from that of another one that stands at the same op."""
    if rank == model:
        return data
    groups = zip(layout.groups(model).items(), layout.groups(rank).items(), strict=True)
    for (old_name, (_old, old_ranks)), (new_name, (_new, new_ranks)) in groups:
        old, new = _write_ranks(old_ranks).encode(), _write_ranks(new_ranks).encode()
        if old != new:
            data = data.replace(old, new)
            data = data.replace(_text(old_name), _text(new_name))
    return data


def _text(name: str) -> bytes:
    return b"X" + struct.pack("<I", len(name)) + name.encode()
