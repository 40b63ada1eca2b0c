"""Parts of the probe that are switched on and off while the job runs, by a watched file.

``switch.json`` in the job folder says what is wanted. Every rank takes it over between the same two
optimizer steps, and tells in ``switched-PID`` what became of it. Other sources than the file give
what they want to :meth:`Switch.want`; other parts add themselves with :meth:`Parts.register`.
"""

from __future__ import annotations

import json
import os
import stat
import threading

from . import files
from .calling.interrupts import let_through

TYPE_CHECKING = False  # as in install.py
if TYPE_CHECKING:
    from typing import Any, Callable, Optional

    from .progress import Counts

    Applier = Callable[["Setting"], Optional[str]]

FILE_NAME = "switch.json"
# Of the file; 1 where it says nothing. Another one is refused as a whole.
VERSION = 1
MAX_BYTES = 65536
ON, OFF = "on", "off"
# Of marks where some kinds are on.
MIXED = "mixed"
# The four kinds of marks, which `marks` stands for where it does not name them.
MARKS = ("step", "forward", "checkpoint", "dataloader")
_ALL_MARKS = "marks"
# Told by every rank, whether or not the part is there.
_ALWAYS_TOLD = ("comm", *MARKS, "inspect")
# What the probe disarms before all of it goes, by key.
_PARTS = {"comm": files.OPS, **dict.fromkeys(MARKS, files.MARKS)}
_MAX_NUMBER = 2**63 - 1
_MAX_ERROR_CHARS = 500


class Later(str):
    """What an applier returns when the change is on its way: it is asked again a second later."""

    __slots__ = ()


class Setting:
    """What one part is asked to be: its value, by which word of the switch, after which step."""

    def __init__(self, value: str, generation: int, step: int) -> None:
        self.value = value
        self.generation = generation
        self.step = step


class Parts:
    """What can be switched, by key, and how it is now."""

    def __init__(self) -> None:
        self._appliers: dict[str, tuple[Applier, bool]] = {}
        self.values: dict[str, str] = dict.fromkeys(_ALWAYS_TOLD, OFF)
        # Whether a change of the last word is still on its way.
        self.is_late = False

    def register(self, key: str, applier: Applier, *, is_spec: bool = False) -> None:
        """Add a part, which is off; to be done before the switch is looked at first.

        Args:
            key: Its key in the file.
            applier: Called at each word of the switch, also when the value is as before. It is in
                a thread of the job or of the probe, returns what went wrong as one sentence or
                nothing, and may raise.
            is_spec: Whether any text is a value, not only on and off.
        """
        self._appliers[key] = applier, is_spec
        self.values[key] = OFF

    def is_on(self, part: str) -> bool:
        """Tell whether anything that is disarmed with a part of the probe is on."""
        return any(self.values[key] != OFF for key in self.list_keys(part))

    def list_keys(self, part: str) -> list[str]:
        """Return the keys of what is disarmed with a part of the probe."""
        return [key for key in self.values if part in {_part_of(key), files.ALL}]

    def tell(self) -> dict[str, object]:
        """Return how the parts are, kinds of marks apart: one of them is called `step`."""
        kinds = {key: self.values[key] for key in MARKS}
        rest: dict[str, object] = {
            key: value for key, value in self.values.items() if key not in MARKS
        }
        states = set(kinds.values())
        return {**rest, _ALL_MARKS: states.pop() if len(states) == 1 else MIXED, "kinds": kinds}

    def apply(self, wanted: dict[str, object], generation: int, step: int) -> str:
        """Apply what is wanted of each part; return what could not be, or an empty text."""
        errors = []
        self.is_late = False
        for key, value in wanted.items():
            try:
                error = self._apply_one(key, value, generation, step)
            except Exception as problem:  # the other parts are switched all the same
                let_through(problem)
                error = f"{type(problem).__name__}: {problem}"
            if error:
                self.is_late = self.is_late or isinstance(error, Later)
                errors.append(f"{key[:40]}: {error}")
        return "; ".join(errors)[:_MAX_ERROR_CHARS]

    def _apply_one(self, key: str, value: object, generation: int, step: int) -> str | None:
        if key not in self._appliers:
            if key in _ALWAYS_TOLD and value == OFF:
                return None
            return "this key is not known here"
        applier, is_spec = self._appliers[key]
        if not isinstance(value, str) or not (is_spec or value in (ON, OFF)):
            return "the value must be a text" if is_spec else 'the value must be "on" or "off"'
        if value != OFF and (reason := files.why_off(_part_of(key))):
            return f"the probe has disarmed it: {reason}"
        error = applier(Setting(value, generation, step))
        if not error:
            self.values[key] = value
        return error


def _part_of(key: str) -> str:
    return _PARTS.get(key, files.ALL)


PARTS = Parts()


class Switch:
    """The watched file, looked at by the probe's thread and applied at a step of the job's."""

    def __init__(
        self,
        path: str,
        parts: Parts,
        counts: Counts,
        acknowledge: Callable[[dict[str, object]], None],
    ) -> None:
        """Watch the file at ``path``.

        Args:
            path: The file, which may come and go.
            parts: What it switches.
            counts: The optimizer steps made; its ``due`` is set while a change waits for one.
            acknowledge: Gets what is to be told of each change that was applied; may raise, and
                is then called again at the next look.
        """
        self._path = path
        self._parts = parts
        self._counts = counts
        self._acknowledge = acknowledge
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._read_before: tuple[int, bytes] | None = None
        self._taken: tuple[int, bytes] | None = None
        self._wanted: dict[str, object] = {}
        self._generation = 0
        self._at_step = 0
        self._is_pending = False
        self._told: dict[str, object] | None = None
        # What was wanted after which step, when some of it is still on its way.
        self._late: tuple[dict[str, object], int] | None = None

    def look(self) -> None:
        """Take over what the file says, and tell what was applied since the last look."""
        try:
            self._read()
        except (OSError, TypeError, ValueError, RecursionError):
            pass  # absent, half written or nonsense: what was last good stays, until the next look
        if self._is_pending and self._counts.optimizer_steps == 0:
            # There may never be a step: nothing to wait for.
            with self._lock:
                self._apply(0)
        elif self._late is not None:
            self._ask_again()
        self.tell()

    def want(self, wanted: dict[str, object], generation: int, at_step: int) -> None:
        """Have the parts of ``wanted`` changed after ``at_step``; the others stay as they are."""
        with self._lock:
            self._wanted = {**self._wanted, **_name_marks(wanted)}
            self._generation, self._at_step, self._is_pending = generation, at_step, True
            self._counts.due = self.at_step

    def turn_off(self, part: str) -> None:
        """Turn off now what is disarmed with a part of the probe; what is due later stays so."""
        with self._lock:
            due = self._wanted if self._is_pending else {}
            off: dict[str, object] = dict.fromkeys(self._parts.list_keys(part), OFF)
            self._change(off, self._counts.optimizer_steps)
            self._wanted = {**self._wanted, **due}

    def at_step(self, steps: int) -> None:
        """Apply what is due after so many optimizer steps; called by the job, and never waits."""
        if steps < self._at_step or os.getpid() != self._owner or not self._lock.acquire(False):
            return
        try:
            if steps >= self._at_step:  # once more: it may have changed before we had the lock
                self._apply(steps)
        except Exception as error:  # the job goes on
            let_through(error)
            return
        finally:
            self._lock.release()

    def tell(self) -> None:
        """Acknowledge what was applied and is not told yet."""
        told = self._told
        if told is not None:
            self._acknowledge(told)
            if self._told is told:
                self._told = None

    def _apply(self, steps: int) -> None:
        if not self._is_pending:
            return
        self._is_pending, self._counts.due = False, None
        self._change(self._wanted, steps)

    def _ask_again(self) -> None:
        with self._lock:
            if self._late is not None and not self._is_pending:
                self._change(*self._late, is_told=True)

    def _change(self, wanted: dict[str, object], steps: int, *, is_told: bool = False) -> None:
        error = self._parts.apply(wanted, self._generation, steps)
        is_late = self._parts.is_late
        self._late = (wanted, steps) if is_late else None
        # What is on its way is still wanted by whoever changes something else.
        self._wanted = {**self._parts.values, **wanted} if is_late else dict(self._parts.values)
        if is_told and is_late:
            return
        # Written by the probe's thread: the job must not wait for a file.
        self._told = {
            "generation": self._generation,
            "step": steps,
            **self._parts.tell(),
            "error": error,
            "disarmed": dict(files.DISARMED),
        }

    def _refuse(self, version: object) -> None:
        self._told = {
            "generation": self._generation,
            "step": self._counts.optimizer_steps,
            **self._parts.tell(),
            "error": f"the file is of version {version!s:.20}, this probe knows {VERSION}",
            "disarmed": dict(files.DISARMED),
        }

    def _read(self) -> None:
        """Read the file; raises OSError, or TypeError or ValueError when it makes no sense.

        It is read even if its time and size are as before: some writers change it twice within
        one tick of the file system's clock.
        """
        found = read_small(self._path)
        if found == self._read_before:
            return
        modified_ns, data = found
        value = json.loads(data.decode())
        if not isinstance(value, dict):
            raise TypeError("not an object")
        self._read_before = found
        version = value.pop("version", VERSION)
        if version != VERSION:
            self._refuse(version)
            return
        generation = _number(value.pop("generation", modified_ns))
        at_step = _number(value.pop("at_step", 0))
        if (generation, data) != self._taken:
            self._taken = generation, data
            self.want(value, generation, at_step)


def read_small(path: str) -> tuple[int, bytes]:
    """Return (time of the last change in ns, content) of a file that anybody may have made.

    Raises OSError, or ValueError when it is no plain file, or too large.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        data = os.read(fd, MAX_BYTES + 1) if stat.S_ISREG(status.st_mode) else b""
    finally:
        os.close(fd)
    if not data or len(data) > MAX_BYTES:
        raise ValueError("no plain file of a fit size")
    return status.st_mtime_ns, data


def _name_marks(wanted: dict[str, object]) -> dict[str, object]:
    """Put the four kinds of marks, but those that are named, in the place of the word for all."""
    if _ALL_MARKS not in wanted:
        return wanted
    rest = {key: value for key, value in wanted.items() if key != _ALL_MARKS}
    return {**dict.fromkeys(MARKS, wanted[_ALL_MARKS]), **rest}


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
        raise ValueError("not a number")
    return value


def make_switch(rank: Callable[[], int], counts: Counts) -> Switch:
    """Return the switch of this process; ``rank`` is asked when a change is told."""

    def acknowledge(told: dict[str, object]) -> None:
        files.write_json(files.path_of("switched"), {"rank": rank(), **told})

    return Switch(os.path.join(files.job_dir(), FILE_NAME), PARTS, counts, acknowledge)
