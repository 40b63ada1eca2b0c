"""Asks Huawei's ``npu-smi``, and reads what it prints.

``npu-smi info`` draws a table with two lines a chip; its columns differ by version and product::

    | NPU   Name       | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
    | Chip  Phy-ID     | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
    +==================+===============+====================================================+
    | 0     Ascend910  | OK            | 178.9       36                0    / 0             |
    | 0     0          | 0000:9D:00.0  | 0           0    / 0          3412 / 65536         |

Further commands (``-t usages``, ``-t common``) print ``name : value``, chip by chip.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

_TIMEOUT_S: Final = 10.0
_MAX_OUTPUT_BYTES: Final = 1 << 20
_PLACES: Final = ("/usr/local/bin", "/usr/local/sbin", "/usr/local/Ascend/driver/tools")
_MAX_LINES: Final = 20_000
_MAX_LINE_CHARS: Final = 1000
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_CELLS: Final = 3
_PROCESS_CELLS: Final = 4
_PAIR: Final = re.compile(r"(?<![0-9])(?P<used>[0-9]+)\s*/\s*(?P<total>[0-9]+)")
_KEY_VALUE: Final = re.compile(r"\s*(?P<key>[A-Za-z][^:]{0,80}?)\s*:\s*(?P<value>\S.{0,100}?)\s*")
_NOTHING: Final = frozenset({"", "-", "--", "NA", "N/A"})


@dataclass(frozen=True)
class NpuChip:
    """One chip: figures as ``npu-smi info`` has them; None is unknown."""

    npu: int
    chip: int
    device: int | None = None
    name: str = ""
    health: str = ""
    bus_id: str = ""
    power_w: float | None = None
    temperature_c: float | None = None
    aicore_percent: float | None = None
    memory_mb: tuple[int, int] | None = None
    """In use, and all there is: high-bandwidth memory where the chip has it."""


@dataclass(frozen=True)
class NpuProcess:
    """One process on a chip."""

    npu: int
    chip: int
    pid: int
    memory_mb: int | None


@dataclass
class NpuTable:
    """The table of ``npu-smi info``; ``unknown_lines`` are those that we could not read."""

    version: str = ""
    chips: list[NpuChip] = field(default_factory=list)
    processes: list[NpuProcess] = field(default_factory=list)
    unknown_lines: int = 0


def parse_npu_info(text: str) -> NpuTable:
    """Read the table that ``npu-smi info`` draws."""
    table = NpuTable()
    reader = _Reader(table)
    for line in text.splitlines()[:_MAX_LINES]:
        line = line.strip()[:_MAX_LINE_CHARS]  # noqa: PLW2901 - only ever read trimmed
        if line.startswith("|") and line.endswith("|"):
            reader.take([cell.strip() for cell in line[1:-1].split("|")])
    return table


def parse_npu_values(text: str) -> list[dict[str, float]]:
    """Read what ``npu-smi info -t usages`` and its like print: the figures of each chip.

    The line ``Chip ID`` ends a chip in some versions and begins one in others; the figures are
    told apart by names that come again. A chip's own number is under ``Chip ID``, if it is there.
    """
    chips: list[dict[str, float]] = []
    now: dict[str, float] = {}
    for line in text.splitlines()[:_MAX_LINES]:
        found = _KEY_VALUE.fullmatch(line[:_MAX_LINE_CHARS])
        if found is None or not _NUMBER.fullmatch(found["value"]):
            continue
        key = found["key"]
        if key in {"NPU ID", "Chip Count"}:
            continue
        if key in now:
            chips.append(now)
            now = {}
        now[key] = float(found["value"])
    return [*chips, now] if now else chips


class _Reader:
    """Reads the rows of a table one after the other; a chip is known after its second row."""

    def __init__(self, table: NpuTable) -> None:
        self._table = table
        self._first: list[str] | None = None
        self._has_hbm = False
        self._has_device = False
        self._is_processes = False

    def take(self, cells: list[str]) -> None:
        """Read one row."""
        if not self._is_heading(cells):
            if self._is_processes:
                is_read = self._take_process(cells)
            elif self._first is None:
                is_read = self._take_first(cells)
            else:
                is_read = self._take_second(cells)
            self._table.unknown_lines += not is_read

    def _is_heading(self, cells: list[str]) -> bool:
        text = " ".join(cells)
        if "npu-smi" in text:
            self._table.version = (
                text.partition("npu-smi")[2].split()[0] if text.split()[1:] else ""
            )
        elif "Process id" in text:
            self._is_processes = True
        elif "Bus-Id" in text:
            self._has_hbm = "HBM-Usage" in text
            self._has_device = len(cells[0].split()) > 1
        elif not ("Health" in text and "Power" in text):
            return "No running processes" in text
        return True

    def _take_first(self, cells: list[str]) -> bool:
        is_row = len(cells) == _CELLS and cells[0].split()[:1] and cells[0].split()[0].isdecimal()
        self._first = cells if is_row else None
        return bool(is_row)

    def _take_second(self, cells: list[str]) -> bool:
        first, self._first = self._first, None
        numbers = cells[0].split()
        if first is None or len(cells) != _CELLS or not numbers or not numbers[0].isdecimal():
            return False
        name = first[0].split()
        above, below = _read_values(first[2]), _read_values(cells[2])
        pairs = [(int(p["used"]), int(p["total"])) for p in _PAIR.finditer(cells[2])]
        memory = pairs[1] if self._has_hbm and len(pairs) > 1 else next(iter(pairs), None)
        is_device = self._has_device and len(numbers) > 1 and numbers[1].isdecimal()
        self._table.chips.append(
            NpuChip(
                npu=int(name[0]),
                chip=int(numbers[0]),
                device=int(numbers[1]) if is_device else None,
                name=" ".join(name[1:])[:64],
                health=first[1][:32],
                bus_id=cells[1][:32],
                power_w=next(above, None),
                temperature_c=next(above, None),
                aicore_percent=next(below, None),
                memory_mb=memory if memory and memory[1] > 0 else None,
            )
        )
        return True

    def _take_process(self, cells: list[str]) -> bool:
        place = cells[0].split()
        is_row = len(cells) == _PROCESS_CELLS and [one.isdecimal() for one in place] == [True, True]
        if not is_row or not cells[1].isdecimal():
            return False
        memory = int(cells[3]) if cells[3].isdecimal() else None
        self._table.processes.append(
            NpuProcess(int(place[0]), int(place[1]), int(cells[1]), memory)
        )
        return True


def _read_values(cell: str) -> Iterator[float | None]:
    """Give the values at the start of a cell in order, None for those that are not known."""
    for word in _PAIR.sub(" ", cell).split():
        if word in _NOTHING:
            yield None
        elif _NUMBER.fullmatch(word):
            yield float(word)
        else:
            return


def name_chip(chip: NpuChip, table: NpuTable) -> str:
    """Return the number that programs know a chip by, where the table has it."""
    if chip.device is not None:
        return str(chip.device)
    is_alone = sum(other.npu == chip.npu for other in table.chips) == 1
    return str(chip.npu) if is_alone else f"{chip.npu}.{chip.chip}"


def find_npu_smi() -> str | None:
    """Return the path of the tool; None where it is not installed."""
    places = os.pathsep.join((os.environ.get("PATH", ""), *_PLACES))
    return shutil.which("npu-smi", path=places)


def run_bounded(command: Sequence[str], timeout_s: float = _TIMEOUT_S) -> str:
    """Return what a command prints, of 1 MiB at most; raises OSError when it fails or is slow."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "LC_ALL": "C"},
        start_new_session=True,
    )
    try:
        output = _read_all(process, time.monotonic() + timeout_s)
        code = process.wait(timeout=1)
    except (OSError, subprocess.TimeoutExpired) as error:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        raise OSError(str(error)) from None
    finally:
        if process.stdout is not None:
            process.stdout.close()
        # One that the kernel holds does not end when it is killed, and must not hold us too.
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)
    if code:
        raise OSError(f"it ended with code {code}")
    return output.decode(errors="replace")


def _read_all(process: subprocess.Popen[bytes], end_s: float) -> bytes:
    stdout = process.stdout
    if stdout is None:
        return b""
    parts: list[bytes] = []
    size = 0
    while size <= _MAX_OUTPUT_BYTES:
        left_s = end_s - time.monotonic()
        if left_s <= 0 or not select.select([stdout], [], [], left_s)[0]:
            raise TimeoutError("it takes too long")
        part = os.read(stdout.fileno(), 1 << 16)
        if not part:
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    raise OSError(f"it prints more than {_MAX_OUTPUT_BYTES >> 20} MiB")
