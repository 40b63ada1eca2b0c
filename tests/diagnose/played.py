"""Plays a script on ranks that wait in each op, as gloo does, and gives the evidence they leave.

The script is run once for each rank, with a `dist` that only notes the calls and their lines. Then
the calls of all ranks are played against each other: a rank is in one call at a time, and the call
is over when all members of its group are in a call of that number with one form. What does not
match stays pending, as does all that comes after it.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import dedent
from typing import Any

from tests.diagnose.op_scenes import Logged
from tests.diagnose.scenes import C10D, STEP_NS
from tests.parse.ops.op_logs import MS, SITE, Ring

from whystuck.evidence.finding import Report
from whystuck.evidence.ops.collectives import Frame

SCRIPT = "/job/train.py"
PAIR = {"send", "recv"}


@dataclass(frozen=True)
class Call:
    """A call of a rank: the group, the op and its size, and the frames, innermost first.

    ``peer`` is the other end of a send or a receive.
    """

    group: tuple[int, ...]
    label: str
    op: str
    size: int
    frames: tuple[tuple[str, str, int], ...]
    step: int = 0
    peer: int = -1


@dataclass
class Dist:
    """What a script has in place of `torch.distributed`."""

    rank: int
    world: int
    limit: int
    calls: list[Call] = field(default_factory=list)
    names: dict[tuple[str, tuple[int, ...]], str] = field(default_factory=dict)
    steps: int = 0

    def new_group(self, ranks: Sequence[int], label: str = "") -> tuple[str, tuple[int, ...]]:
        return label, tuple(ranks)

    def get_rank(self) -> int:
        return self.rank

    def get_world_size(self) -> int:
        return self.world

    def all_reduce(self, size: int = 4, group: Any = None) -> None:
        self._note("all_reduce", size, group)

    def all_to_all(self, size: int = 4, group: Any = None) -> None:
        self._note("all_to_all_single", size, group)

    def all_gather(self, size: int = 4, group: Any = None) -> None:
        self._note("all_gather", size, group)

    def reduce_scatter(self, size: int = 4, group: Any = None) -> None:
        self._note("reduce_scatter", size, group)

    def broadcast(self, size: int = 4, group: Any = None) -> None:
        self._note("broadcast", size, group)

    def barrier(self, group: Any = None) -> None:
        self._note("barrier", 0, group)

    def send(self, peer: int, size: int = 4) -> None:
        self._note("send", size, None, peer)

    def recv(self, peer: int, size: int = 4) -> None:
        self._note("recv", size, None, peer)

    def optimizer_step(self) -> None:
        self.steps += 1

    def _note(self, op: str, size: int, group: Any, peer: int = -1) -> None:
        label, members = group or ("", tuple(range(self.world)))
        if self.rank not in members or len(self.calls) >= self.limit:
            return
        frames = []
        frame = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_filename == SCRIPT:
                frames.append((frame.f_code.co_name, SCRIPT, frame.f_lineno))
            frame = frame.f_back  # type: ignore[assignment]
        self.calls.append(Call(members, label, op, size, tuple(frames), self.steps, peer))


@dataclass
class Played:
    """What came of a script: the calls that each rank made, and the last of them is pending."""

    text: str
    world: int
    made: dict[int, list[Call]]
    is_over: bool
    capacity: int = 4096
    has_source: bool = True
    has_frames: bool = True

    def logged(self) -> Logged:
        logged = Logged(self.world, capacity=self.capacity)
        for rank, calls in self.made.items():
            self._write(logged, rank, calls)
        if self.has_source:
            logged.job.sources[SCRIPT] = self.text
        return logged

    def _write(self, logged: Logged, rank: int, calls: list[Call]) -> None:
        ring: Ring = logged.rings[rank]
        numbers = {("", tuple(range(self.world))): 1}
        for index, call in enumerate(calls):
            key = call.label, call.group
            if key not in numbers:
                name = f"{call.label}{'-'.join(map(str, call.group))}"
                numbers[key] = ring.group(name, list(call.group))
            is_last = index == len(calls) - 1 and not self.is_over
            frames = [list(frame) for frame in call.frames] if self.has_frames else []
            ring.op(
                call.op,
                group=numbers[key],
                site=ring.value(SITE, {"frames": frames}),
                takes_ns=None if is_last else MS,
                step=call.step,
                **({"peer": call.peer} if call.peer >= 0 else {}),
                at_ns=1000 * MS + (1 + index) * STEP_NS // 10,
                **{"in": [[call.size]], "out": [[call.size]]},  # type: ignore[arg-type]
            )
        if calls and not self.is_over:
            last = calls[-1]
            site = [Frame(name, file, line) for name, file, line in last.frames]
            logged.job.stands(rank, (Frame(last.op, C10D, 3000), *site))

    def report(self) -> Report:
        return self.logged().report()


def play(
    text: str,
    world: int = 4,
    *,
    limit: int = 400,
    more: Callable[[int], Mapping[str, Any]] = lambda _: {},
) -> Played:
    """Run a script on all ranks.

    Args:
        text: The script; it has `dist`, `rank` and `world`, and `rng`, which all ranks share.
        world: The number of ranks.
        limit: A rank makes no more calls than that.
        more: Gives the other names that the script of a rank has.

    Returns:
        The calls that came to be made, in step with each other.
    """
    text = dedent(text)
    code = compile(text, SCRIPT, "exec")
    programs = {}
    for rank in range(world):
        dist = Dist(rank, world, limit)
        names = {"dist": dist, "rank": rank, "world": world, "rng": random.Random(7)}
        exec(code, {"__name__": "__main__"} | names | dict(more(rank)))
        programs[rank] = dist.calls
    return _match(text, world, programs)


def _match(text: str, world: int, programs: Mapping[int, list[Call]]) -> Played:
    at = dict.fromkeys(programs, 0)
    counts: dict[tuple[int, str, tuple[int, ...]], int] = {}

    def find_there(rank: int) -> list[int]:
        """Return the ranks that are in the call of a rank; none while some are missing."""
        call = programs[rank][at[rank]]
        now = {one: mine[at[one]] for one, mine in programs.items() if at[one] < len(mine)}
        if call.peer >= 0:
            other = now.get(call.peer)
            is_met = other is not None and other.peer == rank and {call.op, other.op} == PAIR
            return [rank, call.peer] if is_met else []
        group = call.label, call.group
        there = [
            one
            for one in call.group
            if one in now
            and (now[one].label, now[one].group, now[one].peer) == (*group, -1)
            and counts.get((one, *group), 0) == counts.get((rank, *group), 0)
        ]
        is_met = len(there) == len(call.group)
        return there if is_met and len({(now[one].op, now[one].size) for one in there}) == 1 else []

    moved = True
    while moved:
        moved = False
        for rank, calls in programs.items():
            there = find_there(rank) if at[rank] < len(calls) else []
            for one in there:
                call = calls[at[rank]] if one == rank else programs[one][at[one]]
                if call.peer < 0:
                    key = one, call.label, call.group
                    counts[key] = counts.get(key, 0) + 1
                at[one] += 1
            moved = moved or bool(there)
    is_over = all(at[rank] == len(calls) for rank, calls in programs.items())
    made = {rank: calls[: at[rank] + 1] for rank, calls in programs.items()}
    return Played(text, world, made, is_over)
