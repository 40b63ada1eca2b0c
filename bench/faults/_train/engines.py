"""Three ways to train the same small model: plain collectives, DDP and FSDP2."""

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from _train.data import WIDTH, Sample

LEARNING_RATE = 1e-4


class Engine(Protocol):
    network: nn.Module

    def step(self, batch: Sample) -> torch.Tensor: ...

    def full_state(self) -> dict[str, Any]: ...


def build_network(norm: type[nn.Module], layers: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    blocks: list[nn.Module] = []
    for _ in range(layers):
        blocks += [nn.Linear(WIDTH, WIDTH), norm(WIDTH), nn.ReLU()]
    return nn.Sequential(*blocks, nn.Linear(WIDTH, 1))


def forward_backward(network: nn.Module, batch: Sample) -> torch.Tensor:
    features, target = batch
    loss = nn.functional.mse_loss(network(features), target)
    loss.backward()
    return loss.detach()


class PlainEngine:
    """Averages gradients by hand; rank 0 hands out the learning rate."""

    def __init__(self) -> None:
        self.network: nn.Module = build_network(nn.LayerNorm)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=LEARNING_RATE)
        self.steps = 0

    def step(self, batch: Sample) -> torch.Tensor:
        self._share_learning_rate()
        loss = forward_backward(self.network, batch)
        self._average_gradients()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def _share_learning_rate(self) -> None:
        self.steps += 1
        rate = torch.tensor([LEARNING_RATE / (1 + 0.01 * self.steps)])
        dist.broadcast(rate, src=0)
        for group in self.optimizer.param_groups:
            group["lr"] = rate.item()

    def _average_gradients(self) -> None:
        for parameter in self.network.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()

    def full_state(self) -> dict[str, Any]:
        return self.network.state_dict()


class DdpEngine:
    """DDP with batch norm, whose buffers DDP broadcasts before each forward."""

    def __init__(self) -> None:
        self.network: nn.Module = build_network(nn.BatchNorm1d)
        self.wrapped = nn.parallel.DistributedDataParallel(self.network)
        self.optimizer = torch.optim.SGD(self.wrapped.parameters(), lr=LEARNING_RATE)

    def step(self, batch: Sample) -> torch.Tensor:
        loss = forward_backward(self.wrapped, batch)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def full_state(self) -> dict[str, Any]:
        return self.network.state_dict()


class FsdpEngine:
    """FSDP2 on a CPU mesh: one shard group for each linear layer."""

    def __init__(self) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.network: nn.Module = build_network(nn.LayerNorm, layers=2)
        for block in self.network.children():
            if isinstance(block, nn.Linear):
                fully_shard(block, mesh=mesh)
        fully_shard(self.network, mesh=mesh)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=LEARNING_RATE)

    def step(self, batch: Sample) -> torch.Tensor:
        loss = forward_backward(self.network, batch)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def full_state(self) -> dict[str, Any]:
        """Collective: every rank must call it."""
        return {name: value.full_tensor() for name, value in self.network.state_dict().items()}


def build_engine(shape: str) -> Engine:
    engines: dict[str, type[Engine]] = {
        "plain": PlainEngine,
        "ddp": DdpEngine,
        "fsdp": FsdpEngine,
    }
    return engines[shape]()
