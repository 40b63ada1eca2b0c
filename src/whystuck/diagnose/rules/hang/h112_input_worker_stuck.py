"""H112 input-worker-stuck."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.rule_kinds import SuspectRule


class InputWorkerStuck(SuspectRule):
    """A data-loader worker does not deliver, and its rank waits for it.

    ## What it means

    The main process waits for a batch; a worker process is inside the dataset and stays
    there: it sleeps, loops, or waits for a lock that another thread held when the worker was
    forked.

    ## How it is found

    The main thread of a suspect is in `_try_get_data`, and a worker has frames of the user
    below `torch/utils/data/_utils/fetch.py` in one function over all samples. Idle workers
    wait in `index_queue.get` and are passed over.

    Of stacks that somebody pasted, a worker is known by its parent too (`pgrep -P 20114`, `--ppid`,
    `workers of 20114`, `Process 20640: python t.py (forked from 20114)`), or where its stack is cut
    at the fetch while a rank waits in its loader. Where the stack of no rank is shown, a worker
    that waits for a mutex in its dataset is told by itself: a fork has no other thread.

    ## False alarms

    A worker that is busy with one very large sample for longer than the stall limit.

    ## What to do

    Look at the worker's line. With a lock there, use `multiprocessing_context='spawn'` or do
    not start threads before the loader.
    """

    code = codes.INPUT_WORKER_STUCK
    name = "input-worker-stuck"
    remedies: ClassVar[tuple[str, ...]] = (
        "look at the worker's line named here; the rank itself is only waiting",
        "pass `timeout=` to the DataLoader, so that a stuck worker raises an error",
        (
            "if the line takes a lock, start workers with `multiprocessing_context='spawn'`: a "
            "fork copies locks as they are held"
        ),
    )
