"""Each rank takes a table from the rank before it, in parts."""

import torch
import torch.distributed as dist

from _train.stamp import stamp
from _train.training import Job

PARTS = 3


def pass_on(job: Job, step: int) -> None:
    right, left = (job.rank + 1) % job.world, (job.rank - 1) % job.world
    count = PARTS
    if job.turn(step):
        stamp()
        count += 1
    part = torch.full((32,), float(step))
    requests = [dist.isend(part, dst=right) for _ in range(PARTS)]
    for _ in range(count):
        take(left)
    for request in requests:
        assert request is not None
        request.wait()


def take(source: int) -> torch.Tensor:
    part = torch.empty(32)
    request = dist.irecv(part, src=source)  # <- here
    assert request is not None
    request.wait()  # <- also
    return part
