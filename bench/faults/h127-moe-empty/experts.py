"""A layer of experts, spread over the ranks of a group."""

import torch
import torch.distributed as dist

from _train.stamp import stamp


class Experts:
    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.weight = torch.eye(4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        counts = torch.tensor([float(len(tokens))])
        dist.all_reduce(counts, group=self.group)
        return self.combine(self.dispatch(tokens) @ self.weight)

    def dispatch(self, tokens: torch.Tensor) -> torch.Tensor:
        if len(tokens) == 0:
            stamp()
            return tokens  # <- also
        received = torch.empty_like(tokens)
        dist.all_to_all_single(received, tokens, group=self.group)  # <- here
        return received

    def combine(self, tokens: torch.Tensor) -> torch.Tensor:
        returned = torch.empty(8, 4)
        padded = torch.zeros(8, 4)
        padded[: len(tokens)] = tokens
        dist.all_to_all_single(returned, padded, group=self.group)
        return returned
