"""The jobs of `acceptance.py`: ``torchrun ... jobs.py NAME [NUMBER]``."""

import ctypes
import itertools
import json
import os
import runpy
import subprocess
import sys
import threading
import time
from datetime import timedelta

os.environ.setdefault("NCCL_HOSTID", "h" + os.environ.get("RANK", "0"))

import torch
import torch.distributed as dist

DEVICE = os.environ.get("ACCEPTANCE_DEVICE", "cuda")
# The backend that stands in for NCCL, and what loads it: a library of `tests/nccl_like`.
LIKE, LOADER = os.environ.get("ACCEPTANCE_LIKE", ""), os.environ.get("ACCEPTANCE_LOADER", "")
BACKENDS = {"cuda": "nccl", "privateuseone": "cpu:nccl_like,privateuseone:nccl_like"}
CYCLES_A_SECOND = 2 * 10**9


def tell(**figures: object) -> None:
    """Print what was seen, on one line."""
    print("SAW " + json.dumps(figures), flush=True)


def begin(**more: object) -> tuple[int, int]:
    """Join the group; return rank and world size."""
    if DEVICE == "cuda":
        torch.cuda.set_device(0)
    if LIKE:
        runpy.run_path(LOADER, {"LIKE": LIKE})
    dist.init_process_group(BACKENDS.get(DEVICE, "gloo"), **more)
    return dist.get_rank(), dist.get_world_size()


def spin(seconds: float) -> None:
    """Keep the device busy, where there is one."""
    if DEVICE == "cuda":
        torch.cuda._sleep(int(seconds * CYCLES_A_SECOND))  # noqa: SLF001 - torch's tests do so
    elif LIKE:
        sys.modules["nccl_like"].spin(seconds)


def synchronize() -> None:
    """Wait for the device."""
    if DEVICE != "cpu":
        getattr(torch, DEVICE).synchronize()


def make_model() -> torch.nn.Module:
    """Return a DDP model of several buckets."""
    layers = [torch.nn.Linear(512, 512) for _ in range(8)]
    model = torch.nn.Sequential(*layers).to(DEVICE)
    return torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)


def train(steps: int, model: torch.nn.Module) -> float:
    """Train; return milliseconds a step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.ones(32, 512, device=DEVICE)
    begin_s = time.monotonic()
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    synchronize()
    return 1e3 * (time.monotonic() - begin_s) / max(1, steps)


def ok() -> None:
    """A: ops that end, timed."""
    rank, _ = begin()
    tensor = torch.ones(1 << 16, device=DEVICE)
    dist.all_reduce(tensor)
    synchronize()
    begin_s = time.monotonic()
    for _ in range(20):
        dist.all_reduce(tensor)
        synchronize()
    if rank == 0:
        tell(op_ms=1e3 * (time.monotonic() - begin_s) / 20)
    dist.destroy_process_group()


def context(kind: str = "hidden") -> None:
    """B: whether anybody made a context before this job did, and what came of it."""
    time.sleep(3)
    cuda = ctypes.CDLL("libcuda.so.1")
    flags, active = ctypes.c_uint(), ctypes.c_int()
    # 3 is CUDA_ERROR_NOT_INITIALIZED: the driver is as the job left it.
    state = cuda.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(active))
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader"]
    used = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    mine = [line for line in used.splitlines() if line.startswith(f"{os.getpid()},")]
    if kind == "fork":
        child = os.fork()
        if child == 0:
            try:
                torch.zeros(1, device="cuda")
            except RuntimeError:
                os._exit(3)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        tell(state=state, active=active.value, memory=mine, child=os.waitstatus_to_exitcode(status))
        return
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        torch.zeros(1, device="cuda")
        outcome = "works"
    except RuntimeError as error:
        outcome = str(error).splitlines()[0]
    tell(state=state, active=active.value, memory=mine, outcome=outcome)


def gil() -> None:
    """C: how often a thread gets the interpreter while the launch queue is full."""
    begin()
    counts = []
    is_over = threading.Event()

    def count() -> None:
        while not is_over.is_set():
            counts.append(time.monotonic())
            time.sleep(0.01)

    tensor = torch.ones(1024, device=DEVICE)
    dist.all_reduce(tensor)
    synchronize()
    threading.Thread(target=count, daemon=True).start()
    begin_s = time.monotonic()
    spin(10)
    if LIKE:  # who asks a handle waits as long as a launch does
        sys.modules["nccl_like"].block(10_000)
    work = dist.all_reduce(tensor, async_op=True)
    for _ in range(5000):
        tensor.add_(1)
    work.wait()
    synchronize()
    took_s = time.monotonic() - begin_s
    is_over.set()
    gaps = [late - early for early, late in itertools.pairwise(counts)]
    tell(counts_a_second=len(counts) / took_s, longest_gap_s=max(gaps, default=took_s))
    times = []
    for _ in range(20):
        start_s = time.monotonic()
        for _ in range(200):
            dist.all_reduce(tensor)
        synchronize()
        times.append(1e3 * (time.monotonic() - start_s))
    tell(step_ms=sorted(times)[len(times) // 2])
    dist.destroy_process_group()


def ddp() -> None:
    """E and I: steps of DDP; the number is how many."""
    begin()
    tell(step_ms=train(int(sys.argv[2]) if len(sys.argv) > 2 else 10, make_model()))
    dist.destroy_process_group()


def memory() -> None:
    """F: outputs that the job lets go of are freed."""
    begin()
    part = torch.ones(1 << 20, device=DEVICE)
    for _ in range(50):
        spin(0.5)
        out = torch.empty(64 << 20, device=DEVICE)
        dist.all_gather_into_tensor(out[: part.numel()], part, async_op=True).wait()
        del out
    synchronize()
    if LIKE:  # it has no most: what is left is what somebody holds
        tell(tensors=sys.modules["nccl_like"].tensors(), handles=sys.modules["nccl_like"].handles())
    else:
        tell(max_memory_mb=torch.cuda.max_memory_allocated() >> 20 if DEVICE == "cuda" else 0)
    dist.destroy_process_group()


def capture() -> None:
    """G1: a capture that is under way for 5 s while an op is pending elsewhere."""
    begin()
    tensor = torch.ones(1024, device=DEVICE)
    dist.all_reduce(tensor)
    synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        spin(8)
        dist.all_reduce(tensor, async_op=True)
    graph = torch.cuda.CUDAGraph()
    tell(state="capturing")
    with torch.cuda.graph(graph):
        tensor.add_(1)
        time.sleep(5)
    graph.replay()
    synchronize()
    tell(state="replayed")
    dist.destroy_process_group()


def compiled() -> None:
    """G2: a functional collective in a graph tree."""
    import torch.distributed._functional_collectives as funcol

    begin()

    def add(value: torch.Tensor) -> torch.Tensor:
        return funcol.all_reduce(value * 2, "sum", dist.group.WORLD) + 1

    step = torch.compile(add, mode="reduce-overhead")

    for _ in range(20):
        step(torch.ones(1024, device=DEVICE))
    synchronize()
    tell(state="done")
    dist.destroy_process_group()


def replay() -> None:
    """G3: a whole step in a graph, replayed for 90 s."""
    begin()
    tensor = torch.ones(1 << 20, device=DEVICE)
    dist.all_reduce(tensor)
    synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor.mul_(0.5)
        dist.all_reduce(tensor)
    end_s = time.monotonic() + 90
    while time.monotonic() < end_s:
        graph.replay()
        synchronize()
    tell(state="done")
    dist.destroy_process_group()


def hang(number: int) -> None:
    """D: rank 1 does not come, and rank 0's host is somewhere else than in a collective."""
    if number == 10 and os.environ["RANK"] == "1":
        time.sleep(10_000)  # HANG
    more = {"timeout": timedelta(seconds=30)} if "ACCEPTANCE_TIMEOUT" in os.environ else {}
    rank, _ = begin(**more)
    tensor = torch.ones(1024, device=DEVICE)
    for _ in range(3):
        dist.all_reduce(tensor)
    synchronize()
    if rank == 1:
        hang_odd(number, tensor)
    else:
        hang_rest(number, tensor)
    synchronize()
    dist.destroy_process_group()


def hang_odd(number: int, tensor: torch.Tensor) -> None:
    """Rank 1, whose line is to be found."""
    if number == 7:
        spin(10_000)
        dist.all_reduce(tensor)
        synchronize()
    elif number == 8:
        dist.all_reduce(torch.ones(4096, device=DEVICE))  # HANG
        synchronize()
        dist.barrier()
    elif number == 9:
        os.kill(os.getpid(), 9)
    else:
        time.sleep(10_000)  # HANG


def hang_rest(number: int, tensor: torch.Tensor) -> None:
    """Rank 0, which waits for its device."""
    if number == 4:
        train(1, make_model())
    elif number == 6:
        for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, tensor, 1)]):
            work.wait()
    else:
        dist.all_reduce(tensor)
    if number == 1:
        tensor.sum().item()
    elif number == 2:
        parameter = torch.nn.Parameter(torch.ones(1024, device=DEVICE))
        parameter.grad = tensor
        torch.nn.utils.clip_grad_norm_([parameter], 1.0).item()
    elif number == 5:
        for _ in range(100_000):
            tensor.add_(1)
    synchronize()
    if number == 8:
        dist.barrier()
        synchronize()


def main() -> None:
    """Run the job that is named."""
    name, *rest = sys.argv[1:]
    if name == "hang":
        hang(int(rest[0]))
    elif name == "context":
        context(*rest)
    else:
        globals()[name]()


if __name__ == "__main__":
    main()
