"""The probe's one thread: a beat a second, and answers to the supervisor."""

from __future__ import annotations

import json
import os
import select
import socket
import time
from typing import Callable

from .. import breaker, cuda, descriptors, files, progress, switch
from ..beat import Beat
from ..descriptors import Descriptor
from ..exit import crash
from ..exit.exceptions import ExceptionKeeper
from ..handlers.signals import SignalDumps
from ..heap import HEAP
from ..identity import Identity
from ..recorder import coalescing, dumps, peers
from ..threads import OwnThread
from . import visitors

THREAD_NAME = "whystuck-probe"

_BEAT_EVERY_S = 1.0
# After the job has closed a descriptor of ours.
_ALERT_S, _ALERT_LOOK_S = 0.5, 0.005
_REQUEST_TIMEOUT_S = 1.0
_STOP_TIMEOUT_S = 2.0


class Server:
    """Beats, and serves ``dump`` requests on the unix socket ``probe-PID``."""

    def __init__(
        self,
        identity: Identity,
        signal_dumps: SignalDumps,
        exceptions: ExceptionKeeper,
        every_second: Callable[[], None],
        on_disarm: Callable[[str], None],
    ) -> None:
        self._identity = identity
        self._signal_dumps = signal_dumps
        self._exceptions = exceptions
        self._beat = Beat()
        self._groups = progress.GroupWriter()
        self._switch = switch.make_switch(lambda: identity.rank, progress.COUNTS)
        self._listen()
        self._pipe: tuple[Descriptor, ...] = ()
        self._make_pipe()
        self._has_stopped = False
        self._alert_until_s = 0.0
        self._thread = OwnThread(self._run, THREAD_NAME)
        self._requests: dict[str, Callable[[str], bool]] = {
            "dump": dumps.dump_recorder,
            "peers": peers.dump_peers,
            "switch": self._look_at_switch,
        }
        self._every_second = (
            self.beat,
            breaker.Breaker(lambda part: self._disarm(part, on_disarm), switch.PARTS.is_on).look,
            self._exceptions.watch,
            self._signal_dumps.look,
            self._write_records,
            crash.finish,
            self._switch.look,
            every_second,
            HEAP.look,
        )

    def start(self) -> None:
        """Start the thread; it never keeps the process alive.

        What is switched on from the start is on before that.
        """
        _attempt(self._switch.look)
        try:
            self._thread.start()
        except Exception:
            # A beat that nobody renews would be taken for that of a rank which keeps the GIL.
            self._beat.remove()
            os.unlink(files.path_of("probe"))
            raise

    def stop(self) -> None:
        """End the thread, before the interpreter is taken down around it.

        A thread that comes back from C++ into an interpreter that is gone ends the process.
        """
        self._has_stopped = True
        self.wake()
        self._thread.join(_STOP_TIMEOUT_S)

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread.is_alive()

    def wake(self) -> None:
        """Have the thread look at once at what has changed; it does so within a second anyway."""
        fd = self._pipe[1].fd
        if fd >= 0:
            os.write(fd, b"x")

    def beat(self) -> None:
        """Write one beat now."""
        self._beat.write(self._identity.rank, self._identity.world_size)

    def _look_at_switch(self, _: str) -> bool:
        """Look, and tell how far the job is, before the second is over."""
        _attempt(self._switch.look)
        self.beat()
        return True

    def _write_records(self) -> None:
        if not files.why_off(files.RECORDS):
            _attempt(self._groups.write_if_changed)
            coalescing.WRITER.write_if_changed()

    def _disarm(self, part: str, others: Callable[[str], None]) -> None:
        _attempt(lambda: others(part))
        self._switch.turn_off(part)

    def _listen(self) -> None:
        path = files.path_of("probe")
        if os.path.exists(path):
            os.unlink(path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
            one.bind(path)
            one.listen(8)
            one.setblocking(False)
            self._socket = Descriptor(os.dup(one.fileno()), self._listen)

    def _make_pipe(self) -> None:
        """Make a pipe that tells at once when its other end is closed, by us or by the job."""
        for end in self._pipe:
            end.close()
        read_fd, write_fd = os.pipe()
        self._pipe = Descriptor(read_fd, self._make_pipe), Descriptor(write_fd, self._make_pipe)

    def _run(self) -> None:
        try:
            self._loop()
        except Exception:  # the job goes on without us
            return
        finally:
            self._signal_dumps.thread_ends()
            if not self._has_stopped:
                _attempt(crash.let_go)  # nobody would end a process that has slept through a signal
            _attempt(self._switch.tell)

    def _loop(self) -> None:
        next_beat_s = time.monotonic()
        while True:
            ready = self._wait(max(0.0, next_beat_s - time.monotonic()))
            if self._has_stopped:
                return
            if self._pipe[1].fd < 0 or time.monotonic() < self._alert_until_s:
                self._check()
            elif self._pipe[0].fd in ready:
                _attempt(lambda: os.read(self._pipe[0].fd, 64))
            if self._signal_dumps.wake_fd in ready:
                _attempt(self._signal_dumps.answer)
            if self._socket.fd in ready:
                self._serve()
            if time.monotonic() >= next_beat_s:
                next_beat_s = time.monotonic() + _BEAT_EVERY_S
                self._check()
                for task in self._every_second:
                    _attempt(task)

    def _check(self) -> None:
        if descriptors.check():
            # The job closes one after the other, and we may have come in the midst of that.
            self._alert_until_s = time.monotonic() + _ALERT_S

    def _wait(self, seconds: float) -> dict[int, int]:
        """Wait until there is something to do; return the descriptors that say so."""
        if time.monotonic() < self._alert_until_s:
            seconds = min(seconds, _ALERT_LOOK_S)
        # Not select, which knows no descriptor above 1023.
        sources = select.poll()
        # The job may close any of them, and have files of its own there.
        for fd in (self._pipe[0].fd, self._socket.fd, self._signal_dumps.wake_fd):
            if fd >= 0:
                sources.register(fd, select.POLLIN)
        # Rounded up: a wait that is too short is done again and again.
        return dict(sources.poll(int(seconds * 1000) + 1))

    def _serve(self) -> None:
        try:
            with socket.socket(fileno=os.dup(self._socket.fd)) as one:
                connection = visitors.accept(one)
            if connection is None:
                return
            with connection:
                connection.settimeout(_REQUEST_TIMEOUT_S)
                request = json.loads(connection.recv(65536))
                action = self._requests.get(str(request.get("op")))
                done = action is not None and action(str(request.get("path")))
                reason = "it captures a CUDA graph" if cuda.CAPTURES and not done else ""
                reply = {"ok": bool(done), "pid": os.getpid(), "reason": reason}
                connection.sendall(json.dumps(reply).encode())
        except (OSError, ValueError, AttributeError):
            return


def _attempt(task: Callable[[], object]) -> None:
    """Do one task; a full disk now must not cost the answers of later."""
    try:
        task()
    except Exception:  # the others, and the next second, go on
        return
