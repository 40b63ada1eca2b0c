"""Training in half precision as it should be: the scale is found, and one bad batch left out."""

import torch

from _train.data import Sample
from _train.training import Job, start
from half import HalfTrainer


def spoil_once(job: Job, step: int, batch: Sample) -> Sample:
    features, target = batch
    if job.turn(step):
        features[0, 0] = float("inf")
    return features, target


def probe_inputs(trainer: HalfTrainer, batch: Sample) -> float:
    """How much the loss depends on the inputs; the gradients of the parameters are thrown away."""
    features = batch[0].clone().requires_grad_()
    module = getattr(trainer.network, "module", trainer.network)
    module(features).square().mean().backward()
    trainer.optimizer.zero_grad()
    assert features.grad is not None
    return float(features.grad.abs().max())


def main() -> None:
    job = start(__file__, shapes=("plain", "ddp"))
    trainer = HalfTrainer(job.engine)
    for step, batch in job.batches():
        loss = trainer.step(spoil_once(job, step, batch))
        if step % 2:
            probe_inputs(trainer, (torch.ones_like(batch[0]), batch[1]))
        job.log(step, loss.item())
    del trainer
    job.finish()


if __name__ == "__main__":
    main()
