"""Times in which the host waits for data or a device, launches, compiles or communicates."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from whystuck.evidence.traces.events import Category, is_one_of
from whystuck.tracing.host.trees import HostTree, Rows
from whystuck.tracing.view import TraceView, once

# What a loop over batches is called: by torch, by tf.data, and by people who annotate it.
_DATA_ANNOTATION = re.compile(
    r"enumerate\(\w*(?:DataLoader|DataPipe)\)#|(?:DataLoader|DataPipe)\.__next__"
    r"|IteratorGetNext|Iterator::(?:Root|Model|Prefetch|GetNext)"
    r"|(?i:data[ _-]?load|load[ _-]?(?:data|batch)|batch[ _-]?load|data[ _-]?wait|wait[ _-]?data)"
    r"|(?i:data[ _-]?fetch|fetch[ _-]?data)"
    r"|(?i:(?:next|get|fetch|read)[ _-]?(?:train[ _-]?)?(?:batch|data)\b)"
)
_DATA_OP = re.compile(r"enumerate\(\w*(?:DataLoader|DataPipe)\)#.*")
_NO_DATA = re.compile(r"(?i:compile)")  # `async_compile.wait_data`
_DATA_FRAME = re.compile(
    r"(?:torch/utils/data/dataloader\.py"
    r"|torchdata/(?=[^\s(]{0,200}loader)[^\s(]{0,200}\.py)\(\d+\): __next__$"
)
# A call that returns when a device has done its work.
_SYNC = re.compile(
    r"(?:cuda|hip|cu|musa|mtia|xpu)(?:Device|Stream|Event|Ctx|Context|Thread)Synchronize(?:_\w+)?"
    r"|aclrtSynchronize\w*"
    r"|(?:cuda|hip)Memcpy(?:2D|3D|ToSymbol|FromSymbol|WithStream|DtoH|HtoD|DtoD)?(?:_ptd?s)?"
    r"|cuMemcpy(?:DtoH|HtoD|DtoD)(?:_v2)?(?:_ptd?s)?"
)
# Ops that wait where the calls of the runtime were not recorded, and the copies that they make.
_READING_OP = re.compile(r"aten::(?:item|_local_scalar_dense|nonzero|is_nonzero|equal)")
_TO_HOST = re.compile(
    r"^(?:hip)?Memcpy ?(?:DtoH|Device ?-> ?(?:Pageable|Pinned|Host))", re.IGNORECASE
)
# Time in which Dynamo, AOTAutograd, Inductor or Triton make code. Running that code is not meant:
# `Torch-Compiled Region` and `## Call CompiledFxGraph` are no compilation.
_COMPILE = re.compile(
    r".* \(dynamo_timed\)|dynamo|entire_(?:frame|backward)_compile|backend_compile|inductor_compile"
    r"|compile_attempt_\d+|fx_codegen_and_compile|(?:\w+\.)*_?compile_inner"
    r"|CompiledFxGraph .* compile"
    r"|compile_fx(?:\.<locals>)?\.\w+_compiler\w*|create_aot_dispatcher_function|async_compile\.wait"
    r"|(?i:triton[ _:.-]*(?:jit[ _-]*)?compile\w*|triton[ _-]autotune\w*)|CachingAutotuner\.\w+"
)
_COMPILE_FRAME = re.compile(
    r"torch/_dynamo/convert_frame\.py\(\d+\): (?:_compile|compile_inner)"
    r"|torch/_inductor/compile_fx\.py\(\d+\): compile_fx\w*"
    r"|triton/compiler/compiler\.py\(\d+\): compile"
)
_MODULE_LOAD = re.compile(r"(?:cu|hip)(?:Module|Library)Load\w*|(?:cuda|hip)LibraryLoad\w*")
_COMM = re.compile(
    r"(?:(?:c10d(?:_functional)?|_c10d_functional)::|(?:gloo|nccl|mpi|ucc|xccl|hccl):).*"
)


def match_names(
    names: Sequence[str], pattern: re.Pattern[str], *, is_whole: bool = True
) -> NDArray[np.bool_]:
    """Tell for each name whether a pattern matches it, as a whole or from its beginning on."""
    test = pattern.fullmatch if is_whole else pattern.search
    return np.fromiter((test(name) is not None for name in names), np.bool_, count=len(names))


def outermost_rows(view: TraceView, rows: Rows) -> Rows:
    """Drop rows that lie in another of them on the same thread; what is left is by thread, time."""
    if not len(rows):
        return rows
    tree = HostTree.of_rows(view.events, rows)
    outer: Rows = tree.row[tree.nesting.depth == 0]
    return outer


def _is_before_cut(view: TraceView, rows: Rows) -> Rows:
    if view.cut_ns is None:
        return rows
    kept: Rows = rows[view.events.start_ns[rows] < view.cut_ns]
    return kept


def _find(
    view: TraceView,
    categories: Sequence[int],
    pattern: re.Pattern[str],
    *,
    is_whole: bool = True,
    but: re.Pattern[str] | None = None,
) -> Rows:
    """Find events in the window by their names; only names that such events have are looked at."""
    events, names = view.events, view.trace.names
    rows = np.flatnonzero(is_one_of(events.category, categories))
    if not len(rows):
        return rows
    used = np.unique(events.name[rows])
    texts = [names[one] for one in used.tolist()]
    is_named = match_names(texts, pattern, is_whole=is_whole)
    if but is not None:
        is_named &= ~match_names(texts, but, is_whole=False)
    if not is_named.any():
        return rows[:0]
    found: Rows = rows[np.isin(events.name[rows], used[is_named])]
    return _is_before_cut(view, found)


@once
def find_data_waits(view: TraceView) -> Rows:
    """Find the time in which the host got its next batch.

    Annotations are taken where there are some, else the frames of the loader.

    Args:
        view: The trace.

    Returns:
        Rows in the window; none lies in another.
    """
    kind = (Category.USER_ANNOTATION,)
    rows = _find(view, kind, _DATA_ANNOTATION, is_whole=False, but=_NO_DATA)
    if not len(rows):  # the first releases of Kineto wrote annotations as ops
        rows = _find(view, (Category.CPU_OP,), _DATA_OP)
    if not len(rows):
        rows = _find(view, (Category.PYTHON,), _DATA_FRAME, is_whole=False)
    return outermost_rows(view, rows)


@once
def find_syncs(view: TraceView) -> Rows:
    """Find calls that return when a device has done its work.

    Args:
        view: The trace.

    Returns:
        Rows in the window; none lies in another. Where no such call was recorded, ops that copied
        a value to the host and waited for it.
    """
    rows = _find(view, (Category.RUNTIME, Category.DRIVER), _SYNC)
    return outermost_rows(view, rows if len(rows) else _find_reading_ops(view))


def _find_reading_ops(view: TraceView) -> Rows:
    """Find ops that give values of tensors to Python, and copied them from a device."""
    if not len(view.all_device_rows):
        return view.all_device_rows
    events, tree = view.events, view.ops
    copies: Rows = view.device_rows[events.category[view.device_rows] == Category.MEMCPY]
    if not len(copies):
        return copies
    rows = tree.places_of(_find(view, (Category.CPU_OP,), _READING_OP))
    is_reading = np.zeros(len(tree), dtype=np.bool_)
    is_reading[rows] = True
    inner = tree.nesting.innermost(is_reading)
    is_to_host = match_names(view.trace.names, _TO_HOST, is_whole=False)[events.name]
    at = view.launching_ops[is_to_host[view.device_rows]]
    places = np.unique(inner[at[at >= 0]]) if len(tree) else at
    return tree.rows_at(places[places >= 0])


@once
def find_calls(view: TraceView) -> Rows:
    """Find all calls of the runtime and the driver; rows in the window."""
    events = view.events
    is_call = (events.category == Category.RUNTIME) | (events.category == Category.DRIVER)
    return _is_before_cut(view, np.flatnonzero(is_call))


@once
def find_compilations(view: TraceView) -> Rows:
    """Find the time in which code was made or loaded.

    Args:
        view: The trace.

    Returns:
        Rows in the window: ops and annotations of compilers, else their frames, and calls that load
        code onto a device. None lies in another.
    """
    rows = _find(view, (Category.CPU_OP, Category.USER_ANNOTATION), _COMPILE)
    if not len(rows):
        rows = _find(view, (Category.PYTHON,), _COMPILE_FRAME, is_whole=False)
    loads = _find(view, (Category.RUNTIME, Category.DRIVER), _MODULE_LOAD)
    return outermost_rows(view, np.concatenate((rows, loads)))


def find_host_collectives(view: TraceView) -> Rows:
    """Find ops and annotations of the host that communicate; rows in the window."""
    host = (Category.CPU_OP, Category.USER_ANNOTATION)
    marked = view.trace.get("collective:text").event
    marked = _is_before_cut(view, marked[is_one_of(view.events.category[marked], host)])
    named = _find(view, host, _COMM)
    return np.union1d(named, marked) if len(marked) else named
