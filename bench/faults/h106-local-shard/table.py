"""A table of embeddings of which each rank holds some rows."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from _train.stamp import stamp
from _train.training import Job

ROWS, COLUMNS = 6, 8


class Table:
    def __init__(self, job: Job) -> None:
        self.mesh = init_device_mesh("cpu", (job.world,))

    def export(self, job: Job, step: int) -> float:
        rows = ROWS
        if job.turn(step):
            stamp()
            rows += 1 + int(job.plan.amount * 4)
        local = torch.full((rows, COLUMNS), float(step))
        table = DTensor.from_local(local, self.mesh, [Shard(0)], run_check=False)
        if job.plan.even:
            whole = table.full_tensor()  # <- here
        else:
            whole = table.redistribute(self.mesh, [Replicate()]).to_local()  # <- here
        return float(whole.sum())
