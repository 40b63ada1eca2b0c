"""Training in half precision, with a scaler for the loss."""

import torch
import torch.distributed as dist
from torch import nn

from _train.data import Sample
from _train.engines import Engine


class HalfTrainer:
    def __init__(self, engine: Engine) -> None:
        self.network = getattr(engine, "wrapped", engine.network)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=1e-5)
        self.scaler = torch.amp.GradScaler("cpu")

    def step(self, batch: Sample) -> torch.Tensor:
        features, target = batch
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            prediction = self.network(features)
        loss = nn.functional.mse_loss(prediction.float(), target)
        self.scaler.scale(loss).backward()
        self.average_gradients()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()

    def average_gradients(self) -> None:
        if isinstance(self.network, nn.parallel.DistributedDataParallel):
            return
        for parameter in self.network.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
