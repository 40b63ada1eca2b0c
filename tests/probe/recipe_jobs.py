"""The jobs of the tests of the usual recipe; each part of them checks itself."""

from tests.launch.running import LEAVE

# An own mark for each bug: a part that fails is shown, and the parts after it still run.
MARKS = """
import os, sys, traceback
class part:
    def __init__(self, bug):
        self.bug = bug
    def __enter__(self):
        return self
    def __exit__(self, kind, error, trace):
        if error is None:
            # In one piece, as both ranks write to one pipe.
            os.write(1, f"ok {self.bug} rank {os.environ['RANK']}\\n".encode())
        else:
            traceback.print_exception(kind, error, trace)
        return True
"""
WAYS = (
    MARKS
    + """
import builtins, threading, warnings
from datetime import timedelta
import torch, torch.distributed as dist
from torch.distributed import all_reduce as early_import, distributed_c10d
warnings.simplefilter("ignore")
OPS = (
    "all_reduce all_gather all_gather_into_tensor all_gather_object all_to_all all_to_all_single "
    "barrier broadcast broadcast_object_list gather gather_object irecv isend monitored_barrier "
    "recv reduce reduce_scatter reduce_scatter_tensor scatter scatter_object_list send"
).split()
ones = lambda value=1.0, count=4: torch.full((count,), float(value))
dirty = lambda count=4: torch.full((count,), float("nan"))
waits = []
for owner, name in [
    (torch.cuda, "synchronize"), (torch.cuda, "current_stream"),
    (torch.cuda.Stream, "synchronize"), (torch.cuda.Event, "synchronize"),
    (torch.accelerator, "synchronize"),
]:
    setattr(owner, name, lambda *args, name=name, **more: waits.append(name))

with part("B4-early"):
    assert not dist.is_initialized()
    early = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(early.parameters(), lr=0.1)
    early(torch.ones(1, 2)).sum().backward()
    optimizer.step()

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
probe = sys.modules["_whystuck_probe.install"]._PROBES[-1]
recorder = probe._rank.recorder

with part("B1"):
    t = ones(1); dist.all_reduce(t); assert t.tolist() == [2.0] * 4
    reports = recorder.log.inspector._reports
    measure = reports.measure
    def fail(*args):
        raise UnboundLocalError("operation_stats")
    if rank == 0:
        reports.measure = fail
    t = ones(1.5); dist.all_reduce(t); assert t.tolist() == [3.0] * 4
    reports.measure = measure
    assert torch.is_grad_enabled()

with part("B4-group"):
    subs = [dist.new_group([one]) for one in range(2)]
    if rank == 1:
        # Rank 0 of this group, and its root.
        dist.broadcast(ones(4), src=1, group=subs[1])

with part("B5"):
    got = [dirty(), dirty()]
    dist.all_gather(tensor_list=got, tensor=ones(5 + rank / 8))
    assert [one.tolist() for one in got] == [[5.0] * 4, [5.125] * 4]
    t = ones(5.5); dist.all_reduce(op=dist.ReduceOp.MAX, tensor=t); assert t.tolist() == [5.5] * 4
    into = dirty(8); dist.all_gather_into_tensor(input_tensor=ones(5.25), output_tensor=into)
    assert into.tolist() == [5.25] * 8

with part("B6"):
    box = dirty()
    batch = [dist.P2POp(dist.isend, ones(6), 1 - rank), dist.P2POp(dist.irecv, box, 1 - rank)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    assert box.tolist() == [6.0] * 4

with part("B7"):
    import torch.distributed._functional_collectives as funcol
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.device_mesh import init_device_mesh
    dist.all_reduce(ones(7.125))
    early_import(ones(7.25))
    distributed_c10d.all_reduce(ones(7.375))
    funcol.wait_tensor(funcol.all_reduce(ones(7.5), "sum", dist.group.WORLD))
    group = dist.group.WORLD
    compiled = torch.compile(lambda x: funcol.all_reduce(x, "sum", group) * 2, backend="eager")
    assert compiled(ones(7.625)).tolist() == [30.5] * 4
    mesh = init_device_mesh("cpu", (2,))
    whole = DTensor.from_local(ones(7.75), mesh, [Shard(0)]).full_tensor()
    assert whole.tolist() == [7.75] * 8
    linear = torch.nn.Linear(4, 4, bias=False)
    ddp = torch.nn.parallel.DistributedDataParallel(linear)
    ddp(torch.full((2, 4), 7.875)).sum().backward()
    assert linear.weight.grad.tolist() == [[15.75] * 4] * 4

with part("B8"):
    dist.barrier()
    dist.monitored_barrier()
    dist.all_gather_into_tensor(dirty(8), ones())
    out = dirty(); dist.reduce_scatter_tensor(out, ones(count=8)); assert out.tolist() == [2.0] * 4
    if hasattr(dist, "all_gather_single"):
        dist.all_gather_single(dirty(8), ones())
        dist.reduce_scatter_single(dirty(), ones(count=8))
    dist.all_to_all_single(dirty(), ones())
    dist.all_gather_object([None, None], {"rank": rank})
    dist.broadcast_object_list(["object"] if rank == 0 else [None], src=0)
    dist.scatter_object_list([None], ["one", "two"] if rank == 0 else None, src=0)
    dist.gather_object({"rank": rank}, [None, None] if rank == 0 else None, dst=0)
    dist.all_reduce_coalesced([ones(), ones(count=2)])
    with distributed_c10d._coalescing_manager():
        dist.all_reduce(ones()); dist.all_reduce(ones(count=2))
    dist.reduce(ones(), dst=0)
    if rank == 0:
        dist.send(ones(8), 1)
    else:
        dist.recv(dirty())  # from anyone

with part("B9"):
    store = distributed_c10d._get_default_store()
    t = ones(9 * (rank + 1))
    if rank == 1:
        store.wait(["issued"], timedelta(seconds=60))
    work = dist.all_reduce(t, async_op=True)
    # Rank 1 comes only when rank 0 has gone on.
    if rank == 0:
        store.set("issued", "yes")
    work.wait()
    assert t.tolist() == [27.0] * 4
    t += 100

with part("B11"):
    def resident(name):
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(name)) << 10
    large = torch.full((64 << 20,), 11.0, dtype=torch.bfloat16)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins anew
    before = resident("VmRSS")
    dist.all_reduce(large, group=subs[rank])
    peak = resident("VmHWM") - before
    # As float32 it takes 256 MiB.
    assert peak < 128 << 20, peak
    assert waits == [], waits
    del large

with part("B12"):
    dist.all_gather([dirty(), dirty()], ones(12))
    dist.broadcast(ones(12) if rank == 0 else dirty(), 0)
    dist.send(ones(12), 1) if rank == 0 else dist.recv(dirty(), 0)
    dist.isend(ones(12), 1).wait() if rank == 0 else dist.irecv(dirty(), 0).wait()
    out = dirty(); dist.reduce_scatter(out, [ones(12), ones(12)]); assert out.tolist() == [24.0] * 4
    dist.scatter(dirty(), [ones(12), ones(12)] if rank == 0 else None, src=0)
    dist.gather(ones(12), [dirty(), dirty()] if rank == 1 else None, dst=1)

with part("B14"):
    try:
        dist.all_gather([dirty(3), dirty(3)], ones(14))
    except RuntimeError as error:
        print(f"caught {type(error).__name__}\\n", end="", flush=True)
    assert distributed_c10d.all_reduce is early_import is dist.all_reduce
    for name in OPS:
        function = getattr(dist, name)
        assert function is getattr(distributed_c10d, name)
        assert function.__name__ == name and function.__module__ == distributed_c10d.__name__
    # Its compiler knows collectives by identity: no break in the graph.
    def reduce(value):
        dist.all_reduce(value)
        return value * 2
    t = torch.compile(reduce, backend="eager", fullgraph=True)(ones(14.5))
    assert t.tolist() == [58.0] * 4

with part("B16"):
    seen = []
    def look():
        seen.append((sys.gettrace(), sys.getprofile(), threading._trace_hook))
        if hasattr(sys, "monitoring"):
            seen.append(tuple(sys.monitoring.get_tool(one) for one in range(6)))
    class Looking(torch.autograd.Function):
        @staticmethod
        def forward(context, value):
            return value * 1
        @staticmethod
        def backward(context, grad):
            look()
            return grad
    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 1
        def __getitem__(self, place):
            return torch.tensor([sys.gettrace() is None and sys.getprofile() is None])
    def in_thread():
        look()
        dist.all_reduce(ones(16))
    look()
    thread = threading.Thread(target=in_thread, name="other-thread"); thread.start(); thread.join()
    Looking.apply(torch.ones(1, requires_grad=True)).sum().backward()
    assert {one for row in seen for one in row} == {None}, seen
    assert all(bool(one) for one in torch.utils.data.DataLoader(Data(), num_workers=1))

with part("B2"):
    is_between = lambda: torch._C._dispatch_has_kernel_for_dispatch_key(
        "c10d::allreduce_", "BackendSelect")
    functions = {name: getattr(dist, name) for name in OPS}
    recorder.switch(2, on=False)
    assert not is_between()
    t = ones(2); dist.all_reduce(t); assert t.tolist() == [4.0] * 4
    t = ones(2 + rank); dist.broadcast(t, 1); assert t.tolist() == [3.0] * 4
    recorder.switch(3, on=True)
    t = ones(2.5); dist.all_reduce(t); assert t.tolist() == [5.0] * 4
    assert functions == {name: getattr(dist, name) for name in OPS}
    assert len(set(map(id, functions.values()))) == len(OPS)

dist.destroy_process_group()
with part("B4-late"):
    optimizer.step()
"""
    + LEAVE
)
NO_DEVICE = (
    MARKS
    + """
import torch, torch.distributed as dist
from datetime import timedelta
try:
    torch.cuda.synchronize()
except (AssertionError, RuntimeError):
    print("no device\\n", end="", flush=True)
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank = dist.get_rank()
torch.manual_seed(0)
with part("B3"):
    t = torch.ones(4); dist.all_reduce(t); assert t.tolist() == [2.0] * 4
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(3):
        optimizer.zero_grad()
        loss = ddp(torch.full((2, 4), rank + 1.0)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"rank {rank} step {step} loss {loss.item():.6f}\\n", end="", flush=True)
if rank == 1:
    os._exit(0)
try:
    dist.all_reduce(torch.full((4,), 14.75))  # nobody comes
except RuntimeError as error:
    print(f"caught {type(error).__name__}\\n", end="", flush=True)
"""
    + LEAVE
)
CHECK = """
class Check:
    def before(self, op):
        return f"saw {op.name}" if op.seq == 1 else None
    def on_error(self, op, error):
        assert isinstance(error, Exception)
        return "it failed"
"""
HANGS = """
import threading
import torch, torch.distributed as dist
def reduce():
    dist.all_reduce(torch.full((4,), 13.0))  # rank 1 waits here
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    threading.Event().wait()
reduce()
"""
