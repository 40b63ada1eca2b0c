"""The part that looks at the start whether traces can be put where the configuration says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from whystuck.agent.config import AgentConfig
from whystuck.agent.parts import Core, Part
from whystuck.evidence.errors import UsageError
from whystuck.guarded.remote import check_folder, local_path

_LOGGER = logging.getLogger(__name__)
_SETTING = "traces.output"
_LOOK_S = 3.0


class TraceOutput(Part):
    """Tells of a folder for traces that cannot be used before the first trace is lost to it."""

    name = "the folder of traces"

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._problem = ""

    async def start(self, config: AgentConfig) -> None:
        """Look once; stores behind URLs are not asked."""
        folder = local_path(config.traces.output) if config.traces.output else None
        if folder is None:
            return
        try:
            await _look(folder)
        except UsageError as error:
            self._problem = error.message
            # It goes on: a request can name another folder, and this one may come to be.
            _LOGGER.warning("%s: %s; hint: %s", _SETTING, error.message, error.hint)

    async def stop(self) -> None:
        """Forget what was seen."""
        self._problem = ""

    def problems(self) -> Mapping[str, str]:
        """Return why traces cannot be put there."""
        return {_SETTING: self._problem} if self._problem else {}


def _check(folder: Path) -> None:
    check_folder(folder.absolute())


async def _look(folder: Path) -> None:
    """Raise UsageError for a folder that cannot be used, also one that hangs."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="whystuck-output")
    try:
        work = asyncio.get_running_loop().run_in_executor(pool, _check, folder)
        await asyncio.wait_for(work, _LOOK_S)
    except TimeoutError:
        raise UsageError(
            f"traces cannot be put into {folder}: its file system does not answer",
            hint="is the server of that file system reachable?",
        ) from None
    finally:
        pool.shutdown(wait=False)
