"""Explains a suspect by where it is, when neither its state nor its ops say more."""

from __future__ import annotations

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.departures import describe_departure
from whystuck.diagnose.algorithms.processes.growth import find_growth, find_writing
from whystuck.diagnose.algorithms.source.branches import (
    Relation,
    is_in_loop,
    relate_sites,
    share_loop,
)
from whystuck.diagnose.algorithms.stacks.frames import (
    describe_place,
    find_user_frame,
    is_user_frame,
    select_user_frames,
)
from whystuck.diagnose.algorithms.stacks.positions import (
    Doing,
    is_evaluating,
    is_in_idle_loop,
    is_in_module,
    is_loading,
    is_saving,
    may_wait_for_device,
    name_call,
)
from whystuck.diagnose.context.facts import Facts
from whystuck.diagnose.context.suspects.suspicion import (
    Suspicion,
    get_activity,
    get_frames,
    is_moving,
    works_by_child,
)
from whystuck.evidence.finding import Citation, Confidence
from whystuck.evidence.live import ThreadStack
from whystuck.evidence.ops.collectives import Frame


def explain_leaving(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank whose main program is over, although no exception of it is known."""
    position = facts.stacks.positions.get(rank)
    if position is None or position.doing is not Doing.EXITING:
        return None
    # The probe would have recorded an exception; without it nobody knows.
    has_probe = rank in facts.processes.beats_by_rank
    departure = facts.exits.departures.get(rank)
    because = [facts.stacks.cite(rank, f"the main thread of rank {rank} is past its module")]
    if departure is not None:
        because.append(Citation(f"rank {rank} called {departure.call}", departure.artifact))
    return Suspicion(
        rank,
        codes.LEFT_EARLY,
        Confidence.LIKELY if has_probe else Confidence.POSSIBLE,
        f"has left its main program{describe_departure(departure)} and its process stays alive",
        departure.frames if departure else position.frames,
        more_frames=facts.ops.find_last_site(rank)[:1],
        because=tuple(because),
        details={"call": departure.call} if departure else {},
    )


def explain_past_loop(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank that is at a line after the loop that the others are still in."""
    here = select_user_frames(get_frames(facts, rank))
    wait = facts.waits.first_wait_for.get(rank)
    if not here:
        return None
    if wait is None:
        return _explain_past_stacks(facts, rank, here)
    theirs = facts.ops.get_wait_site(wait)
    relation = relate_sites(here, theirs, facts.evidence.sources)
    if relation is not Relation.A_AFTER_LOOP:
        return None
    op = facts.ops.name_wait(wait)
    return _make_left(
        rank,
        (here, theirs),
        op,
        Confidence.CERTAIN if facts.movement.has_rhythm(rank) else Confidence.LIKELY,
        (
            facts.ops.cite_wait(wait, f"rank {wait.rank} waits in {op} inside the loop"),
            facts.stacks.cite(rank, f"rank {rank} is past that loop"),
        ),
    )


def _explain_past_stacks(facts: Facts, rank: int, here: tuple[Frame, ...]) -> Suspicion | None:
    """Explain a rank by its stack and those of the ranks that wait; no record tells in what."""
    sources = facts.evidence.sources
    sites = {
        other: select_user_frames(facts.stacks.positions[other].frames)
        for other in sorted(facts.waits.waiting_by_stack - facts.ops.recorded_ranks)
    }
    is_past = sites and all(
        relate_sites(here, site, sources, with_rank=False) is Relation.A_AFTER_LOOP
        and is_in_loop(site, sources)
        for site in sites.values()
    )
    if not is_past or 2 * len(sites) < len(facts.ranks.all):
        return None
    other, theirs = next(iter(sites.items()))
    op = name_call(facts.stacks.positions[other].frames)
    cites = (
        facts.stacks.cite(other, f"rank {other} waits in {op} inside the loop"),
        facts.stacks.cite(rank, f"rank {rank} is past that loop"),
    )
    return _make_left(rank, (here, theirs), op, Confidence.LIKELY, cites)


def _make_left(
    rank: int,
    sites: tuple[tuple[Frame, ...], tuple[Frame, ...]],
    op: str,
    sure: Confidence,
    cites: tuple[Citation, ...],
) -> Suspicion:
    here, theirs = sites
    return Suspicion(
        rank,
        codes.LEFT_EARLY,
        sure,
        f"has left the loop in which the others still call {op}",
        here,
        more_frames=theirs[:1],
        because=cites,
    )


def explain_saving(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank that writes a checkpoint."""
    frames, activity = get_frames(facts, rank), get_activity(facts, rank)
    if rank in facts.waits.waiting_by_stack:
        return None  # inside of the save it waits for others, whatever bytes its threads move
    if not is_saving(frames):
        return None
    if not (is_moving(facts, activity) or activity.disk_moves):
        return _explain_growing(facts, rank)
    rate = round(activity.write_mb_per_s, 2)
    user = find_user_frame(frames)
    return Suspicion(
        rank,
        codes.CHECKPOINT_SLOW,
        Confidence.CERTAIN if activity.write_bytes else Confidence.LIKELY,
        f"is writing a checkpoint ({user.function if user else 'save'}) at {rate} MB/s",
        frames,
        because=(Citation(f"bytes written by rank {rank} grow", activity.artifact),),
        measures={"mb_per_s": rate},
    )


def _explain_growing(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank whose file was seen to grow by whoever pasted its stack."""
    events = facts.evidence.logs.events
    pids = {sample.pid for sample in facts.stacks.samples_by_rank.get(rank, ())} - {0}
    writing = find_writing(events, pids.pop()) if len(pids) == 1 else None
    growth = find_growth(events) or writing
    if growth is None:
        return None
    frames = get_frames(facts, rank)
    user = find_user_frame(frames)
    rate = f" at {growth.mb_per_s} MB/s" if growth.mb_per_s else ""
    what = f"{growth.file or 'the file'} grows" if growth is not writing else "the process writes"
    text = f"{what}{rate}: {growth.last.text.strip()[:80]}"
    return Suspicion(
        rank,
        codes.CHECKPOINT_SLOW,
        Confidence.LIKELY,
        f"is writing a checkpoint ({user.function if user else 'save'}){rate}",
        frames,
        because=(Citation(text, growth.last.artifact, growth.last.row),),
        measures={"mb_per_s": growth.mb_per_s} if growth.mb_per_s else {},
    )


def explain_loading(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank that reads a checkpoint, or another file of ``torch.save``."""
    frames, activity = get_frames(facts, rank), get_activity(facts, rank)
    if rank in facts.waits.waiting_by_stack:
        return None  # inside of the load it waits for others, as in a save
    if not is_loading(frames) or not (is_moving(facts, activity) or activity.disk_moves):
        return None
    user = find_user_frame(frames)
    text = f"is loading a file in {describe_place(user) if user else 'its main thread'}"
    share = round(activity.cpu_share or 0.0, 2)
    told, measures = f"rank {rank} uses {share:.0%} of a core", {"cpu_share": share}
    if activity.read_bytes >= facts.policy.idle_io_bytes:
        rate = round(activity.read_mb_per_s, 2)
        text += f" at {rate} MB/s"
        told, measures = f"bytes read by rank {rank} grow", {"mb_per_s": rate}
    return Suspicion(
        rank,
        codes.CHECKPOINT_SLOW,
        Confidence.LIKELY,
        text,
        frames,
        because=(Citation(told, activity.artifact),),
        measures=measures,
    )


def explain_setup(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank that is busy before training has found its rhythm."""
    activity = get_activity(facts, rank)
    is_busy = is_moving(facts, activity) or works_by_child(facts, rank)
    if facts.movement.has_rhythm(rank) or not is_busy or _is_overdue(facts, rank):
        return None
    # Without the record of a step, nobody knows how many there were.
    is_known = rank in facts.processes.beats_by_rank or rank in facts.ops.recorded_ranks
    when = "before the first step" if is_known else "while the others wait"
    return make_busy(facts, rank, f"is busy {when}")


def _is_overdue(facts: Facts, rank: int) -> bool:
    """Tell whether a rank without a record is at work in the loop in which others wait for long.

    What is done on some ranks only, by a condition on the rank, is meant to be.
    """
    policy, sources = facts.policy, facts.evidence.sources
    waiting = facts.waits.waiting_by_stack - facts.ops.recorded_ranks
    still_s = min((facts.processes.activities[other].asleep_s for other in waiting), default=0.0)
    if still_s < policy.overdue_s or rank in facts.ops.recorded_ranks:
        return False
    here = select_user_frames(get_frames(facts, rank))
    sites = [select_user_frames(facts.stacks.positions[other].frames) for other in waiting]
    return all(
        share_loop(here, site, sources)
        and relate_sites(here, site, sources) is not Relation.A_EXTRA_BY_RANK
        for site in sites
    )


def explain_evaluating(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank that runs the model alone."""
    activity = get_activity(facts, rank)
    mains = [sample.main for sample in facts.stacks.samples_by_rank.get(rank, ())]
    if not any(is_evaluating(main.frames) for main in mains if main is not None):
        return None
    busy = (activity.cpu_share or 0.0) >= facts.policy.idle_cpu_share
    # One long op of the model keeps all samples in one library frame, which is no standstill.
    is_in_op = bool(mains) and _is_in_model_op(mains[-1])
    if not busy or not (activity.stack_moves or is_in_op):
        return None
    return make_busy(facts, rank, "is running the model while the others wait")


def _is_in_model_op(main: ThreadStack | None) -> bool:
    frames = main.frames if main is not None else ()
    return bool(frames) and is_in_module(frames) and not is_user_frame(frames[0])


def make_busy(facts: Facts, rank: int, what: str) -> Suspicion:
    """Explain a rank by legal work that takes long; ``what`` is what it does."""
    frames, activity = get_frames(facts, rank), get_activity(facts, rank)
    user = find_user_frame(frames)
    share = round(activity.cpu_share or 0.0, 2)
    used = f"rank {rank} uses {share:.0%} of a core"
    if works_by_child(facts, rank):
        used += f", and its child processes {activity.children_cpu_share or 0.0:.0%}"
    return Suspicion(
        rank,
        codes.SETUP_SLOW,
        Confidence.LIKELY,
        f"{what}: {user.function if user else 'its main thread'} moves",
        frames,
        because=(Citation(used, activity.artifact),),
        measures={"cpu_share": share},
    )


def _is_alone_in_joining(facts: Facts) -> bool:
    """Return whether few ranks set up a process group: of most, the others may be missing there."""
    joining = [rank for rank, at in facts.stacks.positions.items() if at.doing is Doing.JOINING]
    return 2 * len(joining) < len(facts.ranks.all)


def explain_absent(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank that is simply elsewhere."""
    if rank in facts.exits.dead:
        return None
    frames, activity = get_frames(facts, rank), get_activity(facts, rank)
    if not frames:
        return explain_unseen(facts, rank)
    doing = facts.stacks.positions[rank].doing if rank in facts.stacks.positions else Doing.USER
    is_joining = doing is Doing.JOINING
    if is_joining and not _is_alone_in_joining(facts):
        return None
    is_pair = len(facts.stacks.positions) <= 2  # noqa: PLR2004 - nobody is in the majority
    if doing is Doing.BACKWARD and activity.cpu_share is None and is_pair:
        return None  # either may wait for the other, for its gradients or in its own call
    here = select_user_frames(frames)
    is_busy = is_moving(facts, activity) or works_by_child(facts, rank)
    blocked = not is_busy and activity.cpu_share is not None
    incident = facts.evidence.incident
    gap = facts.policy.long_gap_factor * incident.longest_gap_s
    is_long = incident.longest_gap_s > 0 and incident.stalled_s > gap
    is_clear = (blocked or is_long) and not _may_wait_for_device(facts, rank, is_idle=blocked)
    sure = Confidence.LIKELY if is_clear else Confidence.POSSIBLE
    how = "is blocked" if blocked else "is"
    if is_joining:
        sure, how = Confidence.POSSIBLE, "waits for others"
    place = describe_place(here[0]) if here else "unknown code"
    last: tuple[Frame, ...] = ()
    text = f"{how} in {place}"
    if blocked and is_in_idle_loop(frames):
        last = facts.ops.find_last_site(rank)[:1]
        text = f"waits in the event loop of asyncio, in {place}: none of its tasks can go on"
        text += f"; its last collective was in {describe_place(last[0])}" if last else ""
    measures = {}
    if activity.cpu_share is not None:
        measures["cpu_share"] = round(activity.cpu_share, 2)
    return Suspicion(
        rank,
        codes.RANK_NEVER_JOINED,
        sure,
        text,
        frames,
        more_frames=last,
        because=(facts.stacks.cite(rank, f"main thread of rank {rank}, last sample"),),
        details={"state": "blocked" if blocked else "running"},
        measures=measures,
    )


def _may_wait_for_device(facts: Facts, rank: int, *, is_idle: bool) -> bool:
    """Return whether a rank may be where it is for its device: its log tells no ends of ops there.

    Hosts spin while they wait for a device, unless they are told to rest: then the others rest too.
    """
    if rank not in facts.ops.endless_ranks:
        return False
    frames = get_frames(facts, rank)
    if may_wait_for_device(frames, facts.stacks.find_source_line(frames[0])):
        return True
    idle_share = facts.policy.idle_cpu_share
    others = [get_activity(facts, wait.rank).cpu_share for wait in facts.waits.pending]
    return not (is_idle and any(share is not None and share >= idle_share for share in others))


def _is_world_told(facts: Facts) -> bool:
    """Return whether anything tells how many ranks there are, rather than the largest one seen.

    Who pastes stacks leaves out those that tell nothing.
    """
    evidence = facts.evidence
    is_pasted = evidence.incident.kind == "files" and not facts.ops.recorded_ranks
    return not is_pasted or any(file.world_size for file in evidence.logs.files)


def explain_unseen(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank without stacks: the place of its last op is all there is."""
    last = facts.ops.find_last_site(rank)
    is_known = rank in facts.ops.recorded_ranks
    if not is_known and not (facts.ranks.has_few_unknown and _is_world_told(facts)):
        return None
    text = "went no further after its last collective" if is_known else "left no evidence at all"
    # It may as well be in a send or receive, and wait for somebody else there, or for its device.
    is_sure = is_known and rank not in facts.ops.unrecorded_ranks | facts.ops.endless_ranks
    return Suspicion(
        rank,
        codes.RANK_NEVER_JOINED,
        Confidence.LIKELY if is_sure else Confidence.POSSIBLE,
        text,
        last,
        details={"state": "unknown"},
    )
