"""Watches the figures of all jobs by the rules, and takes traces when one of them holds."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from whystuck.agent.interfaces import Tracer
from whystuck.agent.triggers.decisions import STALE_S, Decision, decide
from whystuck.agent.triggers.history import JobHistory
from whystuck.agent.triggers.observations import Key, read_looks
from whystuck.agent.triggers.rules import TriggerKind, TriggerRule, Whom
from whystuck.agent.triggers.trace_output import find_evidence, make_place, node_folder, sort_in
from whystuck.evidence.agent import ENDED, TraceProgress, TraceState
from whystuck.evidence.decoding import decode_json
from whystuck.evidence.errors import UsageError
from whystuck.evidence.nodes.metrics import Sample
from whystuck.evidence.trigger import TRIGGER_FILE, TriggerRecord
from whystuck.guarded.folders import folder_at, put_file, read_file

_LOGGER = logging.getLogger(__name__)
_MAX_JOBS: Final = 64
# So many looks fall into the time for which a rule must hold.
_LOOKS: Final = 10
_MAX_PAUSE_S: Final = 30.0
_MIN_PAUSE_S: Final = 0.5
_WAIT_S: Final = 300.0
_WAIT_PART_S: Final = 10.0
_REFUSED: Final = frozenset({TraceState.REFUSED, TraceState.EXPIRED})
STATE_FILE: Final = "triggers.json"
"""In the folder of the agent."""
_DAY_NS: Final = 86_400 * 10**9
_MAX_BYTES: Final = 1 << 20
_MAX_TIMES: Final = 1000
_MAX_RULES: Final = 256


def _serve_all(_pid: int) -> bool:
    return True


@dataclass
class _Watch:
    """One rule and one job: when it was looked at, and what is known to have been told."""

    looked_s: float = float("-inf")
    told_s: float = float("-inf")
    refusal: str = ""


class TriggerEngine:
    """A sink of figures that takes traces.

    Args:
        rules: What to watch for.
        tracer: Takes the traces; its guards hold here as well.
        folder: That of the agent: how often rules held is remembered in it.
        node: The name of this node.
        job_dir: The folder of the job, for an agent beside one job.
        serves: Whether the process with a pid asks this agent for work: no other can be traced.

    It is made on the loop on which the tracer lives. Figures are judged in the thread that writes
    them, and traces are taken on the loop.
    """

    name = "triggers"

    def __init__(
        self,
        rules: Sequence[TriggerRule],
        tracer: Tracer,
        folder: Path,
        *,
        node: str,
        job_dir: str = "",
        serves: Callable[[int], bool] = _serve_all,
    ) -> None:
        self._rules = tuple(rules)
        self._tracer = tracer
        self._folder = folder
        self._node = node
        self._job_dir = job_dir
        self._loop = asyncio.get_running_loop()
        self._serves = serves
        self._clock: Callable[[], float] = time.monotonic
        self._limits = RateLimits(folder / STATE_FILE)
        self._jobs: dict[str, JobHistory] = {}
        self._pids: dict[Key, int] = {}
        self._watches: dict[tuple[str, str], _Watch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    # ----------------------------------------------------------------- in the thread of the sink

    def write(self, samples: Sequence[Sample]) -> None:
        """Take a round, and judge it."""
        if not self._rules or self._is_closed:
            return
        now_s = self._clock()
        found = read_looks(samples, now_s, time.time_ns())
        self._pids = found.pids
        for (job, rank), look in found.looks:
            pid = found.pids.get((job, rank))
            if pid is not None and not self._serves(pid):
                continue
            if job in self._jobs or len(self._jobs) < _MAX_JOBS:
                self._jobs.setdefault(job, JobHistory()).note(rank, look)
        self._forget(now_s)
        for rule in self._rules:
            for job, history in self._jobs.items():
                if not rule.job or rule.job == job:
                    self._judge(rule, job, history, now_s)

    def close(self) -> None:
        """Judge nothing more; what is under way goes on."""
        self._is_closed = True

    def _forget(self, now_s: float) -> None:
        for history in self._jobs.values():
            history.forget(now_s - STALE_S)
        for job in [job for job, history in self._jobs.items() if not history.ranks]:
            del self._jobs[job]
            self._watches = {key: one for key, one in self._watches.items() if key[1] != job}

    def _judge(self, rule: TriggerRule, job: str, history: JobHistory, now_s: float) -> None:
        watch = self._watches.setdefault((rule.name, job), _Watch())
        pause_s = min(_MAX_PAUSE_S, max(_MIN_PAUSE_S, rule.for_s / _LOOKS))
        if now_s - watch.looked_s < pause_s:
            return
        watch.looked_s = now_s
        decision = decide(rule, history, now_s, watch.told_s)
        if decision is None:
            watch.refusal = ""
            return
        now_ns = time.time_ns()
        refusal = self._limits.refusal(rule, now_ns)
        if refusal:
            if not watch.refusal:  # once, and not at every look
                _LOGGER.info(
                    "trigger `%s` holds for job %s and takes no trace: %s", rule.name, job, refusal
                )
            watch.refusal = refusal
            return
        watch.told_s, watch.refusal = now_s, ""
        self._limits.note(rule, now_ns)
        with suppress(RuntimeError):  # the loop has just ended
            self._loop.call_soon_threadsafe(self._fire, rule, job, decision, self._pids)

    # -------------------------------------------------------------------------------- on the loop

    def _fire(self, rule: TriggerRule, job: str, decision: Decision, pids: dict[Key, int]) -> None:
        task = self._loop.create_task(self._take(rule, job, decision, pids))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """End what is under way: what is known of it so far is written."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(
        self, rule: TriggerRule, job: str, decision: Decision, pids: dict[Key, int]
    ) -> None:
        """Take the traces, put them where they belong, and say why."""
        record = TriggerRecord(
            rule=rule.name,
            when=rule.when,
            threshold=rule.threshold,
            for_s=rule.for_s,
            job=job,
            node=self._node,
            ranks=decision.ranks,
            reason=decision.reason,
            values={name: round(value, 6) for name, value in decision.values.items()},
            decided_ns=time.time_ns(),
        )
        ours = {rank: pid for (name, rank), pid in pids.items() if name == job}
        make = asyncio.to_thread(self._make_place, rule.when, tuple(ours.values()))
        try:
            place, folder = await make
        except OSError as error:
            _LOGGER.warning("trigger `%s`: %s; no trace: %s", rule.name, decision.reason, error)
            return
        _LOGGER.warning("trigger `%s`: %s; traces go to %s", rule.name, decision.reason, place)
        try:
            await self._trace(rule, record, ours, folder)
        except asyncio.CancelledError:
            record.problem = "the agent ended before the traces were there"
            raise
        except Exception as error:
            _LOGGER.exception("trigger `%s` failed", rule.name)
            record.problem = f"the agent failed: {type(error).__name__}"
        finally:
            record.ended_ns = time.time_ns()
            await asyncio.shield(asyncio.to_thread(_finish, record, place, folder))

    def _make_place(self, kind: TriggerKind, pids: tuple[int, ...]) -> tuple[Path, Path]:
        """Make the folder for all of it, and in it that of this node."""
        evidence = find_evidence(self._job_dir, pids)
        try:
            place = make_place(evidence, self._folder, kind)
            return place, node_folder(place, self._node)
        except OSError:
            if evidence is None:
                raise
            place = make_place(None, self._folder, kind)
            return place, node_folder(place, self._node)

    async def _trace(
        self, rule: TriggerRule, record: TriggerRecord, pids: dict[int, int], folder: Path
    ) -> None:
        wanted = pids if rule.ranks is Whom.ALL else dict.fromkeys(record.ranks)
        request = rule.request(record.job, sorted(wanted), str(folder))
        known = tuple(pid for rank, pid in pids.items() if rank in wanted)
        if known:
            # A pid is a process, also where two jobs have one name.
            request = msgspec.structs.replace(request, pids=known, ranks=(), job="")
        try:
            progress = self._tracer.start(request)
            if request.iterations and progress and all(p.state in _REFUSED for p in progress):
                # Ranks that do not step can still be looked at for a time.
                progress = self._tracer.start(msgspec.structs.replace(request, iterations=0))
        except UsageError as error:
            record.problem = error.message
            return
        if not progress:
            record.problem = "none of these ranks asks this agent for work"
            return
        record.request_id = progress[0].request_id
        record.traces = tuple(progress)
        await self._follow(record)

    async def _follow(self, record: TriggerRecord) -> None:
        end_s = self._clock() + _WAIT_S
        while not all(one.state in ENDED for one in record.traces) and self._clock() < end_s:
            record.traces = tuple(await self._tracer.wait(record.request_id, _WAIT_PART_S))
        if not any(one.state is TraceState.WRITTEN for one in record.traces):
            record.problem = _first_reason(record.traces)


def _first_reason(traces: Sequence[TraceProgress]) -> str:
    return next((one.reason for one in traces if one.reason), "no trace was written in time")


def _finish(record: TriggerRecord, place: Path, folder: Path) -> None:
    """Sort the traces by rank, and write the record; a full disk costs only that."""
    record.traces = tuple(
        msgspec.structs.replace(one, file=sort_in(one.file, folder, one.rank)) if one.file else one
        for one in record.traces
    )
    part = place / f"{TRIGGER_FILE}.part-{os.getpid()}"
    try:
        part.write_bytes(msgspec.json.format(msgspec.json.encode(record)))
        part.replace(place / TRIGGER_FILE)
    except OSError as error:
        _LOGGER.warning("%s cannot be written: %s", place / TRIGGER_FILE, error)
        with suppress(OSError):
            part.unlink(missing_ok=True)


class _State(msgspec.Struct, kw_only=True):
    """When each rule took traces, in nanoseconds since the epoch."""

    schema_version: int = 1
    taken_ns: dict[str, list[int]] = {}


class RateLimits:
    """Remembers when rules took traces, in a file; one that is lost or broken is begun anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._taken_ns = _read(path)

    def refusal(self, rule: TriggerRule, now_ns: int) -> str:
        """Return why a rule may not take a trace now, and "" when it may."""
        # A clock that was set back must not switch a rule off for ever.
        taken = [t for t in self._taken_ns.get(rule.name, []) if t <= now_ns < t + _DAY_NS]
        if len(taken) >= rule.max_per_day:
            return f"it has taken {len(taken)} traces in 24 hours, and may take {rule.max_per_day}"
        if taken and now_ns - max(taken) < rule.cooldown_s * 1e9:
            ago_s = (now_ns - max(taken)) / 1e9
            return f"it took one {ago_s:.0f} s ago, and waits {rule.cooldown_s:.0f} s"
        return ""

    def note(self, rule: TriggerRule, now_ns: int) -> None:
        """Remember that a rule takes a trace now."""
        taken = [t for t in self._taken_ns.get(rule.name, []) if t <= now_ns < t + _DAY_NS]
        self._taken_ns[rule.name] = [*taken, now_ns][-_MAX_TIMES:]
        self._write()

    def _write(self) -> None:
        """Write the file whole; on a full disk it is remembered until the agent ends."""
        data = msgspec.json.encode(_State(taken_ns=self._taken_ns))
        # Others may make files in the folder of an agent that serves them, too.
        with suppress(OSError), folder_at(self._path.parent, uid=os.geteuid()) as folder:
            put_file(folder, self._path.name, data)


def _read(path: Path) -> dict[str, list[int]]:
    try:
        uid = os.geteuid()
        with folder_at(path.parent, uid=uid) as folder:
            data, _ = read_file(folder, path.name, _MAX_BYTES, uid=uid)
        state = decode_json(data, _State)
    except (OSError, ValueError):
        return {}
    return {name: taken[-_MAX_TIMES:] for name, taken in list(state.taken_ns.items())[:_MAX_RULES]}
