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
    return code.co_filename.endswith("marks/forward.py")
def off():
    forward.stop()
    forward.clear()
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
    for _ in range(255):
        forward.step_ended()
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

OPERATIONS = {
    "narrowing": ("wide", "forward.step_ended"),
    "widening": ("narrow_to_widen", "forward.step_ended"),
    "stopping": ("wide", "forward.stop"),
    "stopping a narrow one": ("narrow", "forward.stop"),
    "starting": ("off", "forward.start"),
    "flapping": ("narrow", "flap"),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_call_that_meets_a_change_at_any_line_is_made_once(tmp_path: Path, operation: str) -> None:
    begin, change = OPERATIONS[operation]
    run_rank(
        tmp_path,
        SETUP
        + f"""
orders = 0
for one in (fresh, compiled, known):
    for order, errors in interleave({change}, lambda: call(one), is_ours, {begin}):
        orders += 1
        assert not errors, (order, errors)
assert orders > 100, orders
"""
        + END_STATE,
    )


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
    (wide, forward.stop, forward.clear),
):
    for order, errors in interleave(first, second, is_ours, begin):
        assert not errors, (order, errors)
        off()
"""
        + END_STATE,
    )
