"""Why a rank that others wait for does not come: its own state decides the class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from whystuck.diagnose.algorithms.activity import Activity, measure_activity
from whystuck.diagnose.algorithms.failures import is_cascade
from whystuck.diagnose.algorithms.frames import (
    find_user_frame,
    is_in,
    is_user_frame,
    select_user_frames,
)
from whystuck.diagnose.algorithms.locks import find_crossing, find_parked
from whystuck.diagnose.algorithms.positions import Doing, is_evaluating, is_saving
from whystuck.diagnose.algorithms.source import Relation, relate_sites
from whystuck.diagnose.facts import Facts
from whystuck.evidence.collectives import Frame
from whystuck.evidence.finding import Citation, Confidence
from whystuck.evidence.live import StackSample, ThreadStack

_WORKER_LOOP = "torch/utils/data/_utils/worker.py"
_FETCH = "torch/utils/data/_utils/fetch.py"


@dataclass(frozen=True)
class Suspicion:
    """What keeps one rank: the code of the class, the frames to name, and the facts.

    ``frames`` are innermost first. ``text`` completes the sentence "rank 3 ...".
    ``is_hard`` is true when the state itself proves it, without regard to what peers do.
    """

    rank: int
    code: str
    confidence: Confidence
    text: str
    frames: tuple[Frame, ...] = ()
    more_frames: tuple[Frame, ...] = ()
    because: tuple[Citation, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    measures: dict[str, float] = field(default_factory=dict)


_Explainer = Callable[[Facts, int], Suspicion | None]


def explain_hard(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank by a state that needs no comparison with its peers."""
    explainers: Sequence[_Explainer] = (
        _explain_stopped,
        _explain_left,
        _explain_gil,
        _explain_exception,
        _explain_worker,
        _explain_input,
        _explain_locks,
        _explain_teardown,
    )
    return next(_run(explainers, facts, rank), None)


def explain_soft(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank by where it is, when neither its state nor its ops say more."""
    explainers: Sequence[_Explainer] = (
        _explain_past_loop,
        _explain_leaving,
        _explain_saving,
        _explain_setup,
        _explain_evaluating,
        _explain_absent,
    )
    return next(_run(explainers, facts, rank), None)


def _run(explainers: Sequence[_Explainer], facts: Facts, rank: int) -> Iterator[Suspicion]:
    for explain in explainers:
        suspicion = explain(facts, rank)
        if suspicion is not None:
            yield suspicion


def _frames_of(facts: Facts, rank: int) -> tuple[Frame, ...]:
    position = facts.positions.get(rank)
    return position.frames if position else ()


def _activity_of(facts: Facts, rank: int) -> Activity:
    return facts.activities.get(rank, Activity())


def is_moving(facts: Facts, activity: Activity) -> bool:
    """Tell whether a process used the processor, moved bytes, or changed its frames."""
    policy = facts.policy
    return (
        (activity.cpu_share or 0.0) >= policy.idle_cpu_share
        or activity.read_bytes + activity.write_bytes >= policy.idle_io_bytes
        or activity.stack_moves
    )


def _explain_stopped(facts: Facts, rank: int) -> Suspicion | None:
    activity = _activity_of(facts, rank)
    if not activity.is_stopped:
        return None
    return Suspicion(
        rank,
        "H113",
        Confidence.CERTAIN,
        f"is stopped (state {activity.state}) and does not run at all",
        _frames_of(facts, rank),
        because=(Citation(f"every look at rank {rank} shows state T", activity.artifact),),
        details={"state": activity.state},
    )


def _explain_left(facts: Facts, rank: int) -> Suspicion | None:
    ended = facts.exits_by_rank.get(rank)
    if ended is None or ended.code != 0 or rank in facts.exceptions_by_rank:
        return None
    last = facts.find_last_site(rank)
    return Suspicion(
        rank,
        "H103",
        Confidence.CERTAIN,
        "ended with exit code 0",
        last,
        because=(Citation(f"rank {rank} ended with exit code 0", ended.artifact),),
        details={"exit_code": 0},
    )


def _explain_gil(facts: Facts, rank: int) -> Suspicion | None:
    samples = facts.samples_by_rank.get(rank, [])
    beat = facts.beats_by_rank.get(rank)
    owners = [_find_owner(sample) for sample in samples]
    is_owned = bool(owners) and all(owner is not None for owner in owners)
    is_same = is_owned and len({_place(owner) for owner in owners if owner}) == 1
    is_silent = beat is not None and (beat.answered_without_gil or beat.stale)
    idle = (_activity_of(facts, rank).cpu_share or 0.0) < facts.policy.idle_cpu_share
    proven = is_silent and beat is not None and beat.answered_without_gil and is_same
    if not proven and not (is_same and len(samples) > 1 and (is_silent or idle)):
        return None
    owner = owners[-1]
    frames = owner.frames if owner else _frames_of(facts, rank)
    library = frames[0].file if frames and not is_user_frame(frames[0]) else ""
    because = [facts.cite_stack(rank, f"one thread of rank {rank} owns the GIL in all samples")]
    if is_silent and beat is not None:
        text = f"the probe of rank {rank} cannot run, its C++ server answers"
        because.append(Citation(text, beat.artifact))
    return Suspicion(
        rank,
        "H114",
        Confidence.CERTAIN if proven else Confidence.LIKELY,
        "runs native code that does not give the GIL back",
        frames,
        because=tuple(because),
        details={"thread": owner.name if owner else "", "library": library},
    )


def _find_owner(sample: StackSample) -> ThreadStack | None:
    return next((thread for thread in sample.threads if thread.owns_gil), None)


def _place(thread: ThreadStack) -> tuple[int, str, int]:
    user = find_user_frame(thread.frames)
    return thread.thread_id, user.file if user else "", user.line if user else 0


def _explain_exception(facts: Facts, rank: int) -> Suspicion | None:
    item = facts.exceptions_by_rank.get(rank)
    kind = facts.evidence.incident.kind
    if item is None or is_cascade(item) or rank in facts.dead or kind not in {"stall", "snapshot"}:
        return None
    position = facts.positions.get(rank)
    is_exiting = position is not None and position.doing is Doing.EXITING
    # A log also holds exceptions that were caught.
    if not item.is_main_thread or (item.source == "log" and not is_exiting):
        return None
    message = item.message.splitlines()[0] if item.message else ""
    text = f"raised {item.type}({message!r:.120}) but its process stays alive"
    now = facts.find_line(rank)
    details = {"exception": item.type, "message": message}
    if position is not None:
        details["now"] = position.doing.value
    return Suspicion(
        rank,
        "H120",
        Confidence.CERTAIN,
        text,
        item.frames,
        more_frames=(now,) if now else (),
        because=(Citation(f"uncaught {item.type} of rank {rank}", item.artifact),),
        details=details,
    )


def _explain_worker(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a main process that waits for a worker of its data loader."""
    position = facts.positions.get(rank)
    if position is None or position.doing is not Doing.INPUT_WORKER:
        return None
    busy = [
        samples
        for (owner, _), samples in facts.worker_samples.items()
        if owner == rank and _is_fetching(samples)
    ]
    if not busy:
        return None
    samples = max(busy, key=lambda group: len(group[-1].main.frames) if group[-1].main else 0)
    main = samples[-1].main
    frames = main.frames if main else ()
    parked = find_parked(samples, facts.evidence.sources)
    looks = [look for look in facts.evidence.processes if look.worker]
    mine = [look for look in looks if look.pid == samples[-1].pid]
    share = measure_activity(mine, samples).cpu_share
    what = "stays in one function"
    details: dict[str, Any] = {"worker_pid": samples[-1].pid}
    if any(item.thread.is_main for item in parked):
        what = "waits for a lock that was held when the worker was forked"
        details["lock"] = next(item.lock for item in parked if item.thread.is_main)
    elif share is not None and share >= facts.policy.idle_cpu_share:
        what = "computes in one function without end"
    user = find_user_frame(frames)
    name = f" ({user.function})" if user else ""
    return Suspicion(
        rank,
        "H112",
        Confidence.CERTAIN if len(samples) > 1 else Confidence.LIKELY,
        f"waits for data: its worker {samples[-1].pid} {what}{name}",
        frames,
        because=(Citation(f"worker of rank {rank}, all samples", samples[-1].artifact),),
        details=details,
        measures={} if share is None else {"worker_cpu_share": round(share, 2)},
    )


def _is_fetching(samples: Sequence[StackSample]) -> bool:
    """Tell whether a worker is in one user function of the dataset in all its samples."""
    functions = set()
    for sample in samples:
        frames = sample.main.frames if sample.main else ()
        in_fetch = any(is_in(frame, _FETCH) for frame in frames)
        if not in_fetch or not any(is_in(frame, _WORKER_LOOP) for frame in frames):
            return False
        functions.add(tuple(_functions(frames)))
    # A loop in the user's code may call helpers; one shared outer function is enough.
    shared = set.intersection(*(set(functions_of) for functions_of in functions))
    return bool(shared)


def _functions(frames: Sequence[Frame]) -> Iterator[tuple[str, str]]:
    for frame in frames:
        if is_in(frame, _FETCH):
            return
        if is_user_frame(frame):
            yield frame.file, frame.function


def _explain_input(facts: Facts, rank: int) -> Suspicion | None:
    position = facts.positions.get(rank)
    if position is None or position.doing is not Doing.INPUT_MAIN:
        return None
    frames = position.frames
    inside = list(_functions(frames))
    if not inside:
        return None
    return Suspicion(
        rank,
        "H111",
        Confidence.LIKELY if facts.has_rhythm(rank) else Confidence.POSSIBLE,
        f"is loading data in the main process ({inside[0][1]}) and does not come back",
        frames,
        because=(facts.cite_stack(rank, f"rank {rank} is below the fetch of its data loader"),),
        details={"function": inside[-1][1]},
    )


def _explain_locks(facts: Facts, rank: int) -> Suspicion | None:
    parked = find_parked(facts.samples_by_rank.get(rank, ()), facts.evidence.sources)
    if len(parked) < 2 or not any(item.thread.is_main for item in parked):  # noqa: PLR2004 - a pair
        return None
    crossing = find_crossing(parked)
    main = next(item for item in parked if item.thread.is_main)
    first, second = crossing or (main, next(item for item in parked if item is not main))
    if not crossing and first.lock == second.lock:
        return None
    sites = [
        {"thread": item.thread.name, "waits_for": item.lock, "holds": sorted(item.held)}
        for item in (first, second)
    ]
    return Suspicion(
        rank,
        "H115",
        Confidence.CERTAIN if crossing else Confidence.LIKELY,
        f"has two threads that wait for each other's lock ({first.lock}, {second.lock})",
        (first.frame,),
        more_frames=(second.frame,),
        because=(facts.cite_stack(rank, f"two parked threads of rank {rank}"),),
        details={"threads": sites},
    )


def _explain_teardown(facts: Facts, rank: int) -> Suspicion | None:
    position = facts.positions.get(rank)
    if position is None or position.doing is not Doing.TEARDOWN:
        return None
    return Suspicion(
        rank,
        "H103",
        Confidence.CERTAIN,
        "is in destroy_process_group while others still wait for it",
        position.frames,
        more_frames=facts.find_last_site(rank)[:1],
        because=(facts.cite_stack(rank, f"rank {rank} is in destroy_process_group"),),
    )


def _explain_leaving(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank whose main program is over, although no exception of it is known."""
    position = facts.positions.get(rank)
    if position is None or position.doing is not Doing.EXITING:
        return None
    # The probe would have recorded an exception; without it nobody knows.
    has_probe = rank in facts.beats_by_rank
    return Suspicion(
        rank,
        "H103",
        Confidence.LIKELY if has_probe else Confidence.POSSIBLE,
        "has left its main program and its process stays alive",
        position.frames,
        more_frames=facts.find_last_site(rank)[:1],
        because=(facts.cite_stack(rank, f"the main thread of rank {rank} is past its module"),),
    )


def _explain_past_loop(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank that is at a line after the loop that the others are still in."""
    here = select_user_frames(_frames_of(facts, rank))
    wait = next((wait for wait in facts.waits if rank in wait.missing), None)
    if not here or wait is None:
        return None
    theirs = facts.get_site(wait.row)
    relation = relate_sites(here, theirs, facts.evidence.sources)
    if relation is not Relation.A_AFTER_LOOP:
        return None
    op = facts.name_op(wait.row)
    return Suspicion(
        rank,
        "H103",
        Confidence.CERTAIN if facts.has_rhythm(rank) else Confidence.LIKELY,
        f"has left the loop in which the others still call {op}",
        here,
        more_frames=theirs[:1],
        because=(
            facts.cite_row(wait.row, f"rank {wait.rank} waits in {op} inside the loop"),
            facts.cite_stack(rank, f"rank {rank} is past that loop"),
        ),
    )


def _explain_saving(facts: Facts, rank: int) -> Suspicion | None:
    frames, activity = _frames_of(facts, rank), _activity_of(facts, rank)
    if not is_saving(frames) or not is_moving(facts, activity):
        return None
    rate = round(activity.write_mb_per_s, 2)
    user = find_user_frame(frames)
    return Suspicion(
        rank,
        "H118",
        Confidence.CERTAIN if activity.write_bytes else Confidence.LIKELY,
        f"is writing a checkpoint ({user.function if user else 'save'}) at {rate} MB/s",
        frames,
        because=(Citation(f"bytes written by rank {rank} grow", activity.artifact),),
        measures={"mb_per_s": rate},
    )


def _explain_setup(facts: Facts, rank: int) -> Suspicion | None:
    activity = _activity_of(facts, rank)
    if facts.has_rhythm(rank) or not is_moving(facts, activity):
        return None
    return _make_busy(facts, rank, "is busy before the first step")


def _explain_evaluating(facts: Facts, rank: int) -> Suspicion | None:
    activity = _activity_of(facts, rank)
    mains = [sample.main for sample in facts.samples_by_rank.get(rank, ())]
    if not any(is_evaluating(main.frames) for main in mains if main is not None):
        return None
    busy = (activity.cpu_share or 0.0) >= facts.policy.idle_cpu_share
    if not busy or not activity.stack_moves:
        return None
    return _make_busy(facts, rank, "is running the model while the others wait")


def _make_busy(facts: Facts, rank: int, what: str) -> Suspicion:
    frames, activity = _frames_of(facts, rank), _activity_of(facts, rank)
    user = find_user_frame(frames)
    share = round(activity.cpu_share or 0.0, 2)
    return Suspicion(
        rank,
        "H117",
        Confidence.LIKELY,
        f"{what}: {user.function if user else 'its main thread'} moves",
        frames,
        because=(Citation(f"rank {rank} uses {share:.0%} of a core", activity.artifact),),
        measures={"cpu_share": share},
    )


def _explain_absent(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank that is simply elsewhere."""
    if rank in facts.dead:
        return None
    frames, activity = _frames_of(facts, rank), _activity_of(facts, rank)
    if not frames:
        return _explain_unseen(facts, rank)
    here = select_user_frames(frames)
    blocked = not is_moving(facts, activity) and activity.cpu_share is not None
    incident = facts.evidence.incident
    gap = facts.policy.long_gap_factor * incident.longest_gap_s
    is_long = incident.longest_gap_s > 0 and incident.stalled_s > gap
    sure = Confidence.LIKELY if blocked or is_long else Confidence.POSSIBLE
    how = "is blocked" if blocked else "is"
    place = f"{here[0].function} ({here[0].file}:{here[0].line})" if here else "unknown code"
    measures = {}
    if activity.cpu_share is not None:
        measures["cpu_share"] = round(activity.cpu_share, 2)
    return Suspicion(
        rank,
        "H101",
        sure,
        f"{how} in {place}",
        frames,
        because=(facts.cite_stack(rank, f"main thread of rank {rank}, last sample"),),
        details={"state": "blocked" if blocked else "running"},
        measures=measures,
    )


def _explain_unseen(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank without stacks: the place of its last op is all there is."""
    last = facts.find_last_site(rank)
    is_known = rank in facts.recorded_ranks
    if not is_known and not facts.has_few_unknown:
        return None
    text = "went no further after its last collective" if is_known else "left no evidence at all"
    return Suspicion(
        rank,
        "H101",
        Confidence.LIKELY if is_known else Confidence.POSSIBLE,
        text,
        last,
        details={"state": "unknown"},
    )
