"""CUDA of the job: nothing of it is called before the job does, and no capture is disturbed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.nccl_like.building import Like
from tests.nccl_like.jobs import GRAPH, run, running, wait_for
from tests.probe.job import artifact, job_dir

from whystuck.collect.beats import BeatSlot, read_beat
from whystuck.collect.recorder import RecorderError, ask_probe_for_dump

LOAD = 'runtime, driver = (ctypes.CDLL(os.environ[name]) for name in ("CUDART", "CUDA"))\n'
USE = "torch.cuda._initialized = True\n"
OPS = "for _ in range(20): dist.all_reduce(like.make_tensor(8), async_op=True)\n"
DUMP_SIGNAL = signal.SIGRTMIN + 6


@pytest.fixture(autouse=True)
def _no_other_cuda(like: Like) -> None:
    if like.has_cuda:
        pytest.skip("this torch has libraries of CUDA of its own")


def _read_calls(tmp_path: Path) -> list[tuple[str, str, int]]:
    path = tmp_path / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    words = [line.rsplit(maxsplit=2) for line in lines]
    return [(thread, call, int(value)) for thread, call, value in words]


def _list_modes(calls: list[tuple[str, str, int]]) -> list[str]:
    """List the devices that threads took, and how they get along with captures."""
    modes = {2: "relaxed", 0: "as before"}
    return [
        f"{call} {value}" if call == "cudaSetDevice" else modes[value]
        for _, call, value in calls
        if call in ("cudaSetDevice", "cudaThreadExchangeStreamCaptureMode")
    ]


def _wait_for_line(process: subprocess.Popen[bytes], wanted: str) -> None:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.decode().strip() == wanted, (line, process.communicate())


def _read_beat(folder: Path, process: subprocess.Popen[bytes]) -> BeatSlot:
    beat = read_beat(artifact(folder, "beat", process))
    assert beat is not None
    return beat


def _wait_for_beat(folder: Path, process: subprocess.Popen[bytes]) -> None:
    first = _read_beat(folder, process).monotonic_ns
    wait_for(lambda: _read_beat(folder, process).monotonic_ns != first)


def test_job_when_it_has_not_used_cuda_then_nothing_of_cuda_is_called(
    tmp_path: Path, like: Like
) -> None:
    body = LOAD + OPS + 'meet("unused")\n'
    with job_dir() as folder, running(tmp_path, folder, like, body) as process:
        _wait_for_line(process, "unused")
        ask_probe_for_dump(artifact(folder, "probe", process), folder / "dump")
        os.kill(process.pid, DUMP_SIGNAL)
        wait_for(artifact(folder, "fr", process).exists)
        _wait_for_beat(folder, process)
        (tmp_path / "unused").touch()
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
        assert artifact(folder, "final", process).exists()
    assert _read_calls(tmp_path) == []


def test_dump_when_the_job_uses_a_device_then_the_thread_takes_that_one_and_is_relaxed(
    tmp_path: Path, like: Like
) -> None:
    body = LOAD + OPS + USE + 'meet("no context")\nmeet("context")\n'
    with job_dir() as folder, running(tmp_path, folder, like, body) as process:
        probe = artifact(folder, "probe", process)
        _wait_for_line(process, "no context")
        ask_probe_for_dump(probe, folder / "dump")
        calls = {call for _, call, _ in _read_calls(tmp_path)}
        assert calls == {"cuCtxGetCurrent", "cuDeviceGetCount", "cuDevicePrimaryCtxGetState"}
        (tmp_path / "calls").unlink()
        (tmp_path / "active").write_bytes(bytes([1 << 2]))
        (tmp_path / "no context").touch()
        _wait_for_line(process, "context")
        ask_probe_for_dump(probe, folder / "dump")
        found = _read_calls(tmp_path)
        (tmp_path / "calls").unlink()
        os.kill(process.pid, DUMP_SIGNAL)
        wait_for(artifact(folder, "fr", process).exists)
        by_signal = _read_calls(tmp_path)
        (tmp_path / "calls").unlink()
        (tmp_path / "context").touch()
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
        at_exit = _read_calls(tmp_path)
    assert {thread for thread, _, _ in found} == {"whystuck-probe"}
    assert _list_modes(found) == ["cudaSetDevice 2", "relaxed", "as before"]
    # The thread that does it has the device by now, or is another one that takes it.
    for one in (by_signal, at_exit):
        assert _list_modes(one)[-2:] == ["relaxed", "as before"]
        assert {call for _, call, _ in one} & {"cudaSetDevice", "cuCtxGetCurrent"}


def test_capture_when_a_dump_is_asked_for_then_it_comes_after_it(
    tmp_path: Path, like: Like
) -> None:
    body = LOAD + USE + GRAPH + (
        'graph.capture_begin()\nmeet("captured")\ngraph.capture_end()\nmeet("over")\n'
        "try:\n"
        "    base.capture_begin = None\n    graph.capture_begin()\n"
        'except TypeError:\n    meet("failed")\n'
        "base.capture_begin = lambda self, **_: None\ngraph.capture_begin()\ndel graph\n"
        'meet("dropped")\n'
    )  # fmt: skip
    (tmp_path / "active").write_bytes(bytes([1]))
    with job_dir() as folder, running(tmp_path, folder, like, body) as process:
        probe = artifact(folder, "probe", process)
        _wait_for_line(process, "captured")
        with pytest.raises(RecorderError, match="it captures a CUDA graph"):
            ask_probe_for_dump(probe, folder / "dump")
        assert _read_calls(tmp_path) == []
        before = "captured"
        for after in ("over", "failed", "dropped"):
            (tmp_path / before).touch()
            _wait_for_line(process, after)
            ask_probe_for_dump(probe, folder / after)
            before = after


def test_replays_then_they_are_progress(tmp_path: Path, like: Like) -> None:
    body = GRAPH + 'meet("none")\nfor _ in range(7): graph.replay()\nmeet("some")\n'
    with job_dir() as folder, running(tmp_path, folder, like, body) as process:
        _wait_for_line(process, "none")
        before = _read_beat(folder, process)
        (tmp_path / "none").touch()
        _wait_for_line(process, "some")
        wait_for(lambda: _read_beat(folder, process).progress != before.progress)
        after = _read_beat(folder, process)
    assert (before.replays, after.replays) == (0, 7)
    assert after.completed == before.completed
    assert not after.has_communicated


def test_event_is_asked_without_the_lock_and_in_no_capture(tmp_path: Path, like: Like) -> None:
    body = (
        LOAD + USE + GRAPH + "from _whystuck_probe import cuda\n"
        "class Event:\n    cuda_event = 4711\n"
        "graph.capture_begin()\nduring = cuda.has_passed(Event())\n"
        "graph.capture_end()\ntell(during=during, after=cuda.has_passed(Event()))\n"
    )
    (tmp_path / "active").write_bytes(bytes([1 << 1]))
    told, _ = run(tmp_path, like, body)
    assert told == {"during": False, "after": True}
    calls = [(call, value) for _, call, value in _read_calls(tmp_path) if call.startswith("cuda")]
    assert calls[:4] == [
        ("cudaSetDevice", 1),
        ("cudaThreadExchangeStreamCaptureMode", 2),
        ("cudaEventQuery", 1),
        ("cudaThreadExchangeStreamCaptureMode", 0),
    ]


def test_error_of_a_question_is_not_left_to_the_job(tmp_path: Path, like: Like) -> None:
    (tmp_path / "now").write_text("0")
    body = (
        LOAD + USE + "from _whystuck_probe import cuda\n"
        f"os.environ['CUDA_LIKE_NOW'] = {str(tmp_path / 'now')!r}\n"
        "class Event:\n    cuda_event = 4711\n"
        "class Stream:\n    cuda_stream = 14\n"
        "asked = cuda.ask(Event()), cuda.may_record(Stream())\n"
        "left = runtime.cudaGetLastError()\n"
        "runtime.cudaEventQuery(ctypes.c_void_p(4711))\n"
        "cuda.ask(Event())\n"
        "tell(asked=asked, left=left, of_the_job=runtime.cudaGetLastError())\n"
    )
    told, _ = run(tmp_path, like, body)
    assert told == {"asked": [False, False], "left": 0, "of_the_job": 600}
