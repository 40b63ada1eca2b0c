"""Ranks of a group: how they join it, and an all-reduce whose sums are known and exact."""

import datetime as dt
import os
import time

from check_children import wait

# Integers of this size and their sums over some hundred ranks are exact in float32.
PERIOD = 1013
# A first look at a link of unknown speed, by which the size for the budget is chosen.
LEAST_BYTES = 1 << 14
_MOST_LOOKS = 5
# What a link lets through at once is no measure of it: a step must not take minutes by mistake.
_MOST_GROWTH = 8


class Group:
    """Who takes part, and how they meet.

    ``open_store`` opens a store of torch, in the process that calls it. ``interface`` is the
    network interface to use where the user has named none.
    """

    def __init__(self, backend, rank, ranks, open_store, device="cpu", interface="", limit_s=15.0):
        """Keep what a rank needs to know."""
        self.backend = backend
        self.rank = rank
        self.ranks = ranks
        self.open_store = open_store
        self.device = device
        self.interface = interface
        self.limit_s = limit_s

    def join(self, torch):
        """Become a rank of the group."""
        import torch.distributed as dist

        if self.device == "cpu":
            torch.set_num_threads(1)
        else:
            torch.cuda.set_device(self.device)
        if self.interface:
            os.environ["GLOO_SOCKET_IFNAME"] = self.interface
            if self.interface != "lo":
                os.environ.setdefault("NCCL_SOCKET_IFNAME", self.interface)
        dist.init_process_group(
            self.backend,
            store=self.open_store(),
            rank=self.rank,
            world_size=self.ranks,
            timeout=dt.timedelta(seconds=self.limit_s),
        )


def reduce(torch, group, settings):
    """Be one rank: check the sums of all repeats, and measure them."""
    import torch.distributed as dist

    group.join(torch)
    device, repeats = group.device, settings["repeats"]
    most = settings["megabytes"] << 20
    budget_s = settings.get("budget_s")
    size = choose_size(torch, group, most, budget_s / (repeats + 1)) if budget_s else most
    elements = size // 4
    pattern = (torch.arange(elements) % PERIOD).to(torch.float32).to(device)
    expected = pattern * group.ranks + sum(range(group.ranks))
    times, wrong, first = [], 0, -1
    for _ in range(repeats + 1):
        value = pattern + group.rank
        dist.barrier()
        wait(torch, device)
        start_s = time.perf_counter()
        dist.all_reduce(value)
        wait(torch, device)
        times.append(time.perf_counter() - start_s)
        off = value != expected
        count = int(off.sum())
        if count and first < 0:
            first = int(off.nonzero()[0])
        wrong += count
    dist.barrier()
    sweep = [time_reduce(torch, device, one, repeats) for one in settings.get("sweep", ())]
    dist.barrier()
    times = sorted(times[1:])
    return {
        "rank": group.rank,
        "bytes": elements * 4,
        "median_s": times[len(times) // 2],
        "wrong": wrong,
        "first_wrong": first,
        "elements": elements,
        "sweep": sweep,
    }


def choose_size(torch, group, most, budget_s):
    """Return a size, the same on all ranks, that takes no longer than a budget.

    A small one tells of latency and of other work on the nodes, and little of the link. So sizes
    grow until they take the time.
    """
    size = LEAST_BYTES
    for _ in range(_MOST_LOOKS):
        seconds = find_slowest(torch, group, time_reduce(torch, group.device, size, 2))
        before = size
        fits = min(int(before * budget_s / max(seconds, 1e-9)), before * _MOST_GROWTH)
        size = max(LEAST_BYTES, min(most, fits >> 12 << 12))
        if size == most or size < 2 * before:
            break
    return size


def find_slowest(torch, group, seconds):
    """Return the longest time that a rank of the group has measured."""
    import torch.distributed as dist

    slowest = torch.tensor([seconds], dtype=torch.float64, device=group.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest[0])


def time_reduce(torch, device, size, repeats):
    """Return the median time of an all-reduce of one size, in bytes."""
    import torch.distributed as dist

    value = torch.ones(size // 4, device=device)
    times = []
    for _ in range(repeats + 1):
        dist.barrier()
        wait(torch, device)
        start_s = time.perf_counter()
        dist.all_reduce(value)
        wait(torch, device)
        times.append(time.perf_counter() - start_s)
    return sorted(times[1:])[repeats // 2]
