"""Where the threads of each rank were when they were looked at."""

from __future__ import annotations

from dataclasses import dataclass

from whystuck.diagnose.algorithms.stacks.frames import find_user_frame
from whystuck.diagnose.algorithms.stacks.positions import Position, is_held, locate
from whystuck.diagnose.context.facts.exceptions import Exceptions
from whystuck.diagnose.shared import cached_property
from whystuck.evidence.finding import Citation
from whystuck.evidence.live import StackSample
from whystuck.evidence.model import Evidence
from whystuck.evidence.ops.collectives import Frame


@dataclass(frozen=True, eq=False, repr=False)
class Stacks:
    """The stack samples of each rank, and where its main thread was."""

    evidence: Evidence
    exceptions: Exceptions

    @cached_property
    def are_pasted(self) -> bool:
        """Whether stacks are texts that people put together, rather than what whystuck took."""
        return any(sample.row is not None for sample in self.evidence.stacks)

    @cached_property
    def samples_by_rank(self) -> dict[int, list[StackSample]]:
        """Stack samples of the main process of each rank, oldest first."""
        samples: dict[int, list[StackSample]] = {}
        for sample in self.evidence.stacks:
            if not sample.worker:
                samples.setdefault(sample.rank, []).append(sample)
        return samples

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
            raised = self.exceptions.by_rank.get(rank)
            if main is not None and raised is not None and is_held(main.frames):
                positions[rank] = locate(raised.frames)
            elif main is not None:
                line = self.find_source_line(main.frames[0]) if main.frames else ""
                positions[rank] = locate(main.frames, line)
        return positions

    def find_source_line(self, frame: Frame) -> str:
        """Return the text of the line a frame is at; empty when the source was not kept."""
        text = self.evidence.sources.get(frame.file)
        if text is None:
            return ""
        lines = text.splitlines()
        return lines[frame.line - 1] if 0 < frame.line <= len(lines) else ""

    def find_line(self, rank: int) -> Frame | None:
        """Return the innermost user frame of the main thread of a rank."""
        position = self.positions.get(rank)
        return find_user_frame(position.frames) if position else None

    def cite(self, rank: int, text: str) -> Citation:
        """Cite the last stack sample of a rank."""
        samples = self.samples_by_rank.get(rank)
        last = samples[-1] if samples else None
        return Citation(text, last.artifact, last.row) if last else Citation(text)
