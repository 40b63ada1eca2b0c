"""Kineto in a process that is no rank: a job of one process, or one that nobody supervises."""

from __future__ import annotations

import atexit
import os
import sys
import threading

from .. import descriptors, files
from ..identity import Identity
from ..threads import OwnThread
from . import client

TYPE_CHECKING = False  # not from typing, whose import alone takes milliseconds
if TYPE_CHECKING:
    from collections.abc import Mapping

THREAD_NAME = "whystuck-kineto"
# Set for the children of a process that polls: its pid, and the local rank it has.
CLAIM_ENV = "WHYSTUCK_KINETO"
_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed", "horovodrun", "colossalai"})
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands")
_MAX_WORDS = 8
_EVERY_S = 1.0
_STOP_TIMEOUT_S = 2.0


def start() -> None:
    """Let Kineto poll where this process trains, and look after it once a second."""
    if not is_worker(os.environ, sys.argv, list(getattr(sys, "orig_argv", sys.argv))):
        return
    own = client.of_this_process()
    own.lead()
    if not own.is_wanted:
        return
    os.environ[CLAIM_ENV] = f"{os.getpid()}:{os.environ.get('LOCAL_RANK', '')}"
    keeper = Keeper(own)
    atexit.register(keeper.stop)
    keeper.start()


def is_worker(environment: Mapping[str, str], argv: list[str], command: list[str]) -> bool:
    """Tell whether a process may train, and is no launcher and no helper of one that does.

    Args:
        environment: Its variables; the claim of a rank is added to them.
        argv: The arguments of its script, the script first.
        command: The whole command line.
    """
    if os.path.basename(argv[0] if argv else "") in _LAUNCHERS:
        return False
    words = command[1:_MAX_WORDS]
    # Of all that the standard library starts for itself, such as workers that are spawned.
    if any(word.startswith("from multiprocessing") for word in words):
        return Identity().read_environment()
    if any(word.startswith(_LAUNCHER_MODULES) for word in words):
        return False
    if Identity().read_environment():
        return True
    if _pid_of(environment.get(files.CLAIM_ENV, "").partition(":")[2]) not in {0, os.getpid()}:
        return False
    pid, _, local_rank = environment.get(CLAIM_ENV, "").partition(":")
    return _pid_of(pid) in {0, os.getpid()} or environment.get("LOCAL_RANK", "") != local_rank


def _pid_of(text: str) -> int:
    return int(text) if text.isdigit() else 0


class Keeper:
    """A thread that does what is due once a second, and lets go of all at the exit."""

    def __init__(self, own: client.Kineto) -> None:
        self._kineto = own
        self._pid = os.getpid()
        self._ends = threading.Event()
        self._thread = OwnThread(self._run, THREAD_NAME)

    def start(self) -> None:
        """Start the thread; it never keeps the process alive."""
        self._thread.start()

    def stop(self) -> None:
        """End it, and leave; called at the exit of the process, and in forked children too."""
        if os.getpid() != self._pid:
            return
        try:
            self._ends.set()
            self._thread.join(_STOP_TIMEOUT_S)
            self._kineto.leave()
        except Exception:  # the process is on its way out
            return

    def _run(self) -> None:
        while not self._ends.wait(_EVERY_S):
            try:
                descriptors.check()
                if files.is_disabled():
                    self._kineto.rest()
                self._kineto.look()
            except Exception:  # the next second may be better
                continue
