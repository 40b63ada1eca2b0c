"""Ranges with a stream of a device: when the device was in them, and what CUDA is asked for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.nccl_like.building import Like
from tests.nccl_like.jobs import GRAPH, running
from tests.nccl_like.test_cuda_calls import LOAD, USE
from tests.probe.job import artifact, job_dir
from tests.probe.marks.mark_file import Mark, MarkFile, read_marks

MS = 1_000_000
# Streams and events as those of `torch.cuda`: the handle of an event is when the device passes it.
STREAMS = """
import whystuck, types
from _whystuck_probe import cuda
os.environ["CUDA_LIKE_NOW"] = "now"
module = types.ModuleType("streams")
exec('''
class Stream:
    device, cuda_stream = "cuda:0", 7
    ahead_ns = 0
    def __init__(self, handle=7, device="cuda:0"):
        self.cuda_stream, self.device = handle, device
class Event:
    made = []
    def __init__(self, enable_timing=False):
        assert enable_timing
        self.made.append(self)
        self.cuda_event = 0
    def record(self, stream):
        self.cuda_event = clock() + stream.ahead_ns
''', module.__dict__)
sys.modules["streams"] = module
Stream, Event = module.Stream, module.Event
# The clock of the device began at another time.
origin = time.monotonic_ns() - 3600 * 10**9
clock = module.clock = lambda: time.monotonic_ns() - origin
def pass_all():
    with open("now.part", "w") as file:
        file.write(str(clock() + 10**12))
    os.replace("now.part", "now")
devices = sys.modules["_whystuck_probe.marks.control"].user.DEVICES
def wait_for_none(left=0):
    deadline_s = time.monotonic() + 60
    while devices[-1].count() > left and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert devices[-1].count() == left
"""


@pytest.fixture(autouse=True)
def _no_other_cuda(like: Like) -> None:
    if like.has_cuda:
        pytest.skip("this torch has libraries of CUDA of its own")


def run(tmp_path: Path, like: Like, body: str) -> tuple[MarkFile, list[str]]:
    """Run a job to its end; return its marks, and what CUDA was asked."""
    (tmp_path / "active").write_bytes(bytes([1]))
    script = LOAD + USE + STREAMS + body
    with job_dir() as folder, running(tmp_path, folder, like, script, marks="on") as process:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()[-3000:]
        found = read_marks(artifact(folder, "marks", process))
    path = tmp_path / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    return found, [" ".join(line.rsplit(maxsplit=2)[:2]) for line in lines]


def pair(found: MarkFile, name: str) -> tuple[Mark, Mark]:
    """Return the one range of a name on the host, and on the device."""
    (host,) = [mark for mark in found.of("user") if mark.name == name]
    (device,) = [mark for mark in found.of("device") if mark.name == name]
    return host, device


def test_device_is_in_a_range_later_than_the_host_that_issues_it(
    tmp_path: Path, like: Like
) -> None:
    found, _ = run(
        tmp_path,
        like,
        """
stream = Stream()
with whystuck.mark("idle", stream):
    time.sleep(0.05)
stream.ahead_ns = 30 * 10**6  # what it has left to do
mark = whystuck.mark("behind", stream=stream).begin()
stream.ahead_ns = 70 * 10**6
mark.end()
with whystuck.mark("host"):
    pass
pass_all()
wait_for_none()
""",
    )
    host, device = pair(found, "idle")
    assert abs(device.begin_ns - host.begin_ns) < 10 * MS
    assert 45 * MS < device.end_ns - device.begin_ns < host.end_ns - host.begin_ns + 5 * MS
    host, device = pair(found, "behind")
    assert host.end_ns - host.begin_ns < device.end_ns - device.begin_ns
    assert 25 * MS < device.begin_ns - host.begin_ns < 45 * MS
    assert [mark.name for mark in found.of("device")] == ["idle", "behind"]


def test_backlog_at_the_begin_is_taken_back_when_the_device_has_caught_up(
    tmp_path: Path, like: Like
) -> None:
    found, _ = run(
        tmp_path,
        like,
        """
stream = Stream()
stream.ahead_ns = 500 * 10**6
with whystuck.mark("first", stream):
    pass
stream.ahead_ns = 0
with whystuck.mark("second", stream):
    pass
stream.ahead_ns = 200 * 10**6
with whystuck.mark("third", stream):
    pass
pass_all()
wait_for_none()
""",
    )
    host, device = pair(found, "third")
    assert 190 * MS < device.begin_ns - host.begin_ns < 210 * MS


def test_clock_is_exact_hours_later_also_when_it_drifts(tmp_path: Path, like: Like) -> None:
    found, _ = run(
        tmp_path,
        like,
        """
control = sys.modules["_whystuck_probe.marks.devices"]
# Of a device that is none of CUDA's.
class Other:
    device, stream_id, ahead_ns = "other:0", 3, 0
class OtherEvent:
    made = []
    def __init__(self, enable_timing):
        self.made.append(self)
    def record(self, stream):
        self.passed_ns = module.clock() + stream.ahead_ns
    def query(self):
        return True
    def elapsed_time(self, other):
        return ctypes.c_float((other.passed_ns - self.passed_ns) / 1e6).value
Other.__module__, module.Event = "streams", OtherEvent
stream = Other()
begin_ns = time.monotonic_ns()
now_ns = begin_ns
control._now_ns = lambda: now_ns
# 20 ppm slow, and never idle for long.
module.clock = lambda: int((now_ns - begin_ns) * (1 - 2e-5)) + 5 * 10**9
class Ring:
    spans = []
    def put(self, kind, name, step, begin_ns, end_ns):
        self.spans.append((begin_ns, end_ns))
    def count(self, kind, spent_ns):
        assert spent_ns > 0
times = control.DeviceTimes(Ring())
worst = 0
for turn in range(8 * 3600):
    stream.ahead_ns = turn % 10 * 1000
    began = now_ns + stream.ahead_ns
    begin = times.record(stream)
    now_ns += 10**8
    times.end(stream, begin, 1, turn)
    now_ns += 9 * 10**8
    times.look()
    worst = max(worst, abs(Ring.spans[-1][0] - began))
assert len(Ring.spans) == 8 * 3600
assert worst < 2 * 10**6, worst
assert len(OtherEvent.made) < 8, "events are used again"
""",
    )
    assert not found.of("device")


def test_nothing_is_asked_before_the_job_uses_cuda_nor_while_it_captures(
    tmp_path: Path, like: Like
) -> None:
    found, calls = run(
        tmp_path,
        like,
        GRAPH
        + """
torch.cuda._initialized = False
with whystuck.mark("before", Stream()):
    devices[-1].look()
torch.cuda._initialized = True
graph.capture_begin()
with whystuck.mark("in a capture", Stream()):
    devices[-1].look()
graph.capture_end()
with whystuck.mark("captured by other means", Stream(13)):
    pass
with whystuck.mark("no stream", "cuda"):
    pass
whystuck.mark("an instant", Stream())
assert not Event.made
tell()
""",
    )
    assert not found.of("device")
    assert [mark.end_ns > 0 for mark in found.of("user")] == [True] * 5
    names = {call.split()[1] for call in calls}
    assert names <= {"cudaStreamIsCapturing", "cuCtxGetCurrent", "cuDeviceGetCount",
                     "cuDevicePrimaryCtxGetState", "cudaSetDevice",
                     "cudaThreadExchangeStreamCaptureMode"}  # fmt: skip


def test_events_are_asked_by_our_thread_alone_and_each_stream_by_itself(
    tmp_path: Path, like: Like
) -> None:
    found, calls = run(
        tmp_path,
        like,
        """
slow, fast = Stream(1), Stream(2)
slow.ahead_ns = 10**15
with whystuck.mark("of the slow one", slow):
    pass
with whystuck.mark("of the fast one", fast):
    pass
pass_all()
wait_for_none(1)
""",
    )
    assert [mark.name for mark in found.of("device")] == ["of the fast one"]
    asking = {call.rsplit(maxsplit=1)[0] for call in calls if "Event" in call}
    assert asking == {"whystuck-device"}  # of 15 characters


def test_ranges_that_nobody_asks_about_are_bounded(tmp_path: Path, like: Like) -> None:
    found, _ = run(
        tmp_path,
        like,
        """
stream = Stream()
stream.ahead_ns = 10**15
for _ in range(5000):
    with whystuck.mark("x", stream):
        pass
assert len(Event.made) == 2048
assert devices[-1].count() == 1024
""",
    )
    assert not found.of("device")
    assert len(found.of("user")) == 5000


def test_child_that_is_forked_asks_and_records_nothing(tmp_path: Path, like: Like) -> None:
    found, _ = run(
        tmp_path,
        like,
        """
stream = Stream()
mark = whystuck.mark("outer", stream).begin()
pid = os.fork()
if not pid:
    mark.end()
    with whystuck.mark("inner", stream):
        pass
    os._exit(len(Event.made) - 1)
assert os.waitpid(pid, 0)[1] == 0
""",
    )
    assert [mark.name for mark in found.of("user")] == ["outer"]
