"""Shares of kernels of the time of a device: tables of torch.profiler, and of `nsys stats`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables import cells
from whystuck.parse.logs.blocks.tables.tabled import MAX_STRANGERS, TabledSeen
from whystuck.parse.logs.lines.lines import LogLine

KERNEL_MARKS = (
    *(b"Self CUDA", b"Self XPU", b"Self HPU", b"Self NPU", b"Self MTIA", b"Self PrivateUse1"),
    b"Total Time (ns)",
)
_WIDTH = 600
_SPLIT = re.compile(r"\s{2,64}")
_SELF = re.compile(r"Self (?!CPU)[A-Z]\w{1,15} %")
_NSYS_SHARE, _NSYS_NAME = "Time (%)", "Name"
_SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,4})?)\s?%?")
# torch leaves annotations such as `nccl:all_reduce` among kernels, whose time they have again.
_NOTE = re.compile(r"(?:^|\s)(?:nccl:|c10d::|record_param_comms|ProfilerStep|aten::|## )")
_MOST_ROWS = 200
_LEAST_SHARE = 0.5
# Beside its name, a kernel has its share and a time at least.
_LEAST_COLUMNS = 3


class KernelReader:
    """Follows one table at a time."""

    def __init__(self) -> None:
        self._begin = self._strangers = self._rows = 0
        self._columns: list[str] = []
        self._share = 0  # the place of the column, from the end

    @property
    def is_open(self) -> bool:
        """Whether the next lines may be rows."""
        return bool(self._columns)

    def read(self, line: LogLine, row: int, *, is_mark: bool) -> Iterator[TabledSeen]:
        """Take a line; yield the kernel of its row."""
        told = _SPLIT.split(line.text[:_WIDTH].strip())
        if is_mark and self._read_head(told):
            self._begin, self._strangers, self._rows = row, 0, 0
        elif self._columns and not cells.is_drawn(line.text):
            if (found := self._read_cells(told)) is None:
                self._strangers += 1
                if self._strangers > MAX_STRANGERS:
                    self._columns = []
                return
            self._strangers, self._rows = 0, self._rows + 1
            name, share = found
            if share >= _LEAST_SHARE and self._rows <= _MOST_ROWS and not _NOTE.search(name):
                groups = {"table": str(self._begin), "kernel": name, "share": f"{share:g}"}
                yield TabledSeen("table.kernel", row, line, groups)

    def _read_head(self, told: list[str]) -> bool:
        """Note the columns of a head; return whether it is one."""
        shares = [at for at, name in enumerate(told) if _SELF.fullmatch(name)]
        if _NSYS_SHARE in told and told[-1] == _NSYS_NAME:
            shares = [told.index(_NSYS_SHARE)]
        if not shares or len(told) < _LEAST_COLUMNS:
            return False
        self._columns, self._share = told, shares[0] - len(told)
        return True

    def _read_cells(self, told: list[str]) -> tuple[str, float] | None:
        """Return the name and the share of a kernel, in percent; None of another line."""
        is_nsys = self._columns[-1] == _NSYS_NAME
        if len(told) < len(self._columns):
            return None
        # A name may have blanks of its own.
        over = len(told) - len(self._columns)
        place = self._share + len(told) - (over if is_nsys else 0)
        match = _SHARE.fullmatch(told[place])
        name = " ".join(told[len(self._columns) - 1 :]) if is_nsys else " ".join(told[: over + 1])
        return (name, float(match[1])) if match else None
