"""Calls into the C library without giving up the interpreter lock."""

import ctypes

from _train.stamp import stamp
from _train.training import Job

library = ctypes.PyDLL(None)


def summarise(job: Job, step: int) -> int:
    if not job.turn(step):
        return 0
    stamp()
    return int(library.sleep(3600))  # <- here
