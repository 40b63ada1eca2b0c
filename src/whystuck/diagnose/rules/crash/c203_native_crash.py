"""C203 native-crash."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from msgspec.structs import replace

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import describe_place, make_places
from whystuck.diagnose.context.scene import Scene
from whystuck.diagnose.logs.log_rule import LogRule
from whystuck.diagnose.policy import Policy
from whystuck.diagnose.rule import Blame
from whystuck.evidence.finding import Citation, Confidence, Finding
from whystuck.evidence.ranks import name_ranks

# What libstdc++ says of an abort that no exception led to: above all of a thread that asks for an
# interpreter that is shut down, which ends it in the middle of C++.
_NO_EXCEPTION = "terminate called without an active exception"
_LOOK_AT_LINE = "look at the named line: the call in it leads into native code that failed"
_END_GROUPS = (
    "if all work was done, a thread of torch came back to Python while it was shut down: end the "
    "script with `dist.destroy_process_group()` and `os._exit(0)`"
)

_ABORT = "SIGABRT"


class NativeCrash(LogRule):
    """A rank crashed in native code.

    ## What it means

    The process got SIGSEGV, SIGBUS, SIGILL, SIGFPE or SIGABRT: an extension or a library of
    native code failed. There is no Python traceback.

    ## How it is found

    The signal that ended the rank, and the Python stack that faulthandler wrote at that moment.
    An abort inside a collective is left out when something else failed first, and when tensors
    of different size or type explain it. From logs: `Fatal Python error`, `segfault at` in the
    kernel log, messages of the heap and of C++ before an abort, and the exit codes that launchers
    report. The abort of torch's own watchdog is not a crash.

    An abort "without an active exception" mostly comes after the last line of the script: a
    thread of gloo that still held a tensor wants the interpreter, which is shut down already. All
    work was done; only the exit code is wrong.

    ## False alarms

    A rank whose library aborts because a peer is gone, when the end of the peer left no trace.

    ## What to do

    Look at the line named: the call in it leads into the native code that failed. SIGBUS is
    often a full `/dev/shm`. After an abort at the very end, have the script destroy its groups and
    leave by `os._exit(0)`, which takes no interpreter down.
    """

    code = codes.NATIVE_CRASH
    name = "native-crash"
    end_class = "computation-error"
    remedies: ClassVar[tuple[str, ...]] = (
        _LOOK_AT_LINE,
        "for a native backtrace, allow core files (`ulimit -c unlimited`) and open one with `gdb`",
        "after SIGBUS, check that `/dev/shm` is not full",
    )

    def check(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield the findings, with the advice that fits where there is no line to look at."""
        for finding in super().check(scene, policy):
            is_plain = finding.where or all(_NO_EXCEPTION not in c.text for c in finding.because)
            yield finding if is_plain else _advise(finding)

    def check_live(self, scene: Scene, policy: Policy) -> Iterator[Finding]:
        """Yield a finding for ranks that crashed first."""
        crashed = scene.exits.crash_signals
        if not crashed or scene.divergences.is_wire_mismatch or scene.exits.root_exceptions:
            return
        if set(crashed.values()) == {"SIGABRT"} and scene.logs.wire_complaints & {
            *crashed,
            -1,
        }:
            # gloo aborts a rank that got more than it expected: what it got is another one's.
            return
        ranks = sorted(crashed)
        stacks = {fatal.rank: fatal for fatal in scene.evidence.fatals}
        where = [
            place
            for rank in ranks
            for place in make_places(
                rank,
                stacks[rank].threads[0].frames
                if rank in stacks and stacks[rank].threads
                else scene.exits.find_last_frames(rank),
                policy.places_per_rank,
            )
        ]
        because = [
            Citation(f"faulthandler: {fatal.reason}", fatal.artifact)
            for rank, fatal in stacks.items()
            if rank in crashed
        ]
        because += [
            Citation(f"rank {rank} ended by {crashed[rank]}", scene.exits.by_rank[rank].artifact)
            for rank in ranks
            if rank in scene.exits.by_rank
        ]
        names = " and ".join(sorted(set(crashed.values())))
        place = f" in {describe_place(where[0])}" if where else ""
        unknown = _find_unknown(scene, crashed)
        doubt = f"; what {name_ranks(unknown)} called is not known, and may not fit"
        # Whoever called what all others called has not made it fail.
        blamed = [rank for rank in ranks if not unknown or rank in unknown]
        yield self.make_finding(
            f"{name_ranks(ranks)} crashed with {names}{place}{doubt if unknown else ''}",
            Confidence.POSSIBLE if unknown else Confidence.CERTAIN,
            Blame(ranks=blamed, victims=scene.ranks.victims, where=where),
            because=because,
            details={"signal": names},
        )


def _find_unknown(scene: Scene, crashed: Mapping[int, str]) -> frozenset[int]:
    """Return the ranks from whose ops, which nobody knows, an abort of others may follow."""
    if any(_NO_EXCEPTION in event.text for event in scene.story.view.events):
        return frozenset()  # what does not fit is an exception of the transport
    placed = {fatal.rank for fatal in scene.evidence.fatals if fatal.threads}
    may_follow = any(
        name == _ABORT and (rank in scene.exits.aborted_in_collective or rank not in placed)
        for rank, name in crashed.items()
    )
    return scene.ranks.all - scene.ops.recorded_ranks if may_follow else frozenset()


def _advise(finding: Finding) -> Finding:
    kept = (text for text in finding.remedies if text != _LOOK_AT_LINE)
    return replace(finding, remedies=[_END_GROUPS, *kept])
