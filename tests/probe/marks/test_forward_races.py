"""Modules are called in one thread while another one moves what sees the calls, line by line."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from tests.probe.marks import interleaving
from tests.probe.marks.test_marks import run_rank

SETUP = (
    inspect.getsource(interleaving).replace("from __future__ import annotations\n", "")
    + """
forward = sys.modules["_whystuck_probe.progress"].COUNTS.marks._forward
phases = forward._phases
Module = torch.nn.Module
class Known(Module):
    def forward(self, value):
        return value
class Fresh(Module):
    def forward(self, value):
        return value
value = torch.ones(1)
known, fresh, compiled = Known(), Fresh(), Fresh()
compiled._compiled_call_impl = compiled._call_impl
def is_ours(code):
    if code.co_name == "_wrapped_call_impl":
        return True
    return "marks/forward.py" in code.co_filename
def off():
    forward.stop()
    forward.look()
    assert Module.__dict__["_compiled_call_impl"] is None
    assert not any("_compiled_call_impl" in vars(one) for one in (Known, Fresh))
def wide():
    off()
    forward._classes.clear()
    forward.start()
    phases.thread = threading.get_ident()
    known(value)
    forward.step_ended()
    assert Module.__dict__["_compiled_call_impl"] is forward
def narrow():
    wide()
    forward.step_ended()
    assert Module.__dict__["_compiled_call_impl"] is None
    assert vars(Known)["_compiled_call_impl"] is forward
def narrow_to_widen():
    narrow()
    forward._steps_left = -255
def flap():
    forward.stop()
    forward.start()
def call(*modules):
    phases.thread = threading.get_ident()
    for one in modules:
        assert one(value) is value
"""
)

END_STATE = """
off()
forward.start()
phases.thread = threading.get_ident()
before = phases.ring.newest
known(value)
assert phases.ring.newest == before + 1, "calls are marked"
assert not forward._promised
"""

# One rank does them all: each begins by switching marks off.
CHANGES = """
for name, begin, change in (
    ("narrowing", wide, forward.step_ended),
    ("widening", narrow_to_widen, forward.step_ended),
    ("stopping", wide, forward.stop),
    ("stopping a narrow one", narrow, forward.stop),
    ("starting", off, forward.start),
    ("flapping", narrow, flap),
):
    orders = 0
    for one in (fresh, known):
        for order, errors in interleave(change, lambda: call(one), is_ours, begin):
            orders += 1
            assert not errors, (name, order, errors)
    assert orders > 100, (name, orders)
"""


def test_call_that_meets_a_change_at_any_line_is_made_once(tmp_path: Path) -> None:
    run_rank(
        tmp_path,
        SETUP + CHANGES + "".join(f"    {line}\n" for line in END_STATE.splitlines()),
    )


@pytest.mark.slow
def test_changes_that_meet_leave_nothing_behind(tmp_path: Path) -> None:
    run_rank(
        tmp_path,
        SETUP
        + """
for begin, first, second in (
    (wide, forward.step_ended, forward.stop),
    (narrow_to_widen, forward.step_ended, forward.stop),
    (wide, forward.step_ended, forward.step_ended),
    (narrow, forward.stop, forward.start),
    (wide, forward.stop, forward.look),
):
    for order, errors in interleave(first, second, is_ours, begin):
        assert not errors, (order, errors)
        off()
"""
        + END_STATE,
    )


AT_LINES = """
def is_ours(code):
    names = "marks/forward.py", "marks/phases.py"
    known = any(name in code.co_filename for name in names)
    return known or code.co_name == "_wrapped_call_impl"
def at_each_line(begin, act, function):
    line, is_within = 0, True
    while is_within:
        begin()
        left = line
        def trace(frame, event, _):
            nonlocal left
            if not is_ours(frame.f_code):
                return None
            if event == "line":
                left -= 1
                if left == -1:
                    sys.settrace(None)
                    act()
            return trace
        sys.settrace(trace)
        try:
            function()
        except TimeoutError:
            pass
        finally:
            sys.settrace(None)
        is_within = left < 0
        yield line
        line += 1
"""


def test_handler_that_raises_at_any_line_of_a_call_leaves_marks_at_work(tmp_path: Path) -> None:
    run_rank(
        tmp_path,
        SETUP
        + AT_LINES
        + """
def end_the_time():
    raise TimeoutError
lines = 0
for begin in (wide, narrow):
    for line in at_each_line(begin, end_the_time, lambda: call(known)):
        lines += 1
        for _ in range(2):
            forward.look()
        assert not forward._promised, line
        for _ in range(4):
            sys.modules["_whystuck_probe.progress"].tell_step()
        before = phases.ring.newest
        call(known)
        assert phases.ring.newest == before + 1, line
assert lines > 50, lines
"""
        + END_STATE,
    )


def test_handler_that_calls_modules_at_any_line_of_a_call_disturbs_none(tmp_path: Path) -> None:
    run_rank(
        tmp_path,
        SETUP
        + AT_LINES
        + """
def flap_and_call():
    forward.stop()
    call(fresh, known)
    forward.start()
    call(fresh, known)
for begin in (wide, narrow, off):
    for act in (lambda: call(fresh, known), forward.stop, flap_and_call):
        for one in (fresh, known, compiled):
            for line in at_each_line(begin, act, lambda: call(one)):
                forward.step_ended()
                assert not forward._promised
"""
        + END_STATE,
    )
