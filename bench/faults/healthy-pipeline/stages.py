"""The stages of the pipeline: later ones are deeper."""

from torch import nn

from _train.data import WIDTH


def build_stage(number: int) -> nn.Module:
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(1 + 2 * number)])
