"""Jobs that are only figures: what their ranks would show to the rules."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from whystuck.agent.triggers.history import JobHistory, RankLook

Noise = Callable[[random.Random], float]


def gauss(spread: float) -> Noise:
    """Factors around 1, as of a job on a quiet machine."""
    return lambda rng: max(0.05, rng.gauss(1.0, spread))


def heavy(spread: float) -> Noise:
    """Factors with a long tail, as of a job that reads from a shared file system."""
    return lambda rng: rng.lognormvariate(0.0, spread)


def spiky(spread: float, share: float, factor: float) -> Noise:
    """Factors of which some are far larger, as of a job that writes checkpoints."""
    return lambda rng: rng.gauss(1.0, spread) * (factor if rng.random() < share else 1.0)


QUIET = gauss(0.03)


@dataclass
class FigureJob:
    """A job whose ranks go in step; a rank waits when it is done before the slowest.

    ``work_s`` is what each rank needs for a step, and may change with time.
    """

    work_s: Sequence[Callable[[float], float]]
    noise: Noise = QUIET
    seed: int = 0
    every_s: float = 5.0
    history: JobHistory = field(default_factory=JobHistory)

    def run(self, until_s: float) -> Iterator[float]:
        """Let time pass; yield after each look at all ranks."""
        rng = random.Random(self.seed)
        now_s, steps, next_look_s = 0.0, 0, self.every_s
        while now_s < until_s:
            ready_s = [work(now_s) * self.noise(rng) for work in self.work_s]
            step_s = max(ready_s)
            while next_look_s <= now_s + step_s:
                # Ranks beat at moments of their own.
                for rank, ready in enumerate(ready_s):
                    beat_s = next_look_s - rng.random()
                    is_waiting = ready < step_s and rng.random() < (step_s - ready) / step_s
                    look = RankLook(beat_s, steps=steps, pending=float(is_waiting), age_s=0.0)
                    self.history.note(rank, look)
                yield next_look_s
                next_look_s += self.every_s
            now_s += step_s
            steps += 1


def steady(work_s: float) -> Callable[[float], float]:
    """Work that does not change."""
    return lambda _now_s: work_s


def rising(work_s: float, at_s: float, factor: float) -> Callable[[float], float]:
    """Work that grows once."""
    return lambda now_s: work_s * (factor if now_s >= at_s else 1.0)
