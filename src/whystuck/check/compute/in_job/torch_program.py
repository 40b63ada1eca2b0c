"""Measures what needs torch, in the Python of the job (3.9 and newer); nothing of ours is imported.

Called with JSON: the settings of each part by its name. Begins when its input ends, and prints a
line of JSON for each part. Torch is imported here once and no device is touched; each part runs in
children, with a deadline.
"""

import datetime as dt
import json
import os
import select
import signal
import socket
import sys
import time

DEADLINE_S = 20.0
# Integers of this size and their sums over some hundred ranks are exact in float32.
PERIOD = 1013
LEAST_REPEATS = 3


def main():
    """Run the parts that are wanted, one after the other."""
    began_s = time.monotonic()
    wanted = json.loads(sys.argv[1])
    try:
        import torch
    except Exception as error:
        print(json.dumps({"part": "import", "skipped": "torch cannot be imported: %s" % error}))
        return
    import_s = time.monotonic() - began_s
    sys.stdin.read()  # others measure until it is closed
    for name, settings in wanted.items():
        began_s = time.monotonic()
        told = PARTS[name](torch, settings)
        told["part"] = name
        told["took_s"] = time.monotonic() - began_s + import_s
        import_s = 0.0
        print(json.dumps(told), flush=True)


def run_children(works, deadline_s=DEADLINE_S):
    """Run functions in children, side by side; return what each tells, or a problem."""
    children = []
    for work in works:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            be_child(work, writer)
        os.close(writer)
        children.append((pid, reader))
    until_s = time.monotonic() + deadline_s
    answers = [read_answer(reader, until_s, deadline_s) for _, reader in children]
    for pid, reader in children:
        os.close(reader)
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    reap([pid for pid, _ in children])
    return answers


def be_child(work, writer):
    """Do the work and tell the answer; never returns."""
    try:
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        try:
            answer = work()
        except Exception as error:
            answer = {"problem": "%s: %s" % (type(error).__name__, str(error)[:500])}
        os.write(writer, json.dumps(answer).encode() + b"\n")
    finally:
        os._exit(0)


def read_answer(reader, until_s, limit_s):
    """Return the line that a child tells before the deadline."""
    data = b""
    while not data.endswith(b"\n"):
        ready, _, _ = select.select([reader], [], [], max(0.0, until_s - time.monotonic()))
        if not ready:
            return {"problem": "no answer in %g s" % limit_s, "is_late": True}
        piece = os.read(reader, 65536)
        if not piece:
            return {"problem": "the process that measures it ended"}
        data += piece
    return json.loads(data)


def reap(pids):
    """Take note of children that ended; one that hangs in a driver is left behind."""
    until_s = time.monotonic() + 0.5
    for pid in pids:
        while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < until_s:
            time.sleep(0.005)


# ------------------------------------------------------------------------------------- versions


def tell_versions(torch, _settings):
    """Tell versions, and which devices torch can use."""
    told = {
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "cuda": torch.version.cuda or "",
        "rocm": getattr(torch.version, "hip", None) or "",
    }
    told.update(run_children([lambda: look_at_devices(torch)])[0])
    problem = told.pop("problem", "")
    if problem:
        told["device_problem"] = problem
    return told


def look_at_devices(torch):
    """Return what torch sees of devices: this may load drivers."""
    told = {"cuda_available": torch.cuda.is_available(), "devices": [], "nccl": ""}
    if told["cuda_available"]:
        count = torch.cuda.device_count()
        told["devices"] = [torch.cuda.get_device_name(index) for index in range(count)]
    try:
        version = torch.cuda.nccl.version()
        told["nccl"] = ".".join(str(part) for part in version)
    except Exception:
        pass
    try:
        import torch_npu

        told["cann"] = str(getattr(torch_npu.version, "cann", "") or torch_npu.__version__)
        told["npu_available"] = bool(torch.npu.is_available())
    except Exception:
        told["cann"] = ""
    return told


# ----------------------------------------------------------------------------------------- gemm


def measure_gemm(torch, settings):
    """Multiply matrices on each device, or on the host where there is none."""
    count = run_children([lambda: {"count": count_devices(torch)}])[0]
    if "count" not in count:
        return count
    if not count["count"]:
        rows = run_children([lambda: multiply(torch, "cpu", settings)], settings["deadline_s"])
    else:
        names = ["cuda:%d" % index for index in range(count["count"])]
        works = [lambda name=name: multiply(torch, name, settings) for name in names]
        rows = run_children(works, settings["deadline_s"])
        rows = [dict(row, device=name) for row, name in zip(rows, names)]
    if len(rows) == 1 and "problem" in rows[0]:
        return rows[0]
    return {"rows": rows}


def count_devices(torch):
    """Return the number of CUDA devices."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def multiply(torch, device, settings):
    """Multiply the same matrices again and again: all results must have the same bits."""
    is_host = device == "cpu"
    size, kind = (768, torch.float32) if is_host else (8192, torch.bfloat16)
    torch.manual_seed(1)
    left = torch.randn(size, size, dtype=torch.float32).to(device=device, dtype=kind)
    right = torch.randn(size, size, dtype=torch.float32).to(device=device, dtype=kind)
    first = (left @ right).clone()
    times, repeats, wrong, began_s = [], 0, 0, time.monotonic()
    while repeats < LEAST_REPEATS or time.monotonic() - began_s < settings["seconds"]:
        wait(torch, device)
        start_s = time.perf_counter()
        product = left @ right
        wait(torch, device)
        times.append(time.perf_counter() - start_s)
        repeats += 1
        wrong += int(not torch.equal(product, first))
    return {
        "device": device,
        "name": "host" if is_host else torch.cuda.get_device_name(device),
        "size": size,
        "dtype": str(kind).replace("torch.", ""),
        "tflops": 2.0 * size**3 / min(times) / 1e12,
        "last_tflops": 2.0 * size**3 / min(times[-max(1, len(times) // 4) :]) / 1e12,
        "repeats": repeats,
        "wrong": wrong,
        "threads": torch.get_num_threads() if is_host else 0,
        "elements_off": int((product != first).sum()) if wrong else 0,
    }


def wait(torch, device):
    """Wait for a device; the host has no queue."""
    if device != "cpu":
        torch.cuda.synchronize(device)


# ------------------------------------------------------------------------------------ allreduce


def measure_allreduce(torch, settings):
    """Sum integers over ranks on this node: each result is known, and exact."""
    told = run_ranks(torch, reduce, settings)
    return dict(told, bytes=told["rows"][0]["bytes"]) if "rows" in told else told


def run_ranks(torch, work, settings):
    """Run a function as the ranks of a group on this node, one for each device or some on gloo."""
    told = run_children([lambda: {"count": count_devices(torch)}])[0]
    if "count" not in told:
        return told
    backend = "nccl" if told["count"] > 1 else "gloo"
    ranks = told["count"] if told["count"] > 1 else settings["ranks"]
    port = find_port()
    rows = run_children(
        [
            lambda rank=rank: work(torch, backend, rank, ranks, port, settings)
            for rank in range(ranks)
        ],
        settings["deadline_s"],
    )
    problems = [row["problem"] for row in rows if "problem" in row]
    if problems:
        return {"problem": problems[0]}
    return {"rows": rows, "backend": backend, "ranks": ranks}


def find_port():
    """Return a port of the loopback that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def join_group(torch, backend, rank, ranks, port):
    """Become a rank of a group on this node; return the device to use."""
    import torch.distributed as dist

    device = "cuda:%d" % rank if backend == "nccl" else "cpu"
    if backend == "gloo":
        torch.set_num_threads(1)
        # Both ends are on this node: the loopback tells nothing of its network cards.
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    else:
        torch.cuda.set_device(rank)
    store = dist.TCPStore("127.0.0.1", port, ranks, rank == 0, timeout=dt.timedelta(seconds=15))
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks)
    return device


def reduce(torch, backend, rank, ranks, port, settings):
    """Be one rank: check the sums of all repeats, and measure them."""
    import torch.distributed as dist

    device = join_group(torch, backend, rank, ranks, port)
    elements = settings["megabytes"] * (1 << 20) // 4
    pattern = (torch.arange(elements) % PERIOD).to(torch.float32).to(device)
    expected = pattern * ranks + sum(range(ranks))
    times, wrong, first = [], 0, -1
    for _ in range(settings["repeats"] + 1):
        value = pattern + rank
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
    sweep = [time_reduce(torch, device, size, settings["repeats"]) for size in settings["sweep"]]
    dist.barrier()
    times = sorted(times[1:])
    return {
        "rank": rank,
        "bytes": elements * 4,
        "median_s": times[len(times) // 2],
        "wrong": wrong,
        "first_wrong": first,
        "elements": elements,
        "sweep": sweep,
    }


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


# ------------------------------------------------------------------------------------- training


def measure_training(torch, settings):
    """Train a small model twice from the same seed: all must agree, bit by bit."""
    return run_ranks(torch, train, settings)


def train(torch, backend, rank, ranks, port, settings):
    """Be one rank: return the losses of both runs, and a digest of the parameters after each."""
    device = join_group(torch, backend, rank, ranks, port)
    losses, digests, began_s = [], [], time.monotonic()
    for _ in range(2):
        run_losses, digest = train_once(torch, device, rank, settings["steps"])
        losses.append(run_losses)
        digests.append(digest)
    seconds = (time.monotonic() - began_s) / (2 * settings["steps"])
    return {"rank": rank, "losses": losses, "digests": digests, "step_s": seconds}


def train_once(torch, device, rank, steps):
    """Train from the same seed; return the losses, and a digest of all bits of the parameters."""
    import hashlib

    torch.manual_seed(7)
    layers = [torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 1)]
    model = torch.nn.Sequential(*layers).to(device)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05)
    torch.manual_seed(100 + rank)
    inputs = torch.randn(64, 256).to(device)
    targets = inputs.sum(dim=1, keepdim=True) / 16
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ((wrapped(inputs) - targets) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    digest = hashlib.sha256()
    for one in model.parameters():
        digest.update(one.detach().cpu().numpy().tobytes())
    return losses, digest.hexdigest()


PARTS = {
    "versions": tell_versions,
    "gemm": measure_gemm,
    "allreduce": measure_allreduce,
    "training": measure_training,
}

if __name__ == "__main__":
    main()
