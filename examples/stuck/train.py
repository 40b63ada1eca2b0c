"""Trains a small model with DDP, saves a checkpoint every ten steps, and gets stuck.

It runs on CPU:

    torchrun --standalone --nproc-per-node 4 examples/stuck/train.py

The mistake in it is a common one. Can you see it? `make demo` can.
"""

import argparse
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Waves(Dataset):
    """Noisy samples of a wave; the model learns to tell the next value."""

    def __init__(self, size, length=32):
        generator = torch.Generator().manual_seed(0)
        phase = 6.28 * torch.rand(size, 1, generator=generator)
        wave = torch.sin(phase + 0.2 * torch.arange(length + 1))
        wave += 0.05 * torch.randn(wave.shape, generator=generator)
        self.inputs, self.targets = wave[:, :-1], wave[:, -1:]

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


def save_checkpoint(model, optimizer, step, folder):
    """Rank 0 writes the state; nobody goes on before the file is complete."""
    if dist.get_rank() == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        path = folder / f"step-{step}.pt"
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        dist.barrier()  # do not replace a file that someone still reads
        partial.rename(path)
        print(f"saved {path.name}, {path.stat().st_size // 1024} KiB", flush=True)
    dist.barrier()


def train_step(model, optimizer, inputs, targets):
    """One optimizer step; the loss is averaged over all ranks."""
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    mean = loss.detach() / dist.get_world_size()
    dist.all_reduce(mean)
    return mean.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=10)
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 1))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = Waves(2048)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=64, sampler=sampler)
    folder = Path(tempfile.mkdtemp(prefix="checkpoints-"))

    step = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = train_step(model, optimizer, inputs, targets)
            step += 1
            if dist.get_rank() == 0 and step % 5 == 0:
                print(f"step {step}  loss {loss:.4f}", flush=True)
            if step % args.save_every == 0:
                save_checkpoint(model, optimizer, step, folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
