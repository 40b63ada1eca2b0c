"""A switch file of the user or of a platform, followed by the supervisor into the job folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from whystuck.evidence.decoding import convert, decode_json
from whystuck.launch.options import SwitchOptions
from whystuck.launch.switch.step_plan import Pace
from whystuck.launch.switch.switching import (
    MARK_KEYS,
    SwitchState,
    change_state,
    read_small_file,
    write_state,
)

OPS_BUFFER_ENV = "WHYSTUCK_OPS_BUFFER"
MIRROR_ENV = "WHYSTUCK_MIRROR_MARKS"
TRACE_LINES_ENV = "WHYSTUCK_TRACE_LINES"

_LOOK_EVERY_S = 0.5
# A file that was written in place is looked at twice: it must not change in between.
_CONFIRM_S = 0.01
_STOP_TIMEOUT_S = 2.0
_PATIENCE_S = 2.0
_ABSENT = "it is not there yet"


class Switches:
    """What the ranks of one job record from their start, and the file that may change it."""

    def __init__(self, options: SwitchOptions, job_dir: Path, tell: Callable[[str], None]) -> None:
        """Prepare it; ``tell`` gets what is wrong with the file."""
        self._options = options
        self._job_dir = job_dir
        self._tell = tell
        self._follower = (
            None if options.file is None else SwitchFileFollower(options.file, job_dir, tell)
        )
        self.variables = {OPS_BUFFER_ENV: str(options.ops_buffer)}
        if options.mirrors:
            self.variables[MIRROR_ENV] = ",".join(options.mirrors)
        if options.trace_lines:
            self.variables[TRACE_LINES_ENV] = str(options.trace_lines)

    def start(self) -> None:
        """Say what is recorded, before the command starts."""
        state = convert(
            {
                "generation": 1,
                "at_step": 0,
                "comm": self._options.comm,
                **dict.fromkeys(MARK_KEYS, self._options.marks),
                "inspect": self._options.inspect,
            },
            SwitchState,
        )
        try:
            write_state(self._job_dir, state)
        except OSError as error:
            self._tell(f"the ranks cannot be told what to record: {error.strerror or error}")
        if self._follower is not None:
            self._follower.start(_PATIENCE_S)

    def stop(self) -> None:
        """Follow the file no longer."""
        if self._follower is not None:
            self._follower.stop()


class SwitchFileFollower:
    """Looks twice a second in a thread of its own: the file may lie on a file system that hangs."""

    def __init__(self, source: Path, job_dir: Path, tell: Callable[[str], None]) -> None:
        """Follow ``source`` for the job in ``job_dir``; ``tell`` gets what is wrong, once."""
        self._source = source.absolute()
        self._job_dir = job_dir
        self._tell = tell
        self._read_before: tuple[int, bytes] | None = None
        self._taken: tuple[int, bytes] | None = None
        self._pace = Pace(job_dir)
        self._problem = ""
        self._told = ""
        self._has_looked = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="switch file", daemon=True)

    def start(self, patience_s: float) -> None:
        """Start, and wait so long for the first look, so that the job begins as the file says."""
        self._thread.start()
        self._has_looked.wait(patience_s)

    def stop(self) -> None:
        """Stop looking; a thread that hangs in the file system is left alone."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.look()
            self._pace.note()
            self._has_looked.set()
            self._stop.wait(_LOOK_EVERY_S)

    def look(self) -> None:
        """Look once; the last good state stays when the file makes no sense."""
        try:
            self._forward()
            problem = ""
        except FileNotFoundError:
            # One that was there and is gone leaves the state, and is no reason to speak.
            problem = "" if self._taken else _ABSENT
        except OSError as error:
            problem = f"it cannot be used: {error.strerror or error}"
        except (ValueError, RecursionError) as error:
            problem = f"it is not used: {' '.join(str(error).split())[:200]}"
        # A file that is being written makes no sense for a moment only.
        if problem and problem == self._problem != self._told:
            self._told = problem
            self._tell(f"the switch file `{self._source}`: {problem}")
        self._problem = problem

    def _forward(self) -> None:
        found = read_small_file(self._source)
        if found == self._read_before:
            return
        modified_ns, data = found
        wanted = decode_json(data, SwitchState)
        time.sleep(_CONFIRM_S)
        if read_small_file(self._source) != found:
            return  # it is being written; the next look sees more
        if wanted.generation is None:
            wanted.generation = modified_ns
        if (wanted.generation, data) != self._taken:
            change_state(self._job_dir, wanted, self._pace.list_beats())
            self._taken = wanted.generation, data
            self._told = ""
        self._read_before = found
