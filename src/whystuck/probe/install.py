"""Putting the parts to work, each at the moment from which it can work."""

from __future__ import annotations

import os
import sys

# Only what is needed when the interpreter starts; what comes with torch is imported then.
from . import capture, files, wire
from .exceptions import ExceptionKeeper
from .identity import Identity

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from typing import Callable

    from .inspect.control import Inspection
    from .oplog.log import OpLog
    from .oplog.recorder import Recorder
    from .server import Server
    from .switch import Setting


class Probe:
    """What is installed in this process; one for each process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.identity = Identity()
        self.exceptions = ExceptionKeeper(self.identity)
        self.server: Server | None = None
        self.recorder: Recorder | None = None
        self.inspection: Inspection | None = None
        self.is_capturing = False
        self.knows_torch = False

    def start_interpreter(self) -> None:
        """Do what can be done before torch is there."""
        if self.identity.read_environment():
            self._start_logs()
            self._say_hello()
        if "torch" not in sys.modules:
            _after_import_of_torch(self.torch_is_ready)

    def torch_is_ready(self) -> None:
        """Do what needs torch; called twice where both doors are open."""
        if self.knows_torch or os.getpid() != self.pid:
            return
        self.knows_torch = True
        from . import recorder_names

        _attempt(recorder_names.use_names_of_this_torch)
        if "torch.distributed.distributed_c10d" not in sys.modules:
            return
        from . import progress

        _attempt(progress.watch_p2p)
        _attempt(lambda: progress.watch_groups(self.group_was_made))
        if self.identity.rank >= 0 or self.identity.read_environment():
            self._start_logs()
            self._start_rank()

    def group_was_made(self, rank: int, world_size: int) -> None:
        """Learn the rank from torch, which is right where the environment is not."""
        if os.getpid() != self.pid:
            return
        self.identity.join(rank, world_size)
        if self.identity.rank < 0:
            return
        self._start_logs()
        self._start_rank()
        self._say_hello()
        if self.recorder is not None:
            _attempt(self.recorder.groups_changed)
        if self.server is not None:
            _attempt(self.server.beat)

    def _start_logs(self) -> None:
        _attempt(self.exceptions.watch)
        if not self.is_capturing and self.identity.rank >= 0:
            self.is_capturing = True
            _attempt(lambda: capture.capture_output(self.identity.rank))

    def _start_rank(self) -> None:
        if self.server is not None:
            return
        from . import crash, leaving, progress, signals, switch, worker_server
        from .server import Server

        signal_dumps = signals.SignalDumps()
        switch.PARTS.register("comm", self._switch_recorder)
        switch.PARTS.register("inspect", self._switch_inspection, is_spec=True)
        self.server = Server(self.identity, signal_dumps, self.exceptions, self._beat_recorder)
        _attempt(signals.register_stacks)
        _attempt(crash.keep_fatal_signals)
        _attempt(signal_dumps.install)
        _attempt(worker_server.start_worker_server)
        _attempt(progress.watch_optimizers)
        server = self.server
        _attempt(lambda: leaving.Leaving(self.identity, self._stop).watch())
        server.start()
        self._say_hello()

    def _switch_recorder(self, setting: Setting) -> str:
        if self.recorder is None:
            if setting.value == "off":
                return ""
            from .oplog.recorder import Recorder

            self.recorder = Recorder(self.identity)
        return self.recorder.switch(setting.generation, on=setting.value == "on")

    def _switch_inspection(self, setting: Setting) -> str:
        if self.inspection is None:
            if setting.value == "off":
                return ""
            from .inspect.control import Inspection

            self.inspection = Inspection(self._find_log, lambda: self.identity.rank)
        return self.inspection.switch(setting)

    def _find_log(self) -> OpLog | None:
        return self.recorder.log if self.recorder is not None and self.recorder.is_on else None

    def _beat_recorder(self) -> None:
        if self.recorder is not None:
            self.recorder.beat()

    def _stop(self) -> None:
        if self.inspection is not None:
            _attempt(self.inspection.close)
        if self.recorder is not None:
            _attempt(self.recorder.close)
        if self.server is not None:
            self.server.stop()

    def _say_hello(self) -> None:
        torch = sys.modules.get("torch")
        member = "true" if self.identity.is_member else "false"
        wire.tell(
            "hello",
            self.identity.rank,
            f'"world_size": {self.identity.world_size}, "is_member": {member}, '
            f'"python": "{sys.version.split()[0]}", "torch": "{getattr(torch, "__version__", "")}"',
        )


_PROBES: list[Probe] = []


def _probe() -> Probe:
    if not _PROBES or _PROBES[-1].pid != os.getpid():
        _PROBES.append(Probe())
    return _PROBES[-1]


def start_interpreter() -> None:
    """Start what can be started when Python starts."""
    if os.path.isdir(files.job_dir()):
        _probe().start_interpreter()


def torch_is_ready() -> None:
    """Start what needs torch."""
    if os.path.isdir(files.job_dir()):
        _probe().torch_is_ready()


def _attempt(step: Callable[[], object]) -> None:
    """Do one step; a part that fails must not take the others with it."""
    try:
        step()
    except Exception:  # the job goes on without this part
        return


def _after_import_of_torch(call: Callable[[], None]) -> None:
    """Call once, when the first ``import torch`` has ended."""
    sys.meta_path.insert(0, _TorchFinder(call))  # type: ignore[arg-type] # object for any


class _TorchFinder:
    """A finder that finds nothing itself, and follows torch's own loader to its end."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        """Return torch's own spec, whose loader calls us after it has run."""
        del path, target
        if name != "torch":
            return None
        sys.meta_path.remove(self)  # type: ignore[arg-type]
        from importlib.util import find_spec

        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            _attempt(lambda: _follow(spec.loader, self._call))
        return spec


def _follow(loader: object, call: Callable[[], None]) -> None:
    run = loader.exec_module  # type: ignore[attr-defined]

    def exec_module(module: object) -> None:
        del loader.exec_module  # type: ignore[attr-defined]
        run(module)
        _attempt(call)

    loader.exec_module = exec_module  # type: ignore[attr-defined]
