"""Calls of our own: processes, traces from their start to their file, and how the agent is.

A reply is a JSON object. One that has ``error`` says in it what went wrong, in ``hint`` what to do,
and in ``kind`` which of `ERROR_KINDS` it is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec

from whystuck.agent.interfaces import Registry, RpcCall, Tracer
from whystuck.agent.processes.step_counter import fill_steps
from whystuck.agent.rpc.frames import encode_object
from whystuck.evidence.agent import (
    ENDED,
    ProcessEntry,
    ProcessKind,
    TraceProgress,
    TraceRequest,
    TraceState,
)
from whystuck.evidence.decoding import convert
from whystuck.evidence.errors import WhystuckError
from whystuck.evidence.ranks import format_ranks
from whystuck.guarded.folders import open_file
from whystuck.guarded.results import open_own_folder

_LOGGER = logging.getLogger(__name__)
ERROR_KINDS = ("usage", "unknown-trace", "unreadable", "several-jobs")
MAX_WAIT_S = 30.0
MAX_PIECE_BYTES = 8 << 20
"""One piece of a file; base64 makes a third more of it."""
_SHOWN_JOBS = 5
_SHOWN_PIDS = 20

_Text = Annotated[str, msgspec.Meta(max_length=256)]
_Answer = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]


class CallRefusedError(WhystuckError):
    """A call that cannot be answered; ``kind`` is one of `ERROR_KINDS`."""

    def __init__(self, message: str, *, hint: str = "", kind: str = "usage") -> None:
        super().__init__(message, hint=hint)
        self.kind = kind


class _ById(msgspec.Struct, kw_only=True):
    """``seen`` are the states that the client knows, by pid: news are told at once."""

    id: _Text
    timeout_s: float = 0.0
    seen: dict[int, _Text] = {}


class _Piece(msgspec.Struct, kw_only=True):
    id: _Text
    pid: int
    offset: Annotated[int, msgspec.Meta(ge=0)] = 0
    size_bytes: Annotated[int, msgspec.Meta(ge=1)] = MAX_PIECE_BYTES


class OwnCalls:
    """Answers the calls of our own commands.

    Args:
        registry: The processes of this node.
        tracer: Who takes the traces.
        status: Returns what ``whystuck.status`` tells: the agent's record, counters, gaps.
    """

    def __init__(
        self, registry: Registry, tracer: Tracer, status: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._registry = registry
        self._tracer = tracer
        self._status = status

    def table(self) -> dict[str, RpcCall]:
        """Return the calls by their name."""
        return {
            "whystuck.status": _answering(self._tell_status),
            "whystuck.processes": _answering(self._list),
            "whystuck.trace.start": _answering(self._start),
            "whystuck.trace.progress": _answering(self._progress),
            "whystuck.trace.cancel": _answering(self._cancel),
            "whystuck.trace.fetch": _answering(self._fetch),
            "whystuck.trace.discard": _answering(self._discard),
        }

    async def _tell_status(self, _fields: Mapping[str, Any]) -> Mapping[str, Any]:
        return dict(self._status())

    async def _list(self, _fields: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"processes": [fill_steps(one) for one in self._registry.list_all()]}

    async def _start(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        request = convert(fields.get("request"), TraceRequest)
        if not request.id:
            request = msgspec.structs.replace(request, id=uuid.uuid4().hex[:16])
        try:
            if fields.get("is_one_job"):
                check_one_job(self._registry.match(request))
            progress = self._tracer.start(request)
        except WhystuckError as error:
            _LOGGER.warning("a trace was refused: %s; hint: %s", error.message, error.hint)
            raise
        _LOGGER.info("trace %s: %s: %d processes match", request.id, _say(request), len(progress))
        return {"id": request.id, "progress": progress}

    async def _progress(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        wanted = convert(fields, _ById, str_keys=True)
        found = self._find(wanted.id)
        has_news = {one.pid: str(one.state) for one in found} != wanted.seen
        if wanted.timeout_s > 0 and not has_news and not has_ended(found):
            found = await self._tracer.wait(wanted.id, min(wanted.timeout_s, MAX_WAIT_S))
        return {"progress": found}

    async def _cancel(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        wanted = convert(fields, _ById, str_keys=True)
        self._find(wanted.id)
        return {"progress": self._tracer.cancel(wanted.id)}

    async def _fetch(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a piece of a file that the tracer has written, and of no other."""
        wanted = convert(fields, _Piece)
        path = self._find_file(wanted.id, wanted.pid)
        size_bytes = min(wanted.size_bytes, MAX_PIECE_BYTES)
        piece, total_bytes = await asyncio.to_thread(_read_piece, path, wanted.offset, size_bytes)
        return {"data": piece, "offset": wanted.offset, "total_bytes": total_bytes, "file": path}

    async def _discard(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Remove a file that was kept only to be fetched."""
        wanted = convert(fields, _Piece)
        path = Path(self._find_file(wanted.id, wanted.pid))
        folder = Path(node_folder(wanted.id))
        if path.parent != folder:
            raise CallRefusedError(
                f"{path} was not made to be fetched", hint="it stays", kind="unreadable"
            )
        await asyncio.to_thread(_remove, path)
        return {"file": str(path)}

    def _find_file(self, request_id: str, pid: int) -> str:
        ours = [one for one in self._find(request_id) if one.pid == pid]
        path = ours[0].file if ours and ours[0].state == TraceState.WRITTEN else ""
        if not path.startswith("/"):
            raise CallRefusedError(
                f"trace {request_id} of pid {pid} is no file of this node",
                hint="only what was written can be fetched",
                kind="unreadable",
            )
        return path

    def _find(self, request_id: str) -> list[TraceProgress]:
        try:
            return self._tracer.progress(request_id)
        except KeyError:
            raise CallRefusedError(
                f"no trace has the id {request_id}",
                hint="the agent may have been started anew since",
                kind="unknown-trace",
            ) from None


def check_one_job(entries: Iterable[ProcessEntry]) -> None:
    """Refuse a request that would trace several jobs: nobody wants that by accident.

    Raises:
        CallRefusedError: It names the jobs.
    """
    kinds = (ProcessKind.RANK, ProcessKind.PROCESS)
    workers = [one for one in entries if one.kind in kinds]
    jobs = sorted({one.job or (str(one.job_number) if one.job_number else "") for one in workers})
    if len(jobs) > 1:
        shown = ", ".join(job or "one without a name" for job in jobs[:_SHOWN_JOBS])
        more = ", ..." if len(jobs) > _SHOWN_JOBS else ""
        raise CallRefusedError(
            f"{len(jobs)} jobs run here: {shown}{more}",
            hint="choose one with --job, or its processes with --pid",
            kind="several-jobs",
        )


def _say(request: TraceRequest) -> str:
    """Say in a few words what is wanted, of whom."""
    what = f"{request.iterations} iterations" if request.iterations else f"{request.duration_ms} ms"
    job = f" of job {request.job}" if request.job else ""
    ranks = f", ranks {format_ranks(request.ranks)}" if request.ranks else ""
    pids = f", pids {', '.join(map(str, request.pids[:_SHOWN_PIDS]))}" if request.pids else ""
    return f"{what}{job}{ranks}{pids} are wanted"


def node_folder(request_id: str) -> str:
    """Return where a node keeps what is to be fetched from it."""
    return f"/tmp/whystuck-trace-{request_id}"  # noqa: S108 - the id is random


def has_ended(progress: list[TraceProgress]) -> bool:
    """Return whether nothing will change any more."""
    return all(one.state in ENDED for one in progress)


def _answering(answer: _Answer) -> RpcCall:
    async def call(fields: Mapping[str, Any]) -> bytes | None:
        try:
            return encode_object(await answer(fields))
        except CallRefusedError as error:
            return _encode_error(error.message, error.hint, error.kind)
        except WhystuckError as error:
            return _encode_error(error.message, error.hint, "usage")
        except msgspec.ValidationError as error:
            return _encode_error(
                f"the request is not understood: {error}",
                "agent and command may be of different versions",
                "usage",
            )

    return call


def _encode_error(message: str, hint: str, kind: str) -> bytes:
    return encode_object({"error": message, "hint": hint, "kind": kind})


def _remove(path: Path) -> None:
    with suppress(OSError):
        folder = open_own_folder(str(path.parent))
        try:
            os.unlink(path.name, dir_fd=folder)
        finally:
            os.close(folder)
        path.parent.rmdir()  # the last one takes the folder along


def _read_piece(path: str, offset: int, size_bytes: int) -> tuple[bytes, int]:
    """Read from a regular file; a link or a pipe that lies there now is not what was written.

    Root reads only what lies where no other user has a say: it could be any file by now.
    """
    try:
        parent, _, name = path.rpartition("/")
        folder = open_own_folder(parent or "/")
        try:
            fd = open_file(folder, name)
        finally:
            os.close(folder)
        try:
            return os.pread(fd, size_bytes, offset), os.fstat(fd).st_size
        finally:
            os.close(fd)
    except (OSError, OverflowError, ValueError) as error:
        raise CallRefusedError(
            f"{path} cannot be read: {getattr(error, 'strerror', '') or error}",
            hint="it may have been moved since",
            kind="unreadable",
        ) from error
