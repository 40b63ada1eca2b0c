"""What each table of one evidence says of each rank, without any judgement."""

from __future__ import annotations

from dataclasses import replace

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.causes import is_cascade
from whystuck.diagnose.algorithms.failures.departures import explains
from whystuck.diagnose.algorithms.ops.groups import GroupOps, collect_groups, is_active_only
from whystuck.diagnose.algorithms.ops.progress import (
    find_device_ranks,
    find_unrecorded,
    list_ranks,
    mend_done,
    slice_rank,
)
from whystuck.diagnose.algorithms.ops.waits import NO_ROW, Wait
from whystuck.diagnose.algorithms.processes.activity import Activity, measure_activity
from whystuck.diagnose.algorithms.stacks.frames import find_user_frame, select_user_frames
from whystuck.diagnose.algorithms.stacks.positions import Doing, Position, is_held, locate
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.shared import cached_property
from whystuck.diagnose.traces.costs import TraceFacts
from whystuck.evidence.finding import Citation
from whystuck.evidence.live import (
    Beat,
    Departure,
    ExitRecord,
    ProcessSample,
    PythonException,
    StackSample,
)
from whystuck.evidence.model import Evidence
from whystuck.evidence.ops.collectives import Collectives, Frame

_BLOCKED = {Doing.COLLECTIVE, Doing.BACKWARD, Doing.JOINING, Doing.UNKNOWN}
_NS_PER_S = 1e9
_SIGKILL, _SIGTERM = 9, 15
_LAUNCHER_GRACE_NS = 4_000_000_000


class Views:
    """One evidence, seen by rank. Everything is computed on first use."""

    def __init__(self, evidence: Evidence, policy: Policy) -> None:
        self.evidence = evidence
        self.policy = policy

    @cached_property
    def ranks(self) -> frozenset[int]:
        """All ranks of the job, seen or not."""
        return self.evidence.topology.ranks | self.seen_ranks

    @cached_property
    def seen_ranks(self) -> frozenset[int]:
        """Ranks that any artifact tells of."""
        evidence = self.evidence
        seen = set(self.recorded_ranks)
        seen |= {item.rank for item in evidence.stacks}
        seen |= {item.rank for item in evidence.processes}
        seen |= {item.rank for item in evidence.beats} | {item.rank for item in evidence.fatals}
        seen |= {item.rank for item in evidence.exits}
        seen |= {item.rank for item in evidence.inspections}
        seen |= {item.rank for item in evidence.exceptions}
        seen |= {item.rank for item in evidence.logs.events}
        for file in evidence.logs.files:
            seen |= file.ranks
        # Logs of several ranks in one file can hold exceptions of nobody known.
        seen.discard(-1)
        return frozenset(seen)

    @cached_property
    def has_pasted_stacks(self) -> bool:
        """Whether stacks are texts that people put together, rather than what whystuck took."""
        return any(sample.row is not None for sample in self.evidence.stacks)

    @cached_property
    def timed_out_by_log(self) -> frozenset[int]:
        """Ranks whose log says that they waited in a collective until its time limit."""
        events = self.evidence.logs.events
        told = {
            one.rank
            for one in events
            if one.code == codes.COLLECTIVE_TIMEOUT and one.role == "cause"
        }
        return frozenset(told - {-1})

    @cached_property
    def traces(self) -> TraceFacts:
        """What traces tell of the cost of each cause."""
        return TraceFacts(self.evidence.traces, self.policy)

    @cached_property
    def samples_by_rank(self) -> dict[int, list[StackSample]]:
        """Stack samples of the main process of each rank, oldest first."""
        samples: dict[int, list[StackSample]] = {}
        for sample in self.evidence.stacks:
            if not sample.worker:
                samples.setdefault(sample.rank, []).append(sample)
        return samples

    @cached_property
    def worker_looks(self) -> dict[int, dict[int, list[ProcessSample]]]:
        """Looks at the child processes of each rank, by their pid."""
        looks: dict[int, dict[int, list[ProcessSample]]] = {}
        for look in self.evidence.processes:
            if look.worker:
                looks.setdefault(look.rank, {}).setdefault(look.pid, []).append(look)
        return looks

    @cached_property
    def worker_samples(self) -> dict[int, dict[str, list[StackSample]]]:
        """Stack samples of the data-loader workers of each rank, by their pid or else folder."""
        samples: dict[int, dict[str, list[StackSample]]] = {}
        for sample in self.evidence.stacks:
            if sample.worker:
                key = str(sample.pid or sample.artifact.rpartition("/")[0])
                samples.setdefault(sample.rank, {}).setdefault(key, []).append(sample)
        return samples

    @cached_property
    def processes_by_rank(self) -> dict[int, list[ProcessSample]]:
        """Looks at the main process of each rank."""
        looks: dict[int, list[ProcessSample]] = {}
        for sample in self.evidence.processes:
            if not sample.worker:
                looks.setdefault(sample.rank, []).append(sample)
        return looks

    @cached_property
    def beats_by_rank(self) -> dict[int, Beat]:
        """The last heartbeat of each rank."""
        return {beat.rank: beat for beat in self.evidence.beats}

    @cached_property
    def exits_by_rank(self) -> dict[int, ExitRecord]:
        """How each rank ended, when it did."""
        return {ended.rank: ended for ended in self.evidence.exits if ended.rank >= 0}

    @cached_property
    def departures(self) -> dict[int, Departure]:
        """The call by which each rank ended itself, where one is known and fits its end.

        A rank whose main program is over may still wait for its threads.
        """
        ends = self.exits_by_rank
        exiting = {rank for rank, at in self.positions.items() if at.doing is Doing.EXITING}
        return {
            item.rank: item
            for item in self.evidence.departures
            if (explains(item, ends[item.rank]) if item.rank in ends else item.rank in exiting)
        }

    @cached_property
    def exceptions_by_rank(self) -> dict[int, PythonException]:
        """The uncaught exception of each rank; that of the main thread when there are several."""
        chosen: dict[int, PythonException] = {}
        for item in self.evidence.exceptions:
            known = chosen.get(item.rank)
            if item.is_caught:
                continue
            if known is None or (item.is_main_thread and not known.is_main_thread):
                chosen[item.rank] = item
        return chosen

    @cached_property
    def positions(self) -> dict[int, Position]:
        """What the main thread of each rank did in the last sample.

        A rank that the probe holds after an exception is where the exception was raised.
        """
        positions = {}
        for rank, samples in self.samples_by_rank.items():
            mains = [sample.main for sample in samples if sample.main is not None]
            # One without frames was torn while it was read: the one before tells more.
            main = next(
                (one for one in reversed(mains) if one.frames), mains[-1] if mains else None
            )
            raised = self.exceptions_by_rank.get(rank)
            if main is not None and raised is not None and is_held(main.frames):
                positions[rank] = locate(raised.frames)
            elif main is not None:
                line = self.find_source_line(main.frames[0]) if main.frames else ""
                positions[rank] = locate(main.frames, line)
        return positions

    @cached_property
    def activities(self) -> dict[int, Activity]:
        """How the main process of each rank moved."""
        ranks = set(self.samples_by_rank) | set(self.processes_by_rank)
        return {
            rank: measure_activity(
                self.processes_by_rank.get(rank, ()), self.samples_by_rank.get(rank, ())
            )
            for rank in ranks
        }

    def find_stopped_workers(self, rank: int) -> dict[int, Activity]:
        """Find the children of a rank that the kernel shows stopped at every look, by their pid."""
        looks = self.worker_looks.get(rank, {})
        found = {pid: measure_activity(mine, ()) for pid, mine in looks.items()}
        return {pid: activity for pid, activity in found.items() if activity.is_stopped}

    @cached_property
    def recorded_ranks(self) -> frozenset[int]:
        """Ranks whose ops were recorded; a dump of active ops only may hold none of them."""
        table = self.table
        with_rows = frozenset(list_ranks(table))
        if not is_active_only(table):
            return with_rows
        return with_rows | frozenset(dump.rank for dump in table.dumps)

    @cached_property
    def table(self) -> Collectives:
        """The collectives; the last op of a rank whose collective failed counts as not done.

        The recorder retires an op that fails just as one that completes.
        """
        table = mend_done(self.evidence.collectives)
        failed = [rank for rank, item in self.exceptions_by_rank.items() if is_cascade(item)]
        if not failed or not len(table):
            return table
        done = table.done.copy()
        for rank in failed:
            done[slice_rank(table, rank)][-1:] = False
        return replace(table, done=done)

    @cached_property
    def groups(self) -> tuple[GroupOps, ...]:
        """The process groups."""
        return collect_groups(self.table, self.evidence.topology)

    @cached_property
    def unrecorded_ranks(self) -> frozenset[int]:
        """Ranks that use sends and receives which their recorder counts but does not keep."""
        return find_unrecorded(self.table, self.groups)

    @cached_property
    def device_ranks(self) -> frozenset[int]:
        """Ranks whose collectives run on a device, in the order of its queue."""
        return find_device_ranks(self.table)

    def find_source_line(self, frame: Frame) -> str:
        """Return the text of the line a frame is at; empty when the source was not kept."""
        text = self.evidence.sources.get(frame.file)
        if text is None:
            return ""
        lines = text.splitlines()
        return lines[frame.line - 1] if 0 < frame.line <= len(lines) else ""

    def get_site(self, row: int) -> tuple[Frame, ...]:
        """Return the user's frames of the call that issued the op of a row, innermost first."""
        table = self.table
        return select_user_frames(table.sites[int(table.site[row])].frames)

    def name_op(self, row: int) -> str:
        """Return the name of the op of a row."""
        table = self.table
        return table.forms[int(table.form[row])].label

    def name_wait(self, wait: Wait) -> str:
        """Return the name of the op that a rank waits in."""
        return wait.op if wait.row == NO_ROW else self.name_op(wait.row)

    def get_wait_site(self, wait: Wait) -> tuple[Frame, ...]:
        """Return the user's frames of the call that a rank waits in, innermost first."""
        return wait.site if wait.row == NO_ROW else self.get_site(wait.row)

    def cite_wait(self, wait: Wait, text: str = "") -> Citation:
        """Cite the artifact that shows a wait; the text says what it is when left out."""
        number = "" if wait.row == NO_ROW else f" {wait.seq}"
        text = text or (
            f"rank {wait.rank} waits in {self.name_wait(wait)}{number} of group {wait.group.label}"
        )
        return (
            Citation(text, wait.artifact) if wait.row == NO_ROW else self.cite_row(wait.row, text)
        )

    def cite_row(self, row: int, text: str) -> Citation:
        """Cite a row of a flight-recorder dump."""
        table = self.table
        return Citation(text, table.artifacts[int(table.artifact[row])], int(table.row[row]))

    def find_line(self, rank: int) -> Frame | None:
        """Return the innermost user frame of the main thread of a rank."""
        position = self.positions.get(rank)
        return find_user_frame(position.frames) if position else None

    def cite_stack(self, rank: int, text: str) -> Citation:
        """Cite the last stack sample of a rank."""
        samples = self.samples_by_rank.get(rank)
        last = samples[-1] if samples else None
        return Citation(text, last.artifact, last.row) if last else Citation(text)

    def find_last_site(self, rank: int) -> tuple[Frame, ...]:
        """Return the user's frames of the last op that a rank issued, innermost first."""
        own = slice_rank(self.table, rank)
        return self.get_site(own.stop - 1) if own.stop > own.start else ()

    @cached_property
    def has_few_unknown(self) -> bool:
        """Whether so few ranks lack evidence that their absence itself points at them.

        A rank whose file is damaged is not absent.
        """
        damaged = {gap.rank for gap in self.evidence.gaps if gap.what == "flight recorder dump"}
        unknown = self.ranks - self.seen_ranks - damaged
        return len(unknown) == 1 and len(self.ranks) > len(unknown) + 1

    def find_last_frames(self, rank: int) -> tuple[Frame, ...]:
        """Return where a rank was last seen: its stack, else the site of its last op."""
        position = self.positions.get(rank)
        return position.frames if position else self.find_last_site(rank)
