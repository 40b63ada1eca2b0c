"""A small synthetic dataset; reading a sample takes a few milliseconds."""

import time
from collections.abc import Iterator

import torch
from torch.utils.data import DataLoader, Dataset

BATCH = 8
WIDTH = 64

Sample = tuple[torch.Tensor, torch.Tensor]


class Samples(Dataset[Sample]):
    """One rank's share of the data."""

    def __init__(self, length: int, delay: float = 0.005) -> None:
        self.length = length
        self.delay = delay

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Sample:
        return self.load(index)

    def load(self, index: int) -> Sample:
        time.sleep(self.delay)
        features = torch.linspace(-1.0, 1.0, WIDTH) * ((index % 17) + 1)
        return features, features.sum().reshape(1)


def batches(dataset: Dataset[Sample], workers: int = 0) -> Iterator[Sample]:
    yield from DataLoader(dataset, batch_size=BATCH, num_workers=workers, drop_last=True)
