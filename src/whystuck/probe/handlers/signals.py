"""Signals: stacks on demand, a dump on demand, and a dump before SIGTERM ends the process."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import faulthandler
import os
import signal
import threading

from .. import files
from ..calling.attempts import attempt
from ..calling.main_call import MainCall
from ..calling.unseen import leave_out, replace_builtin
from ..descriptors import Descriptor
from ..recorder import dumps
from ..threads import is_main
from .c_handlers import NOTHING, RESTART, read_handler, set_default, set_handler
from .numbers import dump_signal, stacks_signal

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Any, Callable

_TERM_WAIT_S = 2.0


def register_stacks() -> None:
    """Let faulthandler answer with all Python stacks; it needs no GIL."""
    if signal.getsignal(stacks_signal()) != signal.SIG_DFL:
        return
    os.register_at_fork(after_in_child=_leave_child)
    _open_stacks()


def _open_stacks() -> None:
    # Who asks sees the file, and may ask before the handler is there; faulthandler takes its own
    # away while the interpreter is taken down. The signal must end no process that is on its way.
    if not read_handler(stacks_signal()):
        set_handler(stacks_signal(), NOTHING, RESTART)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    file = Descriptor(os.open(files.path_of("faulthandler"), flags, 0o600), _open_stacks)
    # not chained: the default of a real-time signal is to end the process
    faulthandler.register(stacks_signal(), file=file.fd, all_threads=True, chain=False)


def _leave_child() -> None:
    """Have the signal do in a forked child what it does without us: our file is closed there."""
    try:
        faulthandler.unregister(stacks_signal())
        if read_handler(stacks_signal()) == NOTHING:
            set_default(stacks_signal())
    except Exception:  # it would be printed
        return


class _HiddenHandler(int):
    """A handler that `signal.getsignal` and `signal.signal` tell as the default one, which is 0.

    Jobs look whether anybody handles a signal before they do, and call who did so before.
    """

    call: Callable[..., None]

    def __call__(self, *_: object) -> None:
        self.call()

    def install(self, number: int) -> None:
        """Handle a signal; only the main thread may."""
        # Not by `signal.signal`, which takes it for the default one, too.
        _signal.signal(number, self)
        if read_handler(number) == 0:  # some releases of Python do so in C
            _signal.signal(number, self.call)

    def handles(self, number: int) -> bool:
        """Return whether it is the handler of a signal."""
        found = _signal.getsignal(number)
        return found is self or found == self.call


def _hide(call: Callable[..., None]) -> _HiddenHandler:
    made = _HiddenHandler(signal.SIG_DFL)
    made.call = call
    return made


class SignalDumps:
    """Dumps asked for by signal.

    A handler in Python cannot run while the main thread is blocked in C, so the wake-up
    descriptor tells the probe's thread, which needs the GIL only.
    """

    def __init__(self) -> None:
        self._pipe: tuple[Descriptor, ...] = ()
        # Where Python writes the number of each signal.
        self._number = -1
        self._set_in_main = MainCall(self._set_wakeup_fd)
        self._owner = os.getpid()
        self._term_done = threading.Event()
        self._thread_lives = True
        self._holds_term = self._gave_way = False
        self._take_again = MainCall(self._take_term)
        self._delayed = threading.local()
        self._set_fd = signal.set_wakeup_fd
        self._term, self._dump = _hide(self._on_term), _hide(self._ignore)

    def install(self) -> None:
        """Install the handlers where nobody else has; only the main thread may."""
        if not is_main() or not self._thread_lives:
            return
        number = self._make_pipe()
        previous = self._set_fd(number, warn_on_full_buffer=False)
        if previous != -1:
            self._set_fd(previous)
            for end in self._pipe:
                end.close()
            self._pipe = ()
            return
        self._number = number
        if signal.getsignal(dump_signal()) == signal.SIG_DFL:
            self._dump.install(dump_signal())
        self._take_term()
        self._stand_before_wakeup_fd()
        os.register_at_fork(
            before=self._delay_term, after_in_parent=self._allow_term, after_in_child=self._forget
        )

    def _take_term(self) -> None:
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self._term.install(signal.SIGTERM)
            self._holds_term = True

    def _stand_before_wakeup_fd(self) -> None:
        """Hide that there is one of ours: some libraries warn where another one is.

        While the job has its own, nobody tells us of signals, and SIGTERM ends it at once.
        """
        set_fd = self._set_fd

        def set_wakeup_fd(*args: Any, **keywords: Any) -> int:
            try:
                previous: int = set_fd(*args, **keywords)
            except BaseException as error:
                leave_out(error)
                raise
            if os.getpid() != self._owner or not self._pipe:
                return previous
            is_ours, self._number = previous == self._number, self._pipe[1].fd
            attempt(lambda: self._make_way(args[0]))
            return -1 if is_ours else previous

        replace_builtin(signal, "set_wakeup_fd", set_wakeup_fd)

    def _make_way(self, fd: int) -> None:
        """Leave the signals to the descriptor of the job, or see to them again."""
        self._gave_way = fd != -1
        if self._gave_way:
            if self._holds_term and self._is_ours():
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
        elif self._thread_lives and self._number >= 0:
            self._set_fd(self._number, warn_on_full_buffer=False)
            if self._holds_term:
                self._take_term()

    def look(self) -> None:
        """Hold SIGTERM again where the job has put back what it had found; called once a second."""
        is_default = _signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        if self._holds_term and not self._gave_way and is_default and not self._is_ours():
            self._take_again.queue()

    @property
    def wake_fd(self) -> int:
        """What can be read when a signal has come; -1 when none is answered."""
        return self._pipe[0].fd if self._pipe else -1

    def _make_pipe(self, number: int = -1) -> int:
        """Make the pipe, if possible with ``number`` for the end where Python writes."""
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        reader = Descriptor(read_fd, self._renew_pipe)
        self._pipe = reader, Descriptor(write_fd, self._renew_pipe, number)
        return self._pipe[1].fd

    def _renew_pipe(self) -> None:
        """Take another pipe where the job has closed an end: Python writes there at each signal.

        A number that nobody has taken yet is taken back at once; of another one Python learns in
        the main thread.
        """
        for end in self._pipe:
            end.close()
        if self._make_pipe(self._number) != self._number:
            self._set_in_main.queue()

    def _set_wakeup_fd(self) -> None:
        before, self._number = self._number, self._pipe[1].fd
        previous = self._set_fd(self._number, warn_on_full_buffer=False)
        if previous != before:  # the job has put its own there meanwhile
            self._set_fd(previous)

    def answer(self) -> None:
        """Answer the signals that came; called in the probe's thread."""
        numbers = set(os.read(self.wake_fd, 4096))
        ends = int(signal.SIGTERM) in numbers and self._is_ours()
        if ends:
            dumps.dump_recorder_within(files.path_of("fr"), _TERM_WAIT_S)
            self._term_done.set()
            _die_of_term()
        elif dump_signal() in numbers:
            dumps.dump_recorder(files.path_of("fr"))

    def thread_ends(self) -> None:
        """Give SIGTERM back when the probe's thread ends: nobody would answer it."""
        self._thread_lives = False
        if self._holds_term and self._is_ours():
            _default_term()

    def _is_ours(self) -> bool:
        return self._term.handles(signal.SIGTERM)

    def _on_term(self, *_: object) -> None:
        if not self._is_ours():
            # A handler of the job calls the one that was there before; without us there was none.
            return
        if os.getpid() == self._owner and self._thread_lives:
            self._term_done.wait(_TERM_WAIT_S)
        _die_of_term()

    def _ignore(self, *_: object) -> None:
        """The wake-up descriptor did the work."""

    def _delay_term(self) -> None:
        """Keep SIGTERM back while the process forks: Python drops what comes in between."""
        self._delayed.on = False
        if self._is_ours():
            before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            self._delayed.on = signal.SIGTERM not in before

    def _allow_term(self) -> None:
        if getattr(self._delayed, "on", False):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])

    def _forget(self) -> None:
        """A forked child, such as a data-loader worker, has no thread of ours."""
        try:
            previous = self._set_fd(-1)
            if previous != self._number:
                self._set_fd(previous)  # of the job, whose child has it without us
            if self._is_ours():
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
        except (ValueError, OSError):
            pass  # not in the main thread: the handler itself sees that it is in a child
        self._allow_term()


def _default_term() -> None:
    set_default(signal.SIGTERM)


def _die_of_term() -> None:
    _default_term()
    os.kill(os.getpid(), signal.SIGTERM)
