"""What is read of an event of a Kineto trace: its fields, its arguments, and its category."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import msgspec

from whystuck.evidence.decoding import json_decoder
from whystuck.evidence.traces.events import SPARSE_NAMES, Category, Detail

TEXT = ":text"


CATEGORIES: Mapping[str, Category] = MappingProxyType(
    {
        "cpu_op": Category.CPU_OP,
        "operator": Category.CPU_OP,
        "user_annotation": Category.USER_ANNOTATION,
        "python_function": Category.PYTHON,
        "pythonfunction": Category.PYTHON,
        "python": Category.PYTHON,
        "runtime": Category.RUNTIME,
        "cuda_runtime": Category.RUNTIME,
        "hip_runtime": Category.RUNTIME,
        "mtia_runtime": Category.RUNTIME,
        "glow_runtime": Category.RUNTIME,
        "xpu_runtime": Category.RUNTIME,
        "privateuse1_runtime": Category.RUNTIME,
        "cuda_driver": Category.DRIVER,
        "hip_driver": Category.DRIVER,
        "xpu_driver": Category.DRIVER,
        "privateuse1_driver": Category.DRIVER,
        "kernel": Category.KERNEL,
        "mtia_ccp_events": Category.KERNEL,
        "hpu_op": Category.KERNEL,
        "collective_comm": Category.KERNEL,
        "gpu_memcpy": Category.MEMCPY,
        "memcpy": Category.MEMCPY,
        "gpu_memset": Category.MEMSET,
        "memset": Category.MEMSET,
        "gpu_user_annotation": Category.GPU_ANNOTATION,
        "cuda_sync": Category.SYNC,
        "overhead": Category.OVERHEAD,
        "trace": Category.SPAN,
        "cuda_profiler_range": Category.COUNTER,
        "gpu_range": Category.COUNTER,
        "cpu_instant_event": Category.MEMORY,
    }
)

# What else stands there: flows, spans, the names of old versions, and nothing.
_OTHER_CATEGORIES = (
    *("", "ac2g", "async_cpu_to_gpu", "async_gpu", "fwdbwd", "forward_backward"),
    *("Trace", "Kernel", "Memcpy", "Memset", "Operator", "Runtime"),
)
# A name that is expected is decoded to one and the same text, whose hash is known.
_KnownCategory: Any = Literal[(*CATEGORIES, *_OTHER_CATEGORIES)]

# What says that events of a group of arguments are there, by their category.
TRIGGERS: Mapping[Category, Detail] = MappingProxyType(
    {
        Category.SYNC: Detail.SYNC,
        Category.MEMORY: Detail.MEMORY,
        Category.PYTHON: Detail.PYTHON,
        Category.CPU_OP: Detail.AUTOGRAD | Detail.SHAPES,
        Category.USER_ANNOTATION: Detail.AUTOGRAD | Detail.SHAPES,
        Category.OTHER: Detail.AUTOGRAD | Detail.SHAPES,
        Category.KERNEL: Detail.KERNELS,
        Category.RUNTIME: Detail.KERNELS,
    }
)

_HOST_OPS = (Category.CPU_OP, Category.USER_ANNOTATION, Category.OTHER)
_DEVICE = (
    Category.KERNEL,
    Category.MEMCPY,
    Category.MEMSET,
    Category.GPU_ANNOTATION,
    Category.SYNC,
    Category.OTHER,
)
# Which events can have the arguments of a group. Kineto writes them nowhere else.
HOLDERS: Mapping[Detail, tuple[Category, ...]] = MappingProxyType(
    {
        Detail.NONE: _DEVICE,
        Detail.COMM: (*_HOST_OPS, *_DEVICE[:-1]),
        Detail.SYNC: (Category.SYNC,),
        Detail.MEMORY: (Category.MEMORY,),
        Detail.AUTOGRAD: _HOST_OPS,
        Detail.PYTHON: (Category.PYTHON,),
        Detail.SHAPES: _HOST_OPS,
        # ROCm tells the grid on the launch.
        Detail.KERNELS: (Category.KERNEL, Category.RUNTIME, Category.DRIVER),
    }
)

# The columns of each group, by their names in `SPARSE_NAMES`.
GROUPS: Mapping[Detail, tuple[str, ...]] = MappingProxyType(
    {
        Detail.NONE: ("bytes", "bandwidth"),
        Detail.COMM: (
            "collective:text",
            "group:text",
            "group_desc:text",
            "group_ranks:text",
            "group_size",
            "dtype:text",
            "in_elements",
            "out_elements",
            "in_split:text",
            "out_split:text",
            "sequence",
            "comms_id:text",
            "src_rank",
            "dst_rank",
        ),
        Detail.SYNC: ("wait_stream", "wait_event_correlation", "wait_event"),
        Detail.MEMORY: (
            "memory_bytes",
            "memory_allocated_bytes",
            "memory_reserved_bytes",
            "memory_device_type",
            "memory_device",
        ),
        Detail.AUTOGRAD: ("autograd_sequence", "forward_thread"),
        Detail.PYTHON: ("python_id", "python_parent", "python_module"),
        Detail.SHAPES: (
            "concrete_inputs:text",
            "input_types:text",
            "input_strides:text",
            "input_dims:text",
        ),
        Detail.KERNELS: ("registers", "blocks_per_sm", "grid:text", "block:text", "occupancy"),
    }
)
# An event with one of these is of a collective; only then are the others looked for.
COMM_MARKERS = ("collective:text", "group:text")

Number = int | float | str | None
NAME = str | int | float | None
NO_TEXT = msgspec.Raw(b"")


class Event(msgspec.Struct, gc=False):
    """An event as it is decoded; the fields of `make_decoder` add ``ts`` and ``args``."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1


class ExpectedEvent(msgspec.Struct, gc=False):
    """An `Event` of a category that is expected."""

    ph: str = ""
    cat: _KnownCategory = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1


def attribute_of(column: str) -> str:
    """Return the attribute of the arguments that holds a column."""
    return column.removesuffix(TEXT)


class Form(NamedTuple):
    """How events are decoded, beside their arguments.

    ``with_time_text`` keeps ``ts`` as text, where floats would round it. ``with_any_category`` is
    slower, and takes names of categories that are not expected.
    """

    with_time_text: bool = False
    with_any_category: bool = False


@cache
def make_decoder(detail: Detail, form: Form) -> msgspec.json.Decoder[list[Any]]:
    """Make what decodes a list of events.

    Args:
        detail: The arguments to decode.
        form: How the rest is decoded.

    Returns:
        The decoder; events have the fields of `Event`, and ``ts``, ``dur`` and ``args``.
    """
    return json_decoder(list[make_event_type(detail, form)])  # type: ignore[arg-type, misc]


@cache
def make_event_type(detail: Detail, form: Form) -> type[Any]:
    """Make the type of an event; see `make_decoder`."""
    time: tuple[str, Any, Any] = ("ts", int | float | None, None)
    if form.with_time_text:
        time = ("ts", msgspec.Raw, NO_TEXT)
    arguments: Any = make_arguments(detail)
    return msgspec.defstruct(
        "TraceEvent",
        [time, ("dur", int | float | None, None), ("args", arguments | None, None)],
        bases=(Event if form.with_any_category else ExpectedEvent,),
        gc=False,
    )


@cache
def make_arguments(detail: Detail) -> type[Any]:
    """Make the type of the arguments of an event, each without a value by default."""
    # The order is near that of Kineto: a decoder looks for a key behind the one before it first.
    fields: list[tuple[str, Any, Any]] = [
        ("external", Number, msgspec.field(default=-1, name="External id")),
    ]
    for group in (Detail.SHAPES, Detail.AUTOGRAD, Detail.PYTHON):
        fields += _fields_of(group) if detail & group else []
    fields += [("device", Number, None), ("stream", Number, None), ("correlation", Number, -1)]
    fields += _fields_of(Detail.NONE)
    comm = _fields_of(Detail.COMM)
    fields += comm if detail & Detail.COMM else comm[: len(COMM_MARKERS)]
    for group in (Detail.KERNELS, Detail.SYNC, Detail.MEMORY):
        fields += _fields_of(group) if detail & group else []
    if detail & Detail.NAMES:
        fields += [("name", NAME, None), ("labels", NAME, None)]
    if detail & Detail.OLD:
        fields.append(("external_old", Number, msgspec.field(default=None, name="external id")))
        fields.append(
            ("correlation_old", Number, msgspec.field(default=None, name="Correlation ID"))
        )
    return msgspec.defstruct("TraceArguments", fields, gc=False)


def _fields_of(group: Detail) -> list[tuple[str, Any, Any]]:
    return [_make_field(column) for column in GROUPS[group]]


def _make_field(column: str) -> tuple[str, Any, Any]:
    key = SPARSE_NAMES[column]
    if column.endswith(TEXT):
        return attribute_of(column), msgspec.Raw, msgspec.field(default=NO_TEXT, name=key)
    return attribute_of(column), Number, msgspec.field(default=None, name=key)


class EventWithText(msgspec.Struct, gc=False):
    """An event of which only the arguments count, all of them, as text."""

    args: msgspec.Raw = NO_TEXT


TEXT_DECODER = json_decoder(list[EventWithText])
