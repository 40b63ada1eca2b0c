"""Ops are coalesced where the backend can, and one by one where it cannot."""

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager, _world

from _train.training import start


def reduce_all(tensors: list[torch.Tensor], device: torch.device | None) -> None:
    try:
        with _coalescing_manager(device=device, async_ops=True) as works:
            for tensor in tensors:
                dist.all_reduce(tensor)
        works.wait()
    except RuntimeError:
        # torch goes on collecting otherwise.
        _world.pg_coalesce_state.pop(dist.group.WORLD)
        for tensor in tensors:
            dist.all_reduce(tensor)


def main() -> None:
    job = start(__file__)
    for step, batch in job.batches(steps=20):
        loss = job.engine.step(batch)
        means = [torch.ones(4), loss.detach().reshape(1).clone()]
        reduce_all(means, torch.device("cpu") if step % 5 == 0 else None)
        assert means[0][0].item() == job.world
        job.log(step, means[1].item() / job.world)
    job.finish()


if __name__ == "__main__":
    main()
