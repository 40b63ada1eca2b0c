"""Measures what needs torch, in the Python of the job (3.9 and newer); nothing of ours is imported.

Called with JSON: the settings of each part by its name. Begins when its input ends, and prints a
line of JSON for each part. Torch is imported here once and no device is touched; each part runs in
children, with a deadline. It ends with its caller.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

# Its neighbours, also where Python leaves out the folder of a program.
sys.path.insert(0, str(Path(__file__).resolve().parent))

import check_nodes
from check_children import end_with_parent, find_devices, run_children, wait
from check_ranks import Group, reduce

LEAST_REPEATS = 3
MEET = "meet"


def main():
    """Run the parts that are wanted, one after the other."""
    began_s = time.monotonic()
    wanted = json.loads(sys.argv[1])
    end_with_parent()
    try:
        import torch
    except Exception as error:
        print(json.dumps({"part": "import", "skipped": "torch cannot be imported: %s" % error}))
        return
    import_s = time.monotonic() - began_s
    sys.stdin.read()  # others measure until it is closed
    done = {}
    for name, settings in wanted.items():
        began_s = time.monotonic()
        if name == MEET:
            settings["tflops"] = list_speeds(done.get("gemm", {}))
        told = done[name] = try_part(torch, name, settings)
        told["part"] = name
        told["took_s"] = time.monotonic() - began_s + import_s
        import_s = 0.0
        print(json.dumps(told), flush=True)
    check_nodes.leave()


def try_part(torch, name, settings):
    """Run one part; what it raises costs no other one."""
    try:
        return run_part(torch, name, settings)
    except Exception as error:
        return {"problem": "%s: %s" % (type(error).__name__, str(error)[:500])}


def run_part(torch, name, settings):
    """Run one part, by itself or together with other nodes."""
    if name == MEET:
        return check_nodes.meet(torch, settings, tell_versions)
    if name in check_nodes.STEPS:
        return check_nodes.take_part(name, check_nodes.STEPS[name], torch, settings)
    return PARTS[name](torch, settings)


def list_speeds(told):
    """Return how fast each kind of device multiplies, by its slowest one."""
    speeds = {}
    for row in told.get("rows", ()):
        if "problem" not in row:
            kind = row["name"] + (", %d threads" % row["threads"] if row["threads"] else "")
            speeds[kind] = min(row["tflops"], speeds.get(kind, row["tflops"]))
    return speeds


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
    found = find_devices(torch)
    if "devices" not in found:
        return dict(found)
    names = found["devices"] or ["cpu"]
    works = [lambda name=name: multiply(torch, name, settings) for name in names]
    rows = [
        dict(row, device=name)
        for row, name in zip(run_children(works, settings["deadline_s"]), names)
    ]
    if len(rows) == 1 and "problem" in rows[0]:
        return rows[0]
    return {"rows": rows}


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


# ------------------------------------------------------------------------------------ allreduce


def measure_allreduce(torch, settings):
    """Sum integers over ranks on this node: each result is known, and exact."""
    told = run_ranks(torch, reduce, settings)
    return dict(told, bytes=told["rows"][0]["bytes"]) if "rows" in told else told


def run_ranks(torch, work, settings):
    """Run a function as the ranks of a group on this node, one for each device or some on gloo."""
    found = find_devices(torch)
    if "devices" not in found:
        return dict(found)
    devices = found["devices"]
    backend = "nccl" if len(devices) > 1 else "gloo"
    if backend == "gloo":
        devices = ["cpu"] * settings["ranks"]
    ranks = len(devices)
    # Not a port of the loopback, which other users of the node reach, too.
    with tempfile.TemporaryDirectory(prefix="whystuck-", dir=find_place()) as folder:
        meeting = str(Path(folder) / "store")

        def be_rank(rank):
            store = lambda: torch.distributed.FileStore(meeting, ranks)  # noqa: E731
            # Both ends are on this node: the loopback tells nothing of its network cards.
            interface = "lo" if backend == "gloo" else ""
            group = Group(backend, rank, ranks, store, devices[rank], interface)
            return work(torch, group, settings)

        works = [lambda rank=rank: be_rank(rank) for rank in range(ranks)]
        rows = run_children(works, settings["deadline_s"])
    problems = [row["problem"] for row in rows if "problem" in row]
    if problems:
        return {"problem": problems[0]}
    return {"rows": rows, "backend": backend, "ranks": ranks}


def find_place():
    """Return a folder in memory that has room, which no disk keeps waiting; else the usual one."""
    memory = "/dev/shm"  # noqa: S108 - what is made there is private
    try:
        has_room = os.access(memory, os.W_OK) and os.statvfs(memory).f_bavail > 0
    except OSError:
        has_room = False
    return memory if has_room else None


# ------------------------------------------------------------------------------------- training


def measure_training(torch, settings):
    """Train a small model twice from the same seed: all must agree, bit by bit."""
    return run_ranks(torch, train, settings)


def train(torch, group, settings):
    """Be one rank: return the losses of both runs, and a digest of the parameters after each."""
    group.join(torch)
    device, rank = group.device, group.rank
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
