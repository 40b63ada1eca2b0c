"""Stacks out of traces: the frames are those that torch wrote for real ranks that stood still."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whystuck.parse.errors import ParseError
from whystuck.parse.stacks.profiler_stacks import parse_profiler_stacks

WORKER = [
    "threading.py(1002): _bootstrap",
    "threading.py(1045): _bootstrap_inner",
    "threading.py(982): run",
    "job.py(22): prefetch_worker",
    "threading.py(327): wait",
]
MAIN = [
    "job.py(34): <module>",
    "job.py(31): stuck_in_collective",
    "torch/distributed/c10d_logger.py(83): wrapper",
    "torch/distributed/distributed_c10d.py(3252): all_reduce",
]


def _trace(*names: str, files: dict[str, str] | None = None, **changes: Any) -> bytes:
    """One chain of parents over the whole window, as Kineto writes it."""
    events = [
        {
            "ph": "X",
            "cat": "python_function",
            "name": name,
            "pid": 0,
            "tid": 0,
            "ts": 4454867470145.209 + 2 * number,
            "dur": 197965.201 - 2 * number,
            "args": {
                "Python parent id": number or None,
                "Python id": number + 1,
                "Ev Idx": number,
            },
            **changes,
        }
        for number, name in enumerate(names)
    ]
    head = {"pythonFiles": files} if files else {}
    return json.dumps({**head, "traceEvents": events, "traceName": "x"}).encode()


def _functions(data: bytes) -> list[tuple[bool, list[str]]]:
    sample = parse_profiler_stacks(data, rank=3, artifact="a")
    assert (sample.rank, sample.source, sample.artifact) == (3, "profiler", "a")
    return [(one.is_main, [frame.function for frame in one.frames]) for one in sample.threads]


def test_chain_of_all_threads_is_cut_where_one_begins() -> None:
    main = ["all_reduce", "wrapper", "stuck_in_collective", "<module>"]
    worker = ["wait", "prefetch_worker", "run", "_bootstrap_inner", "_bootstrap"]
    assert _functions(_trace(*WORKER, *MAIN)) == [(False, worker), (True, main)]
    assert _functions(_trace(*MAIN, *WORKER)) == [(True, main), (False, worker)]
    assert _functions(_trace(*WORKER, *WORKER)) == [(False, worker), (False, worker)]


def test_module_that_is_imported_or_run_belongs_to_who_runs_it() -> None:
    names = [
        "<frozen runpy>(198): _run_module_as_main",
        "<frozen runpy>(88): _run_code",
        "train.py(3): <module>",
        "<frozen importlib._bootstrap>(241): _call_with_frames_removed",
        "data.py(9): <module>",
    ]
    ((is_main, functions),) = _functions(_trace(*names))
    assert is_main
    assert functions[0] == "<module>"
    assert len(functions) == 5


def test_files_get_the_paths_that_are_told() -> None:
    data = _trace(*MAIN, files={"job.py": "/home/me/job.py"})
    main = parse_profiler_stacks(data, rank=0).main
    assert main is not None
    assert [(frame.file, frame.line) for frame in main.frames] == [
        ("torch/distributed/distributed_c10d.py", 3252),
        ("torch/distributed/c10d_logger.py", 83),
        ("/home/me/job.py", 31),
        ("/home/me/job.py", 34),
    ]


def test_frames_that_come_and_go_are_left_out() -> None:
    trace = json.loads(_trace(*MAIN))
    trace["traceEvents"] += [
        {
            "ph": "X",
            "cat": "python_function",
            "name": f"job.py({line}): short",
            "pid": 77,
            "tid": 78,
            "ts": 4454867470145.209 + 9000 * line,
            "dur": 12.5,
            "args": {"Python parent id": None, "Python id": 100 + line},
        }
        for line in range(1, 20)
    ]
    trace["traceEvents"].append({"ph": "X", "cat": "cpu_op", "name": "aten::add", "args": {}})
    sample = parse_profiler_stacks(json.dumps(trace).encode(), rank=0)
    assert sample.pid == 77
    assert len(sample.threads) == 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a trace"),
        (b"[]", "not a trace"),
        (b'{"traceEvents": 3}', "not a trace"),
        (b'{"traceEvents": []}', "without stacks"),
        (b'{"traceEvents": [1, {"cat": "python_function"}]}', "without stacks"),
        (_trace("no frame"), "lasted"),
    ],
)
def test_what_is_no_such_trace_is_told(data: bytes, reason: str) -> None:
    with pytest.raises(ParseError, match=reason):
        parse_profiler_stacks(data, rank=0)


def test_frames_that_are_parents_of_each_other_end() -> None:
    trace = json.loads(_trace(*MAIN))
    trace["traceEvents"][0]["args"]["Python parent id"] = 4
    trace["traceEvents"].append(
        {**trace["traceEvents"][1], "args": {"Python id": 50, "Python parent id": None}}
    )
    assert parse_profiler_stacks(json.dumps(trace).encode(), rank=0).threads


_JSON = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["traceEvents", "cat", "name", "args", "ts", "dur", "Python id"]), inner
        )
    ),
    max_leaves=20,
)


@given(_JSON)
def test_any_json_gives_stacks_or_a_reason(value: object) -> None:
    try:
        sample = parse_profiler_stacks(json.dumps(value).encode(), rank=0)
    except ParseError:
        return
    assert sample.threads
