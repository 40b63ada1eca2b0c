"""Puts the parts of the agent together in one loop, and ends them in good order."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from whystuck import __version__
from whystuck.agent.agent_folder import agent_folder, claim_folder
from whystuck.agent.agent_list import remove_agent, write_agent
from whystuck.agent.config import AgentConfig, Launch
from whystuck.agent.config_file import read_settings
from whystuck.agent.lifeline import Lifeline
from whystuck.agent.limits import LOOK_S, OwnLimits
from whystuck.agent.log import AgentLog
from whystuck.agent.parts import Core, Part
from whystuck.agent.reload import plan_reload
from whystuck.agent.service_manager import ServiceManager
from whystuck.collect.processes.allocator import return_memory, use_one_arena
from whystuck.evidence.agent import AGENT_FILE, AgentRecord
from whystuck.evidence.errors import UsageError, WhystuckError
from whystuck.evidence.private import private_files

_LOGGER = logging.getLogger(__name__)

_FOLDER_LOOK_S = 2.0
_PART_STOP_S = 3.0
_LAST_WAIT_S = 2.0


def run(config: AgentConfig | None = None, launch: Launch | None = None) -> int:
    """Serve until a signal, and return the exit code.

    Args:
        config: The settings; by default what ``launch`` says.
        launch: How the agent was started; a reload goes by it.

    Raises:
        UsageError: The folder is taken, or something that the user asked for does not work.
    """
    use_one_arena()
    launch = launch or Launch()
    config = config or read_settings(launch)
    with private_files():
        # Before the log, which may lie in it.
        folder = agent_folder(config.agent.folder, is_shared=config.fabric.all_users)
        log = AgentLog()
        try:
            log.set_file(config.agent.log_file, config.agent.log_max_bytes)
            code = asyncio.run(Daemon(config, launch, log).serve(folder))
        finally:
            log.close()
    _leave_stuck_threads(code)
    return code


class Daemon:
    """One agent, from its start to its end."""

    def __init__(self, config: AgentConfig, launch: Launch, log: AgentLog) -> None:
        self._config = config
        self._launch = launch
        self._agent_log = log
        self._manager = ServiceManager()
        self._signals = 0
        self._ending = asyncio.Event()
        self._reloads: set[asyncio.Task[None]] = set()
        self._parts: list[Part] = []
        self._running: list[Part] = []
        self._started_ns = time.time_ns()

    async def serve(self, folder: Path) -> int:
        """Start all parts in a folder of the agent, wait for the end, and stop them."""
        self._listen_to_signals()
        self._claim = claim_folder(folder, is_shared=self._config.fabric.all_users)
        lifeline = None
        try:
            self._core = Core(self._config, self._launch, self._claim, self._write_record)
            self._core.status = self._describe
            self._core.count = self._count
            self._parts = _make_parts(self._core)
            self._limits = OwnLimits(self._config.limits, self._core.set_pace)
            if self._launch.job_dir:
                lifeline = Lifeline(Path(self._launch.job_dir), self._end)
            await self._start_all(self._parts)
            self._tell_start()
            await self._wait_for_end()
        finally:
            if lifeline:
                lifeline.close()
            await self._stop_all()
        return 0

    # ------------------------------------------------------------------------------- start

    async def _start_all(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if self._ending.is_set():
                return
            await self._start(part)

    async def _start(self, part: Part) -> None:
        """Start one; one that does not work is told of, unless the user asked for exactly it."""
        try:
            await part.start(self._config)
        except WhystuckError as error:
            if _is_asked(part, self._launch):
                # Whatever kind of error the part makes of it, the option cannot be used.
                raise UsageError(error.message, hint=error.hint) from error
            await self._give_up(part, error)
        except Exception as error:
            _LOGGER.exception("%s is off: it failed to start", part.name)
            self._core.missing[part.name] = f"{type(error).__name__}: {error}"
            await self._stop(part)
        else:
            self._core.missing.pop(part.name, None)
            self._running.append(part)

    async def _give_up(self, part: Part, error: WhystuckError) -> None:
        _LOGGER.warning("%s is off: %s; hint: %s", part.name, error.message, error.hint)
        self._core.missing[part.name] = error.message
        await self._stop(part)

    def _tell_start(self) -> None:
        self._write_record()
        self._manager.tell("READY=1", f"STATUS=serving {self._claim.folder}")
        self._manager.start_watchdog()
        where = f", TCP port {self._core.port}" if self._core.port else ""
        _LOGGER.info(
            "whystuck agent %s serves %s%s, pid %d",
            __version__,
            self._claim.folder,
            where,
            os.getpid(),
        )

    def _write_record(self) -> None:
        try:
            write_agent(self._record())
        except OSError as error:
            why = error.strerror or error
            _LOGGER.warning("commands cannot find this agent: its record is not written: %s", why)

    def _record(self) -> AgentRecord:
        return AgentRecord(
            pid=os.getpid(),
            node=self._core.node,
            folder=str(self._claim.folder),
            port=self._core.port,
            is_abstract=self._config.fabric.abstract,
            job_dir=self._launch.job_dir,
            version=__version__,
            started_ns=self._started_ns,
            metrics_port=self._core.metrics_port,
        )

    def _describe(self) -> dict[str, Any]:
        """Return what ``whystuck.status`` tells."""
        told: dict[str, Any] = {
            "agent": self._record(),
            "processes": len(self._core.registry.list_all()),
            "cpu_percent": round(self._limits.cpu_percent, 3),
            "rss_bytes": self._limits.rss_bytes,
            "pace": self._limits.pace,
            "counts": {},
            "missing": dict(self._core.missing),
        }
        for part in self._running:
            told["counts"].update(part.counts())
            told["missing"].update(part.problems())
        return told

    def _count(self) -> dict[tuple[str, str], float]:
        """Return what happened in all parts, for the figures of the agent; called in a thread."""
        return {
            (name, event): float(number)
            for part in tuple(self._running)
            for name, counts in part.counts().items()
            for event, number in counts.items()
        }

    # -------------------------------------------------------------------------------- life

    async def _wait_for_end(self) -> None:
        looks = [
            asyncio.create_task(self._repeat(LOOK_S, self._look_at_self)),
            asyncio.create_task(self._repeat(_FOLDER_LOOK_S, self._look_at_folder)),
        ]
        await self._ending.wait()
        for one in [*looks, *self._reloads]:
            one.cancel()

    async def _repeat(self, every_s: float, look: object) -> None:
        assert callable(look)  # noqa: S101 - for the type checker
        while True:
            await asyncio.sleep(every_s)
            try:
                await look()
            except Exception:
                _LOGGER.exception("the agent could not look after itself")

    async def _look_at_self(self) -> None:
        self._limits.look()
        return_memory()

    async def _look_at_folder(self) -> None:
        """Make anew what somebody has removed; the socket of jobs looks after itself."""
        folder = self._claim.folder
        if not self._claim.is_held():
            self._claim.renew()
        lost = [one for one in self._running if one.is_lost()]
        if lost or not (folder / AGENT_FILE).exists():
            _LOGGER.warning("files in %s were removed and are made anew", folder)
            for part in lost:
                await self._restart(part)
            self._write_record()

    async def _restart(self, part: Part) -> None:
        self._running.remove(part)
        await self._stop(part)
        await self._start(part)

    # ------------------------------------------------------------------------------ signals

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_end_signal, number)
        # Under nohup a hang-up is to be ignored, and stays so.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self._on_hang_up)

    def _on_end_signal(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._signals > 1:
            _LOGGER.warning("ended at once by a second signal")
            for part in self._running:
                part.abandon()
            remove_agent(self._claim.folder)
            self._agent_log.close()
            os._exit(128 + number)
        self._end(f"{number.name} came")

    def _end(self, reason: str) -> None:
        if not self._ending.is_set():
            _LOGGER.info("ends: %s", reason)
            self._ending.set()

    def _on_hang_up(self) -> None:
        if not self._launch.config_file and _is_on_terminal():
            self._end("its terminal was closed")
            return
        task = asyncio.get_running_loop().create_task(self._reload())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _reload(self) -> None:
        self._manager.tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            await self._apply(read_settings(self._launch))
        except WhystuckError as error:
            _LOGGER.warning("nothing was changed: %s; hint: %s", error.message, error.hint)
        finally:
            self._manager.tell("READY=1")

    async def _apply(self, wanted: AgentConfig) -> None:
        plan = plan_reload(self._config, wanted)
        for part in self._parts:
            part.check(plan.config)
        # Also opens the same file anew, for those who rotate it.
        self._agent_log.set_file(plan.config.agent.log_file, plan.config.agent.log_max_bytes)
        self._config = plan.config
        self._limits.limits = plan.config.limits
        for part in self._parts:
            if part.is_always_reloaded or plan.touches(part.sections):
                if part in self._running:
                    self._running.remove(part)
                    await self._stop(part)
                await self._start_again(part)
        self._write_record()
        _LOGGER.info("%s", plan.in_words())

    async def _start_again(self, part: Part) -> None:
        """Start a part with its new settings; an agent that runs does not end for one."""
        try:
            await self._start(part)
        except WhystuckError as error:
            await self._give_up(part, error)

    # --------------------------------------------------------------------------------- end

    async def _stop_all(self) -> None:
        """Take no new requests, let traces that are being written end, then close everything."""
        self._manager.tell("STOPPING=1")
        self._manager.close()
        for part in [one for one in self._running if one.takes_requests]:
            await self._stop(part)
            self._running.remove(part)
        core: Core | None = getattr(self, "_core", None)
        if core and self._ending.is_set():
            await core.finish(self._config.agent.stop_s)
        for part in reversed(self._running):
            await self._stop(part)
        if core:
            core.close()
        remove_agent(self._claim.folder)
        self._claim.release()

    async def _stop(self, part: Part) -> None:
        try:
            async with asyncio.timeout(_PART_STOP_S):
                await part.stop()
        except Exception:
            _LOGGER.exception("%s did not stop in good order", part.name)
            part.abandon()


def _is_asked(part: Part, launch: Launch) -> bool:
    return any(key in launch.options for key in part.asked_by)


def _is_on_terminal() -> bool:
    with suppress(OSError, ValueError):
        return sys.stderr.isatty()
    return False


def _leave_stuck_threads(code: int) -> None:
    """Leave at once when a thread still waits, as for a file system that hangs."""
    until_s = time.monotonic() + _LAST_WAIT_S
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(max(0.0, until_s - time.monotonic()))
            if thread.is_alive():
                sys.stdout.flush()
                os._exit(code)


def _make_parts(core: Core) -> list[Part]:
    """Return all parts, in the order of their start."""
    from whystuck.agent.measuring import Metrics
    from whystuck.agent.serving import CommandSocket, FabricSocket, TcpPort
    from whystuck.agent.trace_output import TraceOutput

    return [
        *(FabricSocket(core), CommandSocket(core), TcpPort(core)),
        *(Metrics(core), TraceOutput(core)),
    ]
