"""What the job holds of functions and classes that marks change, and what marks hold of its own."""

from __future__ import annotations

from pathlib import Path

from tests.probe.marks.test_foreign import FLIP, NVTX
from tests.probe.marks.test_marks import run_rank

# As cloudpickle and dill pickle classes of a script: with all that they have of their own.
BY_VALUE = """
import pickle, types
class ByValue(pickle._Pickler):
    def save(self, value, *args):
        if isinstance(value, type) and value.__module__ == "__main__":
            own = {name: one for name, one in vars(value).items() if not name.startswith("__")}
            return super().save(("class", value.__bases__, own), *args)
        if isinstance(value, types.FunctionType) and value.__module__ == "__main__":
            return super().save(value.__qualname__, *args)
        return super().save(value, *args)
def dump(value):
    import io
    stream = io.BytesIO()
    ByValue(stream).dump(value)
    return stream.getvalue()
"""


def test_classes_are_copied_by_value_as_without_marks(tmp_path: Path) -> None:
    run_rank(
        tmp_path,
        BY_VALUE
        + """
import copy
class Model(torch.nn.Module):
    def forward(self, value):
        return value
bare = dump(Model)
model, progress = Model(), sys.modules["_whystuck_probe.progress"]
for _ in range(4):
    model(torch.ones(1))
    progress.tell_step()
place = vars(Model)["_compiled_call_impl"]
assert place is not None
assert copy.copy(place) is copy.deepcopy(place) is pickle.loads(pickle.dumps(place)) is None
_, bases, own = pickle.loads(dump(Model))
assert own.pop("_compiled_call_impl") is None
assert ("class", bases, own) == pickle.loads(bare)
""",
    )


def test_function_that_the_job_has_taken_can_always_be_pickled(tmp_path: Path) -> None:
    run_rank(
        tmp_path,
        FLIP
        + """
import pickle
import torch.distributed.checkpoint as dcp
import torch.cuda.nvtx as nvtx
def take():
    return [torch.save, torch.serialization.save, dcp.save, dcp.async_save,
            dcp.state_dict_saver.save, nvtx.range_push, torch.profiler.itt.mark]
def check(functions, name):
    for one in functions:
        assert pickle.loads(pickle.dumps(one)) is one, (name, one)
flip("off", 2)
before = take()
plain = torch.save
flip("on", 3)
# What has one place only cannot be pickled by it while another function is there.
check(before[:5], "taken before")
during = take()
assert during[0] is not before[0]
check(during, "taken while marks are on")
flip("off", 4)
check(before[1:2] + before[4:5], "taken before")
check(during, "taken while marks were on")
torch.save(torch.ones(1), "one.pt")
flip("on", 5)
check(during, "on once more")
flip("off", 6)
del during
flip("on", 7)
flip("off", 8)
assert torch.save is plain
check(before, "all is as before")
""",
    )


def test_class_that_the_job_drops_goes_with_what_its_methods_hold(tmp_path: Path) -> None:
    run_rank(
        tmp_path,
        FLIP
        + """
import gc, weakref
progress = sys.modules["_whystuck_probe.progress"]
class Large:
    pass
def make():
    large = Large()
    class Model(torch.nn.Module):
        def forward(self, value):
            assert large
            return value
    return Model, weakref.ref(Model), weakref.ref(large)
for words in ((), ("off",), ("off", "on"), ("on",)):
    kind, kept, large = make()
    flip("off", 3)
    flip("on", 4)
    for _ in range(4):
        kind()(torch.ones(1))
        progress.tell_step()
    assert "_compiled_call_impl" in vars(kind)
    for word in words:
        flip(word, 5)
    del kind
    gc.collect()
    assert kept() is None and large() is None, words
    flip("on", 6)
    progress.tell_step()
    torch.nn.Identity()(torch.ones(1))
""",
    )


def test_function_that_the_job_puts_in_place_goes_with_what_it_holds(tmp_path: Path) -> None:
    run_rank(
        tmp_path,
        FLIP
        + """
import gc, weakref
from unittest import mock
plain = torch.save
class Large:
    pass
flip("off", 2)
plain = torch.save
for number in range(3, 40, 2):
    large = Large()
    held = weakref.ref(large)
    def mine(*args, large=large):
        return plain(*args)
    torch.save = mine
    flip("on", number)
    torch.save(torch.ones(1), "one.pt")
    flip("off", number + 1)
    assert torch.save is mine
    torch.save = plain
    del mine, large
    gc.collect()
    assert held() is None
with mock.patch("torch.save") as mocked:
    flip("on", 50)
    torch.save(1)
    flip("off", 51)
assert mocked.call_args == mock.call(1)
assert torch.save is plain
""",
    )


def test_ranges_that_are_never_left_take_no_memory(tmp_path: Path) -> None:
    run_rank(
        tmp_path,
        NVTX
        + """
import gc
nvtx._nvtx = type("Native", (), {"rangePushA": lambda self, text: 1})()
for _ in range(5000):
    nvtx.range_push("left")
marks = [one for one in gc.get_objects() if type(one).__name__ == "Mark"]
assert len(marks) <= 1024, len(marks)
""",
    )


def test_forked_child_waits_for_no_lock_of_marks(tmp_path: Path) -> None:
    run_rank(
        tmp_path,
        """
import signal
own = sys.modules["_whystuck_probe.progress"].COUNTS.marks
class Fresh(torch.optim.SGD):
    pass
optimizer = Fresh([torch.ones(1, requires_grad=True)], lr=0.1)
locks = own._ring._lock, own._devices._is_over._cond
has_locks, is_over = threading.Event(), threading.Event()
def hold():
    with locks[0], locks[1]:
        has_locks.set()
        is_over.wait()
thread = threading.Thread(target=hold)
thread.start()
has_locks.wait()
pid = os.fork()
if not pid:
    signal.alarm(60)  # instead of a wait without an end
    optimizer.step()
    own._devices.stop()
    os._exit(7)
is_over.set()
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
""",
    )


FINDERS = """
import importlib.abc, importlib.machinery, importlib.util
entered, go_on = threading.Event(), threading.Event()
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "found_last":
            entered.set()
            go_on.wait()
class Last:
    def find_spec(self, name, path=None, target=None):
        if name == "found_last":
            return importlib.util.spec_from_loader(name, self)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        module.value = 1
sys.meta_path += [Slow(), Last()]
problems = []
def find():
    try:
        import found_last
    except ImportError as error:
        problems.append(error)
"""


def test_module_is_found_while_marks_go_off(tmp_path: Path) -> None:
    run_rank(
        tmp_path,
        FLIP
        + FINDERS
        + """
thread = threading.Thread(target=find)
thread.start()
entered.wait()
flip("off", 2)
go_on.set()
thread.join()
assert not problems, problems
count = len(sys.meta_path)
flip("on", 3)
flip("off", 4)
assert len(sys.meta_path) == count
""",
    )
