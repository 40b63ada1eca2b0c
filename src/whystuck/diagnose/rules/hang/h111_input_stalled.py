"""H111 input-stalled."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.rule_kinds import SuspectRule


class InputStalled(SuspectRule):
    """A rank loads data in its main process and does not come back.

    ## What it means

    The `__getitem__` or `collate_fn` of the dataset, called in the training process itself
    (`num_workers=0`), blocks or is very slow.

    ## How it is found

    The rank is a suspect, and its main thread has frames of the user below
    `torch/utils/data/_utils/fetch.py`. The innermost of them is named.

    ## False alarms

    A first batch that is slow because caches are cold; the finding is only `possible` before
    training has found its rhythm.

    ## What to do

    Give reads in the dataset a timeout, and check the storage that the line reads from.
    """

    code = codes.INPUT_STALLED
    name = "input-stalled"
    remedies: ClassVar[tuple[str, ...]] = (
        "check what the named line of the dataset reads, and give it a timeout",
        (
            "move loading into workers with `DataLoader(num_workers=..., timeout=...)`, so that "
            "a stall raises an error"
        ),
    )
