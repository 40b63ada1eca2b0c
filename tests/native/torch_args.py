"""What torch gives to its hooks, laid out as torch does it, for a torch that has no hooks.

A structure of ctypes happens to keep the pointer to its value where an object of pybind11 does, and
the number of its fields, which is six, where that has the flag that says so.
"""

from __future__ import annotations

import ctypes
from typing import Any

_WORD = 8
ALL_REDUCE, BROADCAST, BARRIER, ALL_TO_ALL_BASE = 3, 2, 8, 19


class _Name:
    def __init__(self, value: int) -> None:
        self.value = value


class Before(ctypes.Structure):
    """The argument of a hook before an op, as Python and as C see it."""

    _fields_ = (
        ("c_name", ctypes.c_uint8),
        ("c_async", ctypes.c_uint8),
        ("c_inputs", ctypes.c_void_p * 3),
        ("c_outputs", ctypes.c_void_p * 3),
        ("c_root", ctypes.c_int64),
        ("c_op_id", ctypes.c_int64),
    )

    def __init__(
        self,
        op_id: int,
        inputs: list[Any],
        *,
        op: int = ALL_REDUCE,
        outputs: list[Any] | None = None,
        root: int = -1,
        is_async: bool = False,
    ) -> None:
        super().__init__(op, int(is_async), c_root=root, c_op_id=op_id)
        self.name, self.async_op, self.root, self.op_id = _Name(op), is_async, root, op_id
        self.input_tensors, self.output_tensors = inputs, outputs or []
        self.kept = [self._hold(inputs), self._hold(self.output_tensors)]
        self.c_inputs, self.c_outputs = map(_span, self.kept)

    def _hold(self, tensors: list[Any]) -> Any:
        return (ctypes.c_void_p * len(tensors))(*[tensor._cdata for tensor in tensors])


class After(ctypes.Structure):
    """The same after an op."""

    _fields_ = (
        ("c_name", ctypes.c_uint8),
        ("c_async", ctypes.c_uint8),
        ("c_work", ctypes.c_void_p),
        ("c_op_id", ctypes.c_int64),
        ("c_fifth", ctypes.c_int64),
        ("c_sixth", ctypes.c_int64),
    )

    def __init__(self, op_id: int, work: Any, op: int = ALL_REDUCE) -> None:
        super().__init__(op, 0, None if work is None else id(work), op_id)
        self.name, self.async_op, self.op_id, self.work = _Name(op), False, op_id, work


def _span(held: Any) -> Any:
    begin = ctypes.addressof(held)
    end = begin + len(held) * _WORD
    return (ctypes.c_void_p * 3)(begin, end, end)
