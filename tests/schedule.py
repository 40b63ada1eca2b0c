"""Which process of the tests takes which file, and in which order.

Jobs mostly wait, other tests compute. While there are both, one process computes and the others
wait for jobs; the longest files come first, so that short ones are left for the end. What a file
takes is only guessed, from its text and the number of its tests: a wrong guess costs time, no test.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

# Names by which tests start processes, mostly through helpers.
_STARTS = re.compile(
    r"\b(?:torchrun|start_rank|start_job|run_whystuck|run_job|subprocess|Popen|fork|Running)\b"
    r"|^import torch\b",
    re.MULTILINE,
)
_JOB_S, _OTHER_S = 4.0, 0.02  # of one test


@cache
def starts_jobs(path: Path) -> bool:
    """Return whether the tests of a file seem to start processes."""
    return path.is_file() and _STARTS.search(path.read_text()) is not None


def choose_file(files: Iterable[tuple[Path, int]], *, prefers_jobs: bool) -> int:
    """Return the place of the file to take next, of files with the number of their tests."""

    def rank(place: int) -> tuple[bool, float]:
        path, count = waiting[place]
        is_job = starts_jobs(path)
        return is_job == prefers_jobs, count * (_JOB_S if is_job else _OTHER_S)

    waiting = list(files)
    return max(range(len(waiting)), key=rank)


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Lets one process run the tests of a file.

    One process a folder would leave the others idle: that of the supervisor has most real jobs.
    What xdist itself does takes time that grows with the square of the number of tests.
    """

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        others = [work for one, work in self.assigned_work.items() if one is not node]
        on_jobs = sum(any(map(self._starts_jobs, work)) for work in others)
        files = list(self.workqueue)
        chosen = files[
            choose_file(
                [(self._path(name), len(self.workqueue[name])) for name in files],
                prefers_jobs=on_jobs < max(1, self.numnodes - 1),
            )
        ]
        unit = self.assigned_work[node][chosen] = self.workqueue.pop(chosen)
        places = self._places(node)
        node.send_runtest_some([places[nodeid] for nodeid in unit])

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        """Forget a test that is over, and its file with the last one."""
        nodeid = self.registered_collections[node][item_index]
        file = self._split_scope(nodeid)
        unit = self.assigned_work[node][file]
        del unit[nodeid]
        if not unit:
            del self.assigned_work[node][file]
        self._reschedule(node)

    def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
        return sum(map(len, workload.values()))

    def _places(self, node: WorkerController) -> dict[str, int]:
        if self._known is None or self._known[0] is not node:
            names = self.registered_collections[node]
            self._known = (node, {name: place for place, name in enumerate(names)})
        return self._known[1]

    _known: tuple[WorkerController, dict[str, int]] | None = None

    def _starts_jobs(self, file: str) -> bool:
        return starts_jobs(self._path(file))

    def _path(self, file: str) -> Path:
        config: pytest.Config = self.config
        return config.rootpath / file
