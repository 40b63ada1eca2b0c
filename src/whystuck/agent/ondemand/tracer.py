"""Follows each trace that somebody wants, from the request to the file that was wanted."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from whystuck.agent.interfaces import FabricPoll, Registry
from whystuck.agent.ondemand import guards, rank_sync, raw_files
from whystuck.agent.ondemand.abandoned_requests import Held, may_be_held
from whystuck.agent.ondemand.config_text import check_request, read_raw_config
from whystuck.agent.ondemand.delivery import Delivery, deliver
from whystuck.agent.ondemand.guards import Answer, CpuWatch
from whystuck.agent.ondemand.job_folders import list_mark_folders
from whystuck.agent.ondemand.jobs import Job
from whystuck.agent.ondemand.rank_sync import Watch
from whystuck.agent.ondemand.raw_roots import RawRoot, sweep
from whystuck.agent.ondemand.reach import choose_number
from whystuck.agent.ondemand.runs import Run
from whystuck.agent.ondemand.states import Case
from whystuck.agent.ondemand.stepping import StepWatch
from whystuck.agent.processes.step_counter import open_counter
from whystuck.collect.job_dirs import find_job_dir
from whystuck.collect.processes.proc_files import is_alive, read_start
from whystuck.collect.processes.target import owns_files
from whystuck.evidence.agent import ProcessEntry, TraceProgress, TraceRequest, TraceState
from whystuck.evidence.errors import UsageError

_LOGGER = logging.getLogger(__name__)
_LOOK_S = 0.025
_ALIVE_NS = 250_000_000
_MAX_JOBS = 64
_MAX_WATCHED = 4096
_THREADS = 2


class OnDemandTracer:
    """Starts traces, and follows each until its file lies where it was wanted.

    All calls are made on the event loop. Nothing runs as long as nobody wants a trace; while one is
    under way its files are looked at 40 times a second.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        output: str = "",
        raw_root: Path | None = None,
        folder: Path | None = None,
    ) -> None:
        """Begin without a trace.

        Args:
            registry: The processes of this node.
            output: Where files go when a request does not say, a folder or URL; empty means that
                they stay where Kineto wrote them.
            raw_root: The folder that Kineto writes to; one in ``/tmp`` when left out.
            folder: The agent's, where probes look for what is said of their process.
        """
        self._registry = registry
        self._output = output
        self._folder = folder
        self._root = RawRoot(raw_root)
        self._watches: dict[int, Watch] = {}
        self._active: dict[int, Run] = {}
        self._parked: dict[int, Run] = {}
        self._held = Held()
        self._jobs: dict[str, Job] = {}
        self._ended: dict[str, list[TraceProgress]] = {}  # all else of a job is some kB
        self._changed = asyncio.Event()
        self._looker: asyncio.Task[None] | None = None
        self._deliveries: set[asyncio.Task[None]] = set()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="whystuck-trace")
        self._alive_ns = 0
        self._sweep()

    # ------------------------------------------------------------------------------- polls

    def answer(self, poll: FabricPoll) -> str:
        """Note a poll of a process, and return the configuration that it gets, or nothing."""
        asker = self._registry.note(poll)
        pid = asker.pid
        watch = self._watch(pid)
        watch.steps.note(asker.steps, asker.steps_ns or poll.time_ns)
        watch.pace.note(poll.time_ns)
        run = self._active.get(pid)
        self._held.note(poll, pid, is_marked_anew=run is not None and run.is_marked)
        if run is None or self._held.is_under_way(poll, pid):
            return ""
        if not poll.can_answer:
            self._end(run, TraceState.FAILED, "its socket was removed, so it can be told nothing")
            return ""
        before = run.progress()
        text = run.answer(poll)
        self._settle(run, is_changed=run.progress() != before)
        return text

    @property
    def is_idle(self) -> bool:
        """Whether no poll is waited for: all of them would be told nothing."""
        return not (self._active or self._held)

    def process_ended(self, pid: int) -> None:
        """Take note that a process has ended, by its pid on this host."""
        self._watches.pop(pid, None)
        self._held.forget(pid)
        run = self._active.get(pid)
        if run is not None:
            self._settle(run, is_changed=run.look(time.time_ns(), is_alive=False))

    def _watch(self, pid: int) -> Watch:
        watch = self._watches.get(pid)
        if watch is None:
            if len(self._watches) >= _MAX_WATCHED:
                living = {one.pid for one in self._registry.list_all()} | set(self._active)
                self._watches = {pid: one for pid, one in self._watches.items() if pid in living}
            watch = self._watches.setdefault(pid, Watch())
        return watch

    # ------------------------------------------------------------------------------- start

    def start(self, request: TraceRequest) -> list[TraceProgress]:
        """Ask for a trace; what is refused or busy says so at once.

        Returns the trace of each process that is chosen, none when none is. Raises UsageError when
        the request cannot be asked of Kineto, or its id is taken.
        """
        check_request(request)
        return self._start(Job(self._name(request)))

    def start_raw(self, config: str, request: TraceRequest) -> list[TraceProgress]:
        """Ask for a trace with a configuration that a client of dynolog has written.

        ``config`` is the text for each process, ``request`` says the same in our terms, as far as
        it can be told. Raises UsageError when it cannot be read.
        """
        raw = read_raw_config(config)
        return self._start(Job(self._name(request), raw=raw))

    def _name(self, request: TraceRequest) -> TraceRequest:
        if not request.id:
            request = msgspec.structs.replace(request, id=secrets.token_hex(4))
        if request.id in self._jobs or request.id in self._ended:
            raise UsageError(
                f"there is a trace with the id {request.id} already",
                hint="leave the id out, and one is made",
            )
        return request

    def _start(self, job: Job) -> list[TraceProgress]:
        job.requested_ns = time.time_ns()
        entries, _ = guards.choose_processes(self._registry.match(job.request), job.request)
        self._root.make()
        self._sweep()
        for entry in entries:
            job.runs.append(self._make_run(job, entry))
        self._jobs[job.request.id] = job
        for run in job.runs:
            self._begin(run)
        self._forget_ended(job)
        self._tell_change()
        return _progress_of(job)

    def _sweep(self) -> None:
        if self._root.is_sweep_due():
            self._pool.submit(sweep)

    def _make_run(self, job: Job, entry: ProcessEntry) -> Run:
        pid = choose_number(entry.pid, (*entry.told_pids, entry.pid)[0])
        counter = open_counter(entry.pid)
        job_dir, start = find_job_dir(entry.pid), read_start(entry.pid)
        # Beats may be of a rank that had its pid before.
        is_owner = start is not None and owns_files(Path(job_dir or "/"), pid, start[1])
        return Run(
            job=job,
            entry=entry,
            case=Case(stop_ns=job.stop_ns),
            file=raw_files.RawFile("", None, pid),
            # What heartbeats tell may be counted from another moment on.
            steps=StepWatch() if counter else self._watch(entry.pid).steps,
            counter=counter,
            cpu=CpuWatch(entry.pid, job.requested_ns),
            make_file=self._make_file,
            choose=self._choose,
            job_dir=job_dir if is_owner else "",
            mark_folders=list_mark_folders(self._folder, job_dir, entry.uid),
            has_device=guards.uses_device(entry.pid),
        )

    def _make_file(self, run: Run) -> raw_files.RawFile:
        pid, uid, again = run.entry.pid, run.entry.uid, f"-{run.tries}" if run.tries else ""
        name = f"{run.job.request.id}{again}-{pid}"
        return raw_files.make_raw_file(
            self._root.path, name, pid=run.file.pid, host_pid=pid, probe=run.is_probe, uid=uid
        )

    def _begin(self, run: Run) -> None:
        """Refuse what can be refused at once, and wait for the poll of the process otherwise."""
        pid = run.entry.pid
        other = self._active.get(pid) or self._parked.get(pid) or self._held.get(pid)
        # One that never began may have been dropped.
        if other is not None and not (other.is_ended and not other.case.seen_ns):
            self._close(run, TraceState.BUSY, _tell_busy(other))
            return
        verdict = run.judge(time.time_ns())
        if verdict.answer is Answer.REFUSE:
            self._close(run, TraceState.REFUSED, verdict.reason)
            return
        self._active[pid] = run
        self._keep_looking()

    def _choose(self, asking: Run, now_ns: int) -> bool:
        return rank_sync.choose_begin(asking, self._watches, now_ns)

    # ------------------------------------------------------------------------------ follow

    async def _look(self) -> None:
        """Look at the files of all that is under way, until nothing is."""
        while self._active:
            await asyncio.sleep(_LOOK_S)
            now_ns = time.time_ns()
            is_time = now_ns - self._alive_ns >= _ALIVE_NS
            if is_time:
                self._alive_ns = now_ns
            for run in list(self._active.values()):
                try:
                    self._look_at(run, now_ns, is_time=is_time)
                except Exception:
                    _LOGGER.exception("the trace of pid %d cannot be followed", run.entry.pid)
                    self._end(run, TraceState.FAILED, "the agent could not follow it")

    def _look_at(self, run: Run, now_ns: int, *, is_time: bool) -> None:
        before = run.progress()
        run.look(now_ns, is_alive=not is_time or is_alive(run.entry.pid))
        if is_time and not run.case.is_ended:
            run.check_stepping(now_ns)
            self._held.tend(run.entry.pid, now_ns)
        self._settle(run, is_changed=run.progress() != before)

    def _settle(self, run: Run, *, is_changed: bool) -> None:
        """Let go of a process whose trace has ended, and make its file."""
        if run.case.is_ended and self._active.get(run.entry.pid) is run:
            del self._active[run.entry.pid]
            if not may_be_held(run):
                run.unmark()  # another trace may begin, though the file of this one is not made yet
            if run.case.state is not TraceState.WRITTEN:
                self._close(run, run.case.state, run.case.reason)
            elif rank_sync.is_compared(run.job):
                run.is_parked = True
                self._parked[run.entry.pid] = run
            else:
                self._do(self._deliver(run))
                run.is_finishing = True
            if rank_sync.ready_to_compare(run.job):
                self._do(self._compare(run.job))
        if is_changed:
            self._tell_change()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._deliveries.add(task)
        task.add_done_callback(self._deliveries.discard)

    async def _compare(self, job: Job) -> None:
        """Deliver the traces of ranks that began together, and ask them again otherwise."""
        runs = rank_sync.list_parked(job)
        loop, read = asyncio.get_running_loop(), rank_sync.read_windows
        windows = await loop.run_in_executor(self._pool, read, runs, job.iterations)
        multiple = rank_sync.plan_again(job, windows, self._watches)
        if not all(is_alive(run.entry.pid) for run in runs):
            multiple = 0
        for run in runs:
            del self._parked[run.entry.pid]
            if multiple:
                run.restart("the ranks began at different iterations, and are asked again")
                self._active[run.entry.pid] = run
            else:
                run.is_finishing, run.is_parked = True, False
                self._do(self._deliver(run))
        if multiple:
            job.num_tries, job.roundup, job.is_chosen = job.num_tries + 1, multiple, False
            self._keep_looking()
        self._tell_change()

    def _keep_looking(self) -> None:
        if self._looker is None or self._looker.done():
            self._looker = asyncio.get_running_loop().create_task(self._look())

    def _end(self, run: Run, state: TraceState, reason: str) -> None:
        run.end(state, reason)
        self._settle(run, is_changed=True)

    def _close(self, run: Run, state: TraceState, reason: str) -> None:
        if state is not TraceState.WRITTEN:
            name, pid = run.job.request.id, run.entry.pid
            _LOGGER.warning("trace %s of pid %d: %s: %s", name, pid, state, reason)
        run.end(state, reason)
        run.is_finishing = False
        run.ended_ns = time.time_ns()
        self._held.close(run)
        self._forget_ended(run.job)

    async def _deliver(self, run: Run) -> None:
        """Make the file that was wanted, in a thread."""
        loop = asyncio.get_running_loop()
        try:
            done = await loop.run_in_executor(self._pool, deliver, run, self._output)
        except Exception:
            _LOGGER.exception("the trace of pid %d cannot be finished", run.entry.pid)
            done = Delivery(TraceState.FAILED, "the agent could not finish its file")
        run.target, run.target_bytes = done.file, done.file_bytes
        run.is_kept = done.is_kept
        self._close(run, done.state, done.reason)
        self._tell_change()

    # ---------------------------------------------------------------------------- progress

    def cancel(self, request_id: str) -> list[TraceProgress]:
        """Give up what has not begun; Kineto cannot take back what it was given.

        Returns how far each is. Raises KeyError for an id nobody gave.
        """
        job = self._jobs.get(request_id)
        for run in job.runs if job else ():
            if run.case.state is TraceState.PENDING and run.entry.pid in self._active:
                self._end(run, TraceState.CANCELLED, "taken back before it began")
        return self.progress(request_id)

    def progress(self, request_id: str) -> list[TraceProgress]:
        """Return how far it is in each process; raises KeyError for an id nobody gave."""
        job = self._jobs.get(request_id)
        return self._ended[request_id] if job is None else _progress_of(job)

    async def wait(self, request_id: str, timeout_s: float) -> list[TraceProgress]:
        """Return how far it is when that has changed, all have ended, or after ``timeout_s``.

        Raises KeyError for an id nobody gave.
        """
        job = self._jobs.get(request_id)
        before = self.progress(request_id)
        deadline_s = time.monotonic() + timeout_s
        while job and not job.is_ended and _progress_of(job) == before:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                break
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left_s)
        return _progress_of(job) if job else before

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _forget_ended(self, job: Job) -> None:
        """Keep of a job that has ended how it did, and forget the oldest of them."""
        if job.is_ended and self._jobs.get(job.request.id) is job:
            self._ended[job.request.id] = _progress_of(self._jobs.pop(job.request.id))
            self._ended = dict(list(self._ended.items())[-_MAX_JOBS:])

    # --------------------------------------------------------------------------------- end

    async def finish(self, timeout_s: float) -> None:
        """Give up what has not begun, and wait until the rest has ended, for so long at most."""
        for name in list(self._jobs):
            self.cancel(name)
        deadline_s = time.monotonic() + timeout_s
        while (self._active or self._deliveries) and time.monotonic() < deadline_s:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), deadline_s - time.monotonic())

    def close(self) -> None:
        """Let go of what is left; what Kineto writes after this stays where it writes it."""
        if self._looker is not None:
            self._looker.cancel()
        for run in list(self._active.values()):
            self._end(run, TraceState.FAILED, "the agent ended before the trace did")
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._root.close()


def _tell_busy(other: Run) -> str:
    name = other.job.request.id
    if other.case.state is TraceState.PENDING:
        return f"the trace {name} waits, and comes first; `whystuck trace cancel {name}` ends that"
    still = ", which was given up, still" if other.is_ended else ""
    return f"the trace {name}{still} holds its profiler"


def _progress_of(job: Job) -> list[TraceProgress]:
    return [run.progress() for run in job.runs]
