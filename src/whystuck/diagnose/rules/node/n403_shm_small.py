"""N403 shm-small."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose.check_rule import CheckRule


class ShmSmall(CheckRule):
    """Shared memory has little room, or cannot be written.

    ## What it means

    Workers of data loaders hand batches over in `/dev/shm`. When it is full, they die with a bus
    error.

    ## How it is found

    A file is written there, and what is free is compared with the policy.

    ## False alarms

    Jobs without workers need none.

    ## What to do

    Give the container more.
    """

    code = "N403"
    name = "shm-small"
    remedies: ClassVar[tuple[str, ...]] = ("start the container with `--shm-size 8g` or more",)
