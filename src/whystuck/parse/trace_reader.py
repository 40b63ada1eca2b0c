"""The bytes of a Kineto trace to columns."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np

from whystuck.evidence.finding import Gap
from whystuck.evidence.trace import (
    SPARSE_NAMES,
    Category,
    Sparse,
    Trace,
    TraceDevice,
    TraceEvents,
    TraceGroup,
)
from whystuck.parse.errors import ParseError

_CATEGORIES = {
    "cpu_op": Category.CPU_OP,
    "Operator": Category.CPU_OP,
    "user_annotation": Category.USER_ANNOTATION,
    "python_function": Category.PYTHON,
    "cuda_runtime": Category.RUNTIME,
    "Runtime": Category.RUNTIME,
    "hip_runtime": Category.RUNTIME,
    "mtia_runtime": Category.RUNTIME,
    "privateuse1_runtime": Category.RUNTIME,
    "xpu_runtime": Category.RUNTIME,
    "cuda_driver": Category.DRIVER,
    "privateuse1_driver": Category.DRIVER,
    "kernel": Category.KERNEL,
    "Kernel": Category.KERNEL,
    "mtia_ccp_events": Category.KERNEL,
    "gpu_memcpy": Category.MEMCPY,
    "Memcpy": Category.MEMCPY,
    "gpu_memset": Category.MEMSET,
    "Memset": Category.MEMSET,
    "gpu_user_annotation": Category.GPU_ANNOTATION,
    "cuda_sync": Category.SYNC,
    "overhead": Category.OVERHEAD,
    "Trace": Category.SPAN,
    "cuda_profiler_range": Category.COUNTER,
    "cpu_instant_event": Category.MEMORY,
}
_TEXT = ":text"


def read_trace(pieces: Iterable[bytes], artifact: str = "") -> Trace:
    """Read a Kineto trace.

    Args:
        pieces: The content of the file, in pieces of any size.
        artifact: The name that citations and gaps give to it.

    Returns:
        The trace. What cannot be read of it is told in its gaps.

    Raises:
        ParseError: It is no trace.
    """
    try:
        root = json.loads(b"".join(pieces))
    except ValueError as error:
        raise ParseError(f"it is no JSON ({error})") from error
    if not isinstance(root, dict) or not isinstance(root.get("traceEvents"), list):
        raise ParseError("it has no traceEvents")
    return _Builder(root, artifact).build()


class _Builder:
    def __init__(self, root: dict[str, Any], artifact: str) -> None:
        self.root, self.artifact = root, artifact
        self.names: dict[str, int] = {}
        self.texts: dict[str, int] = {}
        self.numbers: dict[str, int] = {}
        self.rows: list[tuple[int, ...]] = []
        self.sparse: dict[str, tuple[array[int], list[float]]] = {}
        self.thread_names: dict[tuple[int, int], str] = {}
        self.process_names: dict[int, str] = {}

    def build(self) -> Trace:
        base = self.root.get("baseTimeNanoseconds") or 0
        for event in self.root["traceEvents"]:
            self._add(event)
        columns = np.array(self.rows, dtype=np.int64).reshape(-1, 10)
        info = self.root.get("distributedInfo") or {}
        zero = 0
        if not base and len(columns):
            zero = int(columns[:, 0].min())
            columns[:, 0] -= zero
        properties = self.root.get("deviceProperties") or []
        return Trace(
            artifact=self.artifact,
            rank=info.get("rank", -1),
            world_size=info.get("world_size", 0),
            vendor="cuda" if properties else "cpu",
            base_ns=base + zero,
            names=tuple(self.names),
            texts=tuple(self.texts),
            events=_make_events(columns),
            sparse={
                name: Sparse(np.array(rows, dtype=np.int64), np.array(values))
                for name, (rows, values) in self.sparse.items()
            },
            thread_names=self.thread_names,
            process_names=self.process_names,
            groups=tuple(
                TraceGroup(
                    one["pg_name"],
                    one.get("pg_desc", ""),
                    one.get("backend_config", ""),
                    tuple(one.get("ranks", ())),
                )
                for one in info.get("pg_config", ())
            ),
            devices=tuple(
                TraceDevice(one["id"], one["name"], one.get("numSms", 0)) for one in properties
            ),
            gaps=() if "rank" in info else (Gap(None, self.artifact, "it tells no rank"),),
        )

    def _number(self, value: int | str | None) -> int:
        if isinstance(value, int):
            return value
        return self.numbers.setdefault(str(value), -2 - len(self.numbers))

    def _add(self, event: dict[str, Any]) -> None:
        args = event.get("args") or {}
        category = _CATEGORIES.get(event.get("cat", ""), Category.OTHER)
        if event.get("ph") == "M":
            pid, tid = self._number(event.get("pid")), self._number(event.get("tid"))
            if event["name"] == "thread_name":
                self.thread_names[pid, tid] = str(args.get("name"))
            elif event["name"] == "process_name":
                self.process_names[pid] = str(args.get("name"))
            return
        if event.get("name") == "[memory]":
            category = Category.MEMORY
        elif event.get("ph") != "X" or "dur" not in event:
            return
        is_device = Category.KERNEL <= category <= Category.SYNC
        stream = args.get("stream", -1) if is_device else -1
        row = len(self.rows)
        self.rows.append(
            (
                round(event["ts"] * 1000),
                round(event.get("dur", 0) * 1000),
                self.names.setdefault(event["name"], len(self.names)),
                category,
                self._number(event.get("pid")),
                self._number(event.get("tid")),
                args.get("device", -1) if is_device else -1,
                stream if isinstance(stream, int) else int(stream, 0),
                args.get("correlation", -1),
                args.get("External id", -1),
            )
        )
        for name, key in SPARSE_NAMES.items():
            if key in args:
                self._add_sparse(row, name, args[key])

    def _add_sparse(self, row: int, name: str, value: Any) -> None:  # noqa: ANN401 - JSON
        rows, values = self.sparse.setdefault(name, (array("q"), []))
        if name.endswith(_TEXT):
            text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
            value = self.texts.setdefault(text, len(self.texts))
        elif isinstance(value, (str, list)):
            return
        rows.append(row)
        values.append(value)


def _make_events(columns: Any) -> TraceEvents:  # noqa: ANN401 - a matrix
    return TraceEvents(
        start_ns=columns[:, 0].copy(),
        duration_ns=columns[:, 1].copy(),
        name=columns[:, 2].astype(np.int32),
        category=columns[:, 3].astype(np.uint8),
        pid=columns[:, 4].astype(np.int32),
        tid=columns[:, 5].astype(np.int32),
        device=columns[:, 6].astype(np.int16),
        stream=columns[:, 7].astype(np.int32),
        correlation=columns[:, 8].copy(),
        external=columns[:, 9].copy(),
    )
