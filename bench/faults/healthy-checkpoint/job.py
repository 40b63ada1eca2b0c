"""Training that saves a checkpoint every 10 steps."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from _train.training import Job, start


def save_checkpoint(job: Job, folder: Path, step: int) -> None:
    state = job.engine.full_state()
    if job.rank == 0:
        torch.save({"model": state, "padding": torch.zeros(1_000_000)}, folder / f"{step}.pt")
    dist.barrier()


def main() -> None:
    job = start(__file__)
    with tempfile.TemporaryDirectory() as folder:
        for step, batch in job.batches(steps=120):
            loss = job.engine.step(batch)
            job.log(step, job.mean(loss))
            if step % 10 == 9:
                save_checkpoint(job, Path(folder), step)
    job.finish()


if __name__ == "__main__":
    main()
