"""Which rank this process is, as far as it can be known."""

from __future__ import annotations

import os
import sys

from . import files


class Identity:
    """Rank, world size and local rank.

    ``is_member`` is true once the process has made a process group; before that the
    environment of the launcher is all there is.
    """

    def __init__(self) -> None:
        self.rank = -1
        self.world_size = 0
        self.local_rank = -1
        self.is_member = False

    def read_environment(self) -> bool:
        """Take the launcher's word; return whether this process looks like a rank.

        ``LOCAL_RANK`` is asked for too, because some platforms give ``RANK`` to the launcher.
        A child of a rank inherits the variables and is told apart by the claim.
        """
        rank, local_rank = _number("RANK"), _number("LOCAL_RANK")
        if rank < 0 or local_rank < 0:
            return False
        claimed_rank, _, claimed_pid = os.environ.get(files.CLAIM_ENV, "").partition(":")
        if claimed_rank == str(rank) and claimed_pid != str(os.getpid()):
            return False
        if _is_ourselves():
            return False
        os.environ[files.CLAIM_ENV] = f"{rank}:{os.getpid()}"
        self.rank, self.local_rank = rank, local_rank
        self.world_size = max(0, _number("WORLD_SIZE"))
        return True

    def join(self, rank: int, world_size: int) -> None:
        """Take rank and world size of the default process group, or read them when unknown."""
        if rank < 0:
            c10d = sys.modules["torch.distributed.distributed_c10d"]
            if not c10d.is_initialized():
                return
            rank, world_size = c10d.get_rank(), c10d.get_world_size()
        self.rank, self.world_size, self.is_member = rank, world_size, True
        self.local_rank = max(self.local_rank, _number("LOCAL_RANK"))
        os.environ[files.CLAIM_ENV] = f"{self.rank}:{os.getpid()}"


def _is_ourselves() -> bool:
    """Return whether this process is whystuck, which a job may start; Python 3.9 does not tell."""
    words = [*getattr(sys, "orig_argv", ()), "", "", ""]
    return words[1:3] == ["-m", "whystuck"] or os.path.basename(words[1]) == "whystuck"


def _number(name: str) -> int:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return -1
