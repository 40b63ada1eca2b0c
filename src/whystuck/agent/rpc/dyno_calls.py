"""The calls of dynolog's ``dyno``: same names, same replies, so that its clients need no change.

Replies are compact JSON with sorted keys: there are scripts that search them as text.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from whystuck.agent.interfaces import Registry, RpcCall, Tracer
from whystuck.agent.ondemand.config_text import RawConfig, read_raw_config
from whystuck.agent.ondemand.trace_contents import NO_FLOPS, NO_MEMORY, NO_MODULES
from whystuck.agent.rpc.frames import encode_object
from whystuck.evidence.agent import (
    ProcessEntry,
    ProcessKind,
    TraceProgress,
    TraceRequest,
    TraceState,
)
from whystuck.evidence.decoding import convert
from whystuck.evidence.errors import WhystuckError

_LOGGER = logging.getLogger(__name__)
DYNOLOG_VERSION = "0.6.0"
"""The version of dynolog whose calls these are; that of ours is in `whystuck.status`."""
_ALL_PIDS = ((), (0,))
_TRIGGERED = frozenset(
    {TraceState.PENDING, TraceState.WARM_UP, TraceState.COLLECTING, TraceState.WRITING}
)
_MAX_NOTES = 16


class _OnDemand(msgspec.Struct, kw_only=True):
    """What `setKinetOnDemandRequest` takes; the defaults are dynolog's."""

    config: str
    pids: list[int]
    job_id: int = 0
    process_limit: int = 1000


class DynoCalls:
    """Answers the calls of dynolog for the processes in a registry."""

    def __init__(self, registry: Registry, tracer: Tracer) -> None:
        self._registry = registry
        self._tracer = tracer

    def table(self) -> dict[str, RpcCall]:
        """Return the calls by their name."""
        return {
            "getStatus": self._get_status,
            "getVersion": self._get_version,
            "setKinetOnDemandRequest": self._set_on_demand,
            "dcgmProfPause": self._pause,
            "dcgmProfResume": self._resume,
        }

    async def _get_status(self, _request: Mapping[str, Any]) -> bytes:
        return encode_object({"status": 1})

    async def _get_version(self, _request: Mapping[str, Any]) -> bytes:
        return encode_object({"version": DYNOLOG_VERSION})

    async def _pause(self, request: Mapping[str, Any]) -> bytes:
        # We never hold DCGM, so there is nothing to pause, and other tools can have it.
        is_whole = "duration_s" in request
        return encode_object({"status": False if is_whole else "failed"})

    async def _resume(self, _request: Mapping[str, Any]) -> bytes:
        return encode_object({"status": False})

    async def _set_on_demand(self, request: Mapping[str, Any]) -> bytes:
        if "config" not in request or "pids" not in request:
            return _refuse("failed")
        try:
            wanted = convert(request, _OnDemand)
            return self._start(wanted)
        except msgspec.ValidationError as error:
            return _refuse(f"failed with exception = {error}")
        except WhystuckError as error:
            _LOGGER.warning("a trace was refused: %s; hint: %s", error.message, error.hint)
            return _refuse(f"failed with exception = {error.message}; {error.hint}")

    def _start(self, wanted: _OnDemand) -> bytes:
        pids = tuple(wanted.pids)
        pids = () if pids in _ALL_PIDS else pids
        found = self._registry.match(TraceRequest(pids=pids))
        in_job = [one for one in found if wanted.job_id in (0, one.job_number)]
        matched = choose_processes(in_job, pids)
        # dynolog compares without a sign: a negative limit is none.
        limit = wanted.process_limit if wanted.process_limit >= 0 else len(matched)
        progress = self._ask(wanted.config, matched[:limit])
        _LOGGER.info(
            "a client of dynolog wants a trace of job %d, pids %s: %d processes match",
            wanted.job_id,
            list(pids),
            len(matched),
        )
        notes = _note_config(wanted.config) if progress else []
        return _reply(matched, progress, notes)

    def _ask(self, config: str, chosen: Sequence[ProcessEntry]) -> list[TraceProgress]:
        if not chosen:
            return []
        request = TraceRequest(
            id=uuid.uuid4().hex[:16],
            pids=tuple(one.pid for one in chosen),
            process_limit=len(chosen),
        )
        return self._tracer.start_raw(config, request)


def choose_processes(found: Sequence[ProcessEntry], pids: Sequence[int]) -> list[ProcessEntry]:
    """Return those that a trace is of any use for, in their order.

    A launcher runs nothing, and loaders of data run beside their rank, so both are left out unless
    they are all there is, or, for a loader, its own pid was given.
    """
    workers = [one for one in found if one.kind in {ProcessKind.RANK, ProcessKind.PROCESS}]
    named = {
        one.pid
        for one in found
        if one.kind == ProcessKind.HELPER and (one.pid in pids or told_pid(one) in pids)
    }
    if not workers and not named:
        return [one for one in found if one.pid in pids or told_pid(one) in pids]
    kept = {one.pid for one in workers} | named
    return [one for one in found if one.pid in kept]


def told_pid(entry: ProcessEntry) -> int:
    """Return the pid that a process sees itself, which Kineto puts into the name of its file."""
    return entry.told_pids[0] if entry.told_pids else entry.pid


def _note_config(config: str) -> list[str]:
    """Return what the client should know of its configuration; the tracer has taken it."""
    raw = read_raw_config(config)
    notes = []
    if "PROFILE_MEMORY" in raw.dropped:
        notes.append("PROFILE_MEMORY is left out: its thread would spin until the job ends")
    if _is_on(raw, "PROFILE_PROFILE_MEMORY"):
        notes.append(f"PROFILE_PROFILE_MEMORY: {NO_MEMORY}")
    if _is_on(raw, "PROFILE_WITH_FLOPS"):
        notes.append("PROFILE_WITH_FLOPS: " + NO_FLOPS.format(shapes="--record-shapes"))
    if _is_on(raw, "PROFILE_WITH_MODULES") and not raw.has_stacks:
        notes.append("PROFILE_WITH_MODULES: " + NO_MODULES.format(stacks="--with-stacks"))
    if 0 < raw.start_time_ms < time.time() * 1000:
        notes.append("PROFILE_START_TIME has passed: Kineto will trace nothing")
    return notes


def _is_on(raw: RawConfig, key: str) -> bool:
    return raw.lines.get(key, "").lower() in {"y", "t", "true", "yes", "1"}


def _reply(
    matched: Sequence[ProcessEntry], progress: Sequence[TraceProgress], notes: list[str]
) -> bytes:
    told = {one.pid: told_pid(one) for one in matched}
    begun = [told.get(one.pid, one.pid) for one in progress if one.state in _TRIGGERED]
    busy = sum(one.state == TraceState.BUSY for one in progress)
    fields: dict[str, Any] = {
        "activityProfilersBusy": busy,
        "activityProfilersTriggered": begun,
        "eventProfilersBusy": 0,
        "eventProfilersTriggered": [],
        "processesMatched": [told_pid(one) for one in matched],
    }
    notes += [
        f"pid {told.get(one.pid, one.pid)}: {one.reason or one.state}"
        for one in progress
        if one.state not in _TRIGGERED
    ]
    if notes:
        # Clients print the reply, and ignore what they do not know.
        fields["notes"] = notes[:_MAX_NOTES]
    return encode_object(fields)


def _refuse(status: str) -> bytes:
    # The client ends with a panic where `processesMatched` is missing.
    return encode_object({"processesMatched": [], "status": status})
