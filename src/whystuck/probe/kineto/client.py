"""Leading Kineto of this process to an agent, which can ask it for traces while the job runs.

torch does so itself where ``KINETO_USE_DAEMON`` is set when it is imported. Here it is done later,
in chosen processes only: in none that a rank starts for help, and in none that another daemon has.
Where torch has done so, and the agent is one of ours, only the steps are counted for it, and the
process can end in the middle of a trace.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Callable

from .. import files, heap
from ..calling.interrupts import let_through
from ..calling.unseen import call_before
from ..shared_steps import SharedSteps
from ..threads import OwnThread
from . import folder as kineto_folder
from .agent_discovery import CONFIG_FILE, SOCKET_DIR_ENV, find_agent
from .choice import FOLDER_ENV, find_device, is_left_to_us
from .library import SILENT, Library, find_library, is_known_good
from .pause import Pause, Plan, read_plan
from .process_end import end_trace, list_parts
from .socket import start_apart
from .teardown import Teardown

CONFIG_ENV = "KINETO_CONFIG"
TRACE_DIR_ENV = "KINETO_ONDEMAND_TRACE_DIR"
LEVEL_ENV = "KINETO_LOG_LEVEL"
# Steps that are made up for while Kineto was not there yet.
_MAX_CAUGHT_UP = 100_000
_WATCH_S = 0.05
_JOIN_S = 1.0
# At the first look. Kineto takes up to a second to see that a trace is over: few are made too many
# of a short one, and as they double, the longest is over soon.
_RESCUE_STEPS = 100
_MAX_RESCUE_STEPS = 6400
_RESCUE_LOOKS = 20


class Kineto:
    """What Kineto of this process is to do; a part of it that fails costs the traces only."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        # Kineto says so on stderr when it is started in another thread than torch was.
        self._thread_id = threading.get_ident()
        adopted = find_agent()
        self._folder = adopted or os.environ.get(FOLDER_ENV, "")
        # torch has started Kineto itself, and tells it of the steps.
        self._is_adopted = bool(adopted)
        self._library: Library | None = None
        self._pause: Pause | None = None
        self._teardown = Teardown()
        self._step: Callable[[], object] | None = None
        self._is_polling = False
        self._is_due = False
        self._is_led = True
        self._is_quiet = LEVEL_ENV not in os.environ and not adopted
        self._own_level: int | None = None
        self._steps = 0
        self._shared: SharedSteps | None = None
        # Steps that were made up for a trace, and that the job has not made since.
        self._owed = 0
        self._was_collecting = False
        # The files of traces that were given up for those of the job itself.
        self._dropped: set[str] = set()
        self._seen_steps = 0
        self._leaves = threading.Event()
        self._watcher: OwnThread | None = None
        self._rescue_looks = 0

    @property
    def is_wanted(self) -> bool:
        """Whether Kineto asks for work, or will when it can."""
        return self._library is not None

    def lead(self) -> None:
        """Let Kineto poll, now or once it can; called in the thread that has imported torch."""
        if self._library is not None:
            return
        if not (
            kineto_folder.is_ours(self._folder) if self._is_adopted else is_left_to_us(os.environ)
        ):
            return
        torch: Any = sys.modules["torch"]
        if not is_known_good(str(torch.__version__)):
            return
        library = Library(find_library(torch.__file__))
        self._step = torch.autograd._kineto_step
        self._library = library
        self._pause = Pause(library, self._read_plan)
        self._share_steps()
        self._watch_steps()
        if self._is_adopted:
            self._adopt(library)
        else:
            self._forget("trace", "rescue")  # of another process that had this pid
            self._begin(library)

    def look(self) -> None:
        """Do what is due once a second; called in a thread of the probe."""
        library = self._library
        if library is None or os.getpid() != self._pid:
            return
        if not self._is_polling:
            self._is_due = self._is_due or kineto_folder.is_ours(self._folder)
            return
        self._tend_folder(library)
        # A rank that steps sees it at a step, and open files are not looked through for it.
        is_still, self._seen_steps = self._steps == self._seen_steps, self._steps
        is_tracing = self._was_collecting or self._has_mark("trace")
        heap.HEAP.note_use(is_used=is_tracing)
        self._teardown.follow(library, is_tracing=is_tracing)
        if (is_still or is_tracing) and self._is_in_flight():
            self._watch_trace(library)
        else:
            self._was_collecting = False
        if self._pause is not None:
            self._pause.look(self._read_plan())
        if self._has_mark("rescue"):
            self._rescue(library)
        else:
            self._rescue_looks = 0

    def leave(self) -> None:
        """Let the process end: no poll goes on, and no trace is being collected.

        Kineto ends a process by a SIGSEGV that exits while it collects.
        """
        library = self._library
        if library is None or not self._is_polling or os.getpid() != self._pid:
            return
        self._is_polling = False
        self._leaves.set()
        if self._watcher is not None:
            self._watcher.join(_JOIN_S)
        # The folder stays as it is: a late answer from another one than it names ends the process.
        kineto_folder.tend(self._folder)
        library.stop()
        if self._is_quiet:
            library.set_level(SILENT)
        is_asked, plan = self._has_mark("trace"), self._read_plan()
        end_trace(
            library,
            was_collecting=self._was_collecting,
            is_asked=is_asked,
            dropped=frozenset(self._dropped),
            end_ns=0 if plan is None else plan.end_ns,
        )

    # --------------------------------------------------------------------------- the start

    def _adopt(self, library: Library) -> None:
        """Take on what torch has started."""
        if library.is_used:
            self._watch_profiler(library)
            self._is_polling = True
        else:
            self._library = None

    def _begin(self, library: Library) -> None:
        """Start Kineto, or arrange for it: the folder must be there, and the device in use."""
        self._is_due = False
        if library.is_used:
            self._library = None  # the job profiles itself, and its profiler stays the one
        elif kineto_folder.is_ours(self._folder):
            device = find_device(sys.modules["torch"])
            if device is None:
                self._start(library, is_cpu_only=True)
            else:
                # Kineto asks the driver, after which the job could not choose devices any more.
                device._lazy_call(self._device_is_ready)

    def _device_is_ready(self) -> None:
        try:
            if self._library is None or self._is_polling:
                return
            if threading.get_ident() == self._thread_id:
                self._start(self._library, is_cpu_only=False)
            else:
                self._is_due = True
        except Exception as error:  # the job uses its device without us
            let_through(error)
            return

    def _start(self, library: Library, *, is_cpu_only: bool) -> None:
        if library.is_used:
            self._library = None
            return
        library.set_variable(SOCKET_DIR_ENV, self._folder)
        if TRACE_DIR_ENV not in os.environ:
            # Only who may enter the folder can ask, and he can write what the job can.
            library.set_variable(TRACE_DIR_ENV, "/")
        config = os.path.join(self._folder, CONFIG_FILE)
        if CONFIG_ENV not in os.environ and os.path.isfile(config):
            library.set_variable(CONFIG_ENV, config)
        os.register_at_fork(after_in_child=self._leave_child)
        start_apart(
            lambda: library.start(is_cpu_only=is_cpu_only, is_quiet=self._is_quiet),
            self.rest,
        )
        self._watch_profiler(library)
        step = self._step
        self._steps = min(self._steps, _MAX_CAUGHT_UP)
        for _ in range(self._steps if step is not None else 0):
            step()  # type: ignore[misc] # not None, or the loop is over
        self._is_polling = True

    def rest(self) -> None:
        """Have nobody polled from now on, as where the job has closed Kineto's socket.

        It may have one of its own at that number.
        """
        library = self._library
        if library is not None:
            self._library, self._is_polling = None, False
            library.stop()

    def _leave_child(self) -> None:
        """Forget all in a forked child: the thread that polls is in its parent."""
        library, self._library, self._is_polling = self._library, None, False
        if library is not None:
            library.leave_child()

    def _watch_steps(self) -> None:
        """Pass each optimizer step on: Kineto counts them, and can trace some by number."""

        def after_step(*_: object) -> None:
            try:
                self._count_step()
            except Exception as error:  # the job steps on without us
                let_through(error)
                return

        # As in `progress`: the compiler must not trace it.
        after_step._torchdynamo_disable = True  # type: ignore[attr-defined]
        after_step._torchdynamo_disable_msg = None  # type: ignore[attr-defined]
        sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(after_step)

    def _share_steps(self) -> None:
        try:
            self._shared = SharedSteps()
        except Exception:  # the agent goes by what it sees in traces
            self._shared = None

    def _count_step(self) -> None:
        if self._is_adopted:
            # Steps that the job's own profiler tells count, too; those of a rescue come on top.
            tracker: Any = sys.modules["torch.autograd.profiler"].KinetoStepTracker
            self._steps = tracker.current_step()
            count = self._steps + self._owed
        else:
            self._steps = count = self._steps + 1
        if self._shared is not None:
            self._shared.note(count)
        library, step = self._library, self._step
        if library is None or step is None:
            return
        if not self._is_polling:
            if self._is_due and threading.get_ident() == self._thread_id:
                self._begin(library)
            return
        if not self._is_adopted:
            self._pass_on(step)
        is_collecting = library.is_collecting
        self._was_collecting = self._was_collecting or is_collecting
        if self._pause is not None:
            self._pause.after_step(count, is_collecting=is_collecting)

    def _pass_on(self, step: Callable[[], object]) -> None:
        if self._owed > 0:
            self._owed -= 1
        else:
            step()

    def _watch_profiler(self, library: Library) -> None:
        """Notice when the job profiles itself: Kineto speaks, as without us, and drops a trace."""
        profiler: Any = sys.modules["torch.autograd.profiler"]

        def see(*_: object, **__: object) -> None:
            if os.getpid() == self._pid and self._is_polling:
                self._see_own_profile(library)

        profiler._prepare_profiler = call_before(profiler._prepare_profiler, see)

    def _see_own_profile(self, library: Library) -> None:
        if self._is_quiet and self._own_level is None:
            self._own_level = library.use_default_level()
            if self._has_mark("trace"):
                library.set_level(SILENT)  # it would say that this one came too late
        # Kineto keeps the file of what it has dropped open, for good.
        self._dropped = list_parts()
        self._was_collecting = False
        if self._pause is not None:
            self._pause.give_up()

    def _is_in_flight(self) -> bool:
        return not list_parts() <= self._dropped

    # --------------------------------------------------------------------- once a second

    def _tend_folder(self, library: Library) -> None:
        """Take a socket away that nobody reads, and let Kineto poll no folder that is not ours."""
        if self._is_adopted:
            return  # torch says more of one that is not there than of one that nobody reads
        state = kineto_folder.tend(self._folder)
        if state is kineto_folder.FOREIGN and self._is_led:
            self._is_led = False
            library.stop()  # for good: somebody else may order files to be written
        if self._own_level is not None:
            # Kineto says at each poll that nobody is there.
            is_quiet = state is not kineto_folder.SERVED or self._has_mark("trace")
            library.set_level(SILENT if is_quiet else self._own_level)

    def _watch_trace(self, library: Library) -> None:
        """See, while a trace is on its way, that it is collected: a window may be short.

        At the exit this is all that tells a trace to come from one that is written.
        """

        def watch() -> None:
            try:
                while self._is_in_flight() and not self._leaves.wait(_WATCH_S):
                    self._was_collecting = self._was_collecting or library.is_collecting
            except Exception:  # the process may exit less well, and only in a trace
                return

        if self._watcher is None or not self._watcher.is_alive():
            self._watcher = OwnThread(watch, "whystuck-trace")
            self._watcher.start()

    def _has_mark(self, kind: str) -> bool:
        return any(kineto_folder.is_mark(path) for path in self._marks(kind))

    def _marks(self, kind: str) -> set[str]:
        """Return where an agent may tell something about this process, e.g. ``trace-4711``."""
        folders = {self._folder, os.environ.get(files.JOB_DIR_ENV, "")} - {""}
        return {os.path.join(folder, f"{kind}-{self._pid}") for folder in folders}

    def _forget(self, *kinds: str) -> None:
        for path in set().union(*map(self._marks, kinds)):
            try:
                os.unlink(path)
            except OSError:
                continue

    def _read_plan(self) -> Plan | None:
        return read_plan(self._marks("trace"))

    def _rescue(self, library: Library) -> None:
        """Make the steps that a trace waits for, of a rank that makes none itself.

        They are taken off those that come later, so that a number means the same on all ranks.
        """
        self._rescue_looks += 1
        if self._make_steps(library) or self._rescue_looks >= _RESCUE_LOOKS:
            self._rescue_looks = 0
            self._forget("rescue")

    def _make_steps(self, library: Library) -> bool:
        """Make some steps; return whether there is no need of more."""
        steps, step = self._steps, self._step
        if step is None:
            return True
        if self._rescue_looks == 1 and self._has_mark("trace") and not self._is_in_flight():
            # What came when the rank was stuck already is taken on at a step.
            step()
            self._owed += 1
        if not self._is_in_flight():
            return True
        was_collecting = False
        for _ in range(min(_RESCUE_STEPS << self._rescue_looks - 1, _MAX_RESCUE_STEPS)):
            if self._steps != steps:
                return True  # the rank moves again, and ends the trace itself
            step()
            self._owed += 1
            is_collecting = library.is_collecting
            if was_collecting and not is_collecting:
                return True
            was_collecting = is_collecting
        return False


_MADE: list[Kineto] = []


def of_this_process() -> Kineto:
    """Return the one of this process; a forked child has another one than its parent."""
    if not _MADE or _MADE[-1]._pid != os.getpid():
        _MADE.append(Kineto())
    return _MADE[-1]
