"""Recording which lines run: by `sys.monitoring` (Python 3.12 and newer), or by `sys.settrace`.

A trace function of somebody else, a debugger's or a coverage tool's, is left alone.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time

from .. import files
from ..calling.interrupts import let_through
from .file import ENTRY_BYTES, HIDDEN, MONITORING, PUT_ENTRY, SETTRACE, LineFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, FrameType
    from typing import Any, Callable, Optional, Protocol

    Tracer = Callable[[FrameType, str, Any], Optional[Callable[..., Any]]]

    class Recording(Protocol):
        """What can be measured."""

        def start(self) -> str:
            """Begin; return why not, or an empty text."""

        def stop(self) -> None:
            """End."""


FILE_KIND = "lines"
_TOOL_NAME = "whystuck"
# Those that nobody has reserved.
_TOOL_IDS = (4, 3)
_ROUNDS = 2000
_TIMES = 3
# A file name that is the user's, and one that is not.
_LINES = compile(f"for i in range({_ROUNDS}):\n    x = i\n", "measured.py", "exec")
_CALLS = compile(f"for i in range({_ROUNDS}):\n    f()\n", "<measured>", "exec")
_LINES_EACH = 2
# Of the interpreter itself, of generated code, and of what installers put in place.
_MARKS = ("-packages" + os.sep,)


class Functions:
    """Numbers of functions; the identity of a code object is a key only while it lives."""

    def __init__(self, file: LineFile) -> None:
        self._file = file
        self._user_code = UserCode()
        self._codes: list[CodeType] = []
        self.numbers: dict[int, int] = {}

    def find(self, code: CodeType) -> int:
        """Return the number of a function that is not known yet; never raises."""
        number = HIDDEN
        try:
            if self._user_code.owns(code.co_filename):
                number = self._file.add_code(code)
        except Exception as error:  # a name that cannot be written
            let_through(error)
            number = HIDDEN
        self._codes.append(code)
        self.numbers[id(code)] = number
        return number


class ThreadLines:
    """The ring of one thread."""

    def __init__(self, file: LineFile, at: int) -> None:
        self._map, self._at, self._capacity = file.map, at, file.capacity
        self._counts = itertools.count(1)

    def put(self, number: int, line: int) -> None:
        """Note that a line of a function runs."""
        count = next(self._counts)
        at = self._at + count % self._capacity * ENTRY_BYTES
        PUT_ENTRY(self._map, at, count, number, line)

    def make_tracer(self, number: int) -> Tracer:
        """Return what Python calls for each event in one function, as fast as it can be."""
        memory, start, capacity, counts = self._map, self._at, self._capacity, self._counts

        def on_line(frame: FrameType, event: str, _: object) -> Tracer:
            if event == "line":
                count = next(counts)
                at = start + count % capacity * ENTRY_BYTES
                try:
                    PUT_ENTRY(memory, at, count, number, frame.f_lineno)
                except Exception as error:  # a line without a number
                    let_through(error)
                    return on_line
            return on_line

        return on_line


class SetTrace:
    """Python's trace function: each call asks once, and the user's functions tell each line."""

    def __init__(self, file: LineFile) -> None:
        self._file = file
        self._functions = Functions(file)
        self._is_open = True
        self._mine: list[Tracer] = []

    def start(self) -> str:
        """Trace this thread and all that begin later; return why not, or an empty text."""
        if sys.gettrace() is not None:
            return "another tool traces this process"
        self._start_thread()
        threading.settrace(self._meet_thread)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            # They run already: Python asks only for functions that are called from now on.
            frame.f_trace = self._mine[0](frame, "call", None)
            frame = frame.f_back
        return ""

    def stop(self) -> None:
        """Record nothing more in this thread, and in those that begin later.

        Also in a forked child, which shares the file with us.
        """
        self._is_open = False
        if sys.gettrace() in self._mine:
            sys.settrace(None)
        threading.settrace(None)

    def _meet_thread(self, frame: FrameType, event: str, argument: object) -> Any:
        if not self._is_open:
            sys.settrace(None)
            return None
        tracer = self._start_thread()
        return None if tracer is None else tracer(frame, event, argument)

    def _start_thread(self) -> Tracer | None:
        at = _find_room(self._file)
        if at is None:
            sys.settrace(None)
            return None
        thread = ThreadLines(self._file, at)
        numbers, learn = self._functions.numbers, self._functions.find
        tracers: dict[int, Tracer] = {}

        def on_call(frame: FrameType, _event: str, _argument: object) -> Any:
            code = frame.f_code
            number = numbers.get(id(code))
            if number is None:
                number = learn(code)
            if number == HIDDEN:
                return None
            tracer = tracers.get(number)
            if tracer is None:
                tracer = tracers[number] = thread.make_tracer(number)
            return tracer

        self._mine.append(on_call)
        sys.settrace(on_call)
        return on_call


class Monitoring:
    """`sys.monitoring`: library code is asked about once, and costs nothing from then on."""

    def __init__(self, file: LineFile) -> None:
        self._file = file
        self._functions = Functions(file)
        self._local = threading.local()
        self._monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        self._tool = -1

    def start(self) -> str:
        """Watch all threads; return why not, or an empty text."""
        monitoring = self._monitoring
        free = [one for one in _TOOL_IDS if monitoring.get_tool(one) is None]
        if not free:
            return "other tools monitor this process"
        self._tool = free[0]
        monitoring.use_tool_id(self._tool, _TOOL_NAME)
        events = monitoring.events
        monitoring.register_callback(self._tool, events.PY_START, self._on_start)
        monitoring.register_callback(self._tool, events.LINE, self._on_line)
        monitoring.set_events(self._tool, events.PY_START)
        for frame in sys._current_frames().values():
            one: FrameType | None = frame
            while one is not None:
                self._on_start(one.f_code, 0)
                one = one.f_back
        return ""

    def stop(self) -> None:
        """Record nothing more; also in a forked child, which shares the file with us."""
        if self._tool >= 0:
            events = self._monitoring.events
            self._monitoring.set_events(self._tool, 0)
            for event in (events.PY_START, events.LINE):
                self._monitoring.register_callback(self._tool, event, None)
            self._monitoring.free_tool_id(self._tool)
            self._tool = -1

    def _on_start(self, code: CodeType, _offset: int) -> object:
        if id(code) not in self._functions.numbers and self._functions.find(code):
            self._monitoring.set_local_events(self._tool, code, self._monitoring.events.LINE)
        return self._monitoring.DISABLE

    def _on_line(self, code: CodeType, line: int) -> object:
        try:
            put = self._local.put
        except AttributeError:
            at = _find_room(self._file)
            put = self._local.put = None if at is None else ThreadLines(self._file, at).put
        if put is not None:
            put(self._functions.numbers.get(id(code), HIDDEN), line)
        return None


def _find_room(file: LineFile) -> int | None:
    try:
        return file.add_thread()
    except Exception as error:  # raised here, it would come up in the job
        let_through(error)
        return None


_KEPT: list[SetTrace | Monitoring] = []


def start_lines() -> None:
    """Record the lines of this process, when the supervisor asked for them; once."""
    wanted = os.environ.get(files.LINES_ENV, "")
    if not wanted.isdecimal() or _KEPT:
        return
    path = files.path_of(FILE_KIND)
    costs = 0.0, 0.0
    if sys.gettrace() is None:
        costs = measure_costs(_make_recorder(_make_file(f"{path}.measured", 0)))
        os.unlink(f"{path}.measured")
    file = _make_file(path, int(wanted))
    file.tell_costs(*costs)
    recorder = _make_recorder(file)
    _KEPT.append(recorder)
    file.tell_problem(recorder.start())
    os.register_at_fork(after_in_child=recorder.stop)


def _make_file(path: str, capacity: int) -> LineFile:
    return LineFile(path, capacity, MONITORING if hasattr(sys, "monitoring") else SETTRACE)


def _make_recorder(file: LineFile) -> SetTrace | Monitoring:
    return Monitoring(file) if hasattr(sys, "monitoring") else SetTrace(file)


def measure_costs(recorder: Recording) -> tuple[float, float]:
    """Return the thread time in ns of a line of the user's and of a call of a library.

    Args:
        recorder: One that is not started, whose file nobody reads; it is stopped again.
    """
    before = _time(_LINES), _time(_CALLS)
    recorder.start()
    try:
        after = _time(_LINES), _time(_CALLS)
    finally:
        recorder.stop()
    line, call = (max(0, late - early) / _ROUNDS for early, late in zip(before, after))
    return line / _LINES_EACH, call


def _time(code: CodeType) -> int:
    """Return the shortest thread time of a run, in ns."""
    names: dict[str, object] = {"__builtins__": {"range": range}}
    exec(compile("def f():\n    pass\n", "<measured>", "exec"), names)  # noqa: S102 - a constant
    best = 1 << 62
    for _ in range(_TIMES):
        begin = time.thread_time_ns()
        exec(code, names)  # noqa: S102 - a constant
        best = min(best, time.thread_time_ns() - begin)
    return best


class UserCode:
    """Tells which files are the user's; made when Python starts, before torch is there."""

    def __init__(self) -> None:
        own_dir = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        standard = os.path.dirname(os.path.abspath(os.__file__))
        prefixes = {standard, own_dir, os.path.join(sys.base_prefix, "lib"), "<"}
        self._hidden = tuple(
            prefix if prefix == "<" else prefix + os.sep for prefix in sorted(prefixes)
        )

    def owns(self, file_name: str) -> bool:
        """Tell whether a file of code is the user's."""
        if file_name.startswith(self._hidden):
            return False
        return not any(mark in file_name for mark in _MARKS)
