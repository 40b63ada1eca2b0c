"""What comes with torch: the thread, the signals, and all that watches a rank at work."""

from __future__ import annotations

import functools
import os
import sys

from . import breaker, cuda, files, progress, switch
from .calling.attempts import attempt
from .exit import crash, leaving
from .handlers import signals
from .kineto.agent_discovery import find_agent
from .recorder import coalescing, names
from .serving.server import Server

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from .inspect.control import Inspection
    from .install import Probe
    from .kineto.client import Kineto
    from .marks.control import Marking
    from .oplog.log import OpLog
    from .oplog.recorder import Recorder
    from .switch import Setting


class Rank:
    """What is installed in a process that has torch."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._server: Server | None = None
        self.recorder: Recorder | None = None
        self._marking: Marking | None = None
        self._inspection: Inspection | None = None
        self._kineto: Kineto | None = None

    def torch_is_ready(self) -> None:
        """Watch what torch does, and start at once where the launcher told the rank."""
        attempt(names.use_names_of_this_torch)
        if "torch.distributed.distributed_c10d" not in sys.modules:
            return
        attempt(coalescing.watch)
        attempt(progress.watch_p2p)
        attempt(cuda.watch_graphs)
        attempt(lambda: progress.watch_groups(self.group_was_made))
        identity = self._probe.identity
        if identity.rank >= 0 or identity.read_environment():
            self._probe.start_logs()
            self._start()

    def group_was_made(self, rank: int, world_size: int) -> None:
        """Learn the rank from torch, which is right where the environment is not."""
        identity = self._probe.identity
        if os.getpid() != self._probe.pid:
            return
        identity.join(rank, world_size)
        if identity.rank < 0:
            return
        self._probe.start_logs()
        self._start()
        self._probe.say_hello()
        if self.recorder is not None:
            attempt(self.recorder.groups_changed)
        if self._marking is not None:
            attempt(self._marking.describe)
        if self._server is not None:
            attempt(self._server.beat)

    def _start(self) -> None:
        if self._server is not None:
            return
        identity = self._probe.identity
        signal_dumps = signals.SignalDumps()
        switch.PARTS.register("comm", self._switch_recorder)
        switch.PARTS.register("inspect", self._switch_inspection, is_spec=True)
        for key in switch.MARKS:
            switch.PARTS.register(key, functools.partial(self._switch_marks, key))
        exceptions = self._probe.exceptions
        server = self._server = Server(
            identity, signal_dumps, exceptions, self._every_second, self._disarm
        )
        attempt(progress.watch_optimizers)
        attempt(lambda: leaving.Leaving(identity, self._stop).watch())
        # Raises where no thread can start. It looks after what comes after it: descriptors that
        # the job closes, and a process that a fatal signal did not end.
        server.start()
        attempt(signals.register_stacks)
        attempt(signal_dumps.install)
        attempt(server.wake)
        attempt(self._lead_kineto)
        if server.is_alive():  # else nobody would end what sleeps after such a signal
            attempt(crash.keep_fatal_signals)
        self._probe.say_hello()
        self._probe.start_lines()

    def _switch_recorder(self, setting: Setting) -> str:
        if self.recorder is None:
            if setting.value == "off":
                return ""
            files.require_release()
            from .oplog.recorder import Recorder

            self.recorder = Recorder(self._probe.identity)
        return self.recorder.switch(setting.generation, on=setting.value == "on")

    def _switch_marks(self, key: str, setting: Setting) -> str:
        if self._marking is None:
            if setting.value == "off":
                return ""
            files.require_release()
            from .marks.control import Marking

            self._marking = Marking(self._probe.identity)
        self._marking.switch(key, setting.generation, on=setting.value == "on")
        return ""

    def _switch_inspection(self, setting: Setting) -> str:
        if self._inspection is None:
            if setting.value == "off":
                return ""
            files.require_release()
            from .inspect.control import Inspection

            self._inspection = Inspection(self._find_log, lambda: self._probe.identity.rank)
        if setting.value == "off":
            breaker.WAIVED.discard("inspection")
        else:
            breaker.WAIVED.add("inspection")
        return self._inspection.switch(setting)

    def _find_log(self) -> OpLog | None:
        return self.recorder.log if self.recorder is not None and self.recorder.is_on else None

    def _lead_kineto(self) -> None:
        if files.AGENT_ENV not in os.environ and not find_agent():
            return
        files.require_release()
        from .kineto import client

        own = client.of_this_process()
        if not own.is_wanted:  # it is where this process was a job of its own until now
            own.lead()
            self._kineto = own

    def _every_second(self) -> None:
        if self.recorder is not None:
            attempt(self.recorder.beat)
        if self._marking is not None:
            attempt(self._marking.beat)
        if self._inspection is not None:
            attempt(self._inspection.look)
        if self._kineto is not None:
            attempt(self._kineto.look)

    def _disarm(self, part: str) -> None:
        if part == files.ALL and self._kineto is not None:
            attempt(self._kineto.rest)

    def _stop(self) -> None:
        if self._inspection is not None:
            attempt(self._inspection.close)
        if self.recorder is not None:
            attempt(self.recorder.close)
        if self._marking is not None:
            attempt(self._marking.close)
        if self._server is not None:
            attempt(self._server.stop)
        if self._kineto is not None:
            attempt(self._kineto.leave)
