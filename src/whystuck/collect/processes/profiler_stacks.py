"""Python stacks of a stuck rank by the profiler that torch has in it, where nothing else may look.

An agent asks Kineto for 200 ms with stacks. It needs neither ptrace nor a signal, but the GIL: the
agent takes a trace without stacks first, and asks for none where it sees that the GIL is held.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from whystuck.collect.agent_client import AgentError, ask_agent, has_agent
from whystuck.collect.processes.proc_files import read_environment, read_words
from whystuck.collect.processes.target import Target
from whystuck.evidence.agent import ENDED, TraceProgress, TraceRequest, TraceState
from whystuck.evidence.decoding import convert, decode_json
from whystuck.guarded.folders import folder_at, read_file

DURATION_MS = 200
# Two traces, each a poll of at most 5 s, a wake-up of Kineto's thread and a file.
TIMEOUT_S = 20.0
_CALL_S = 5.0
_MAX_BYTES = 64 << 20
_MAX_PATHS = 1000
_JOB_FOLDER = "k"
_FOLDER_VARIABLES = ("WHYSTUCK_AGENT_DIR", "KINETO_IPC_SOCKET_DIR")
_NAME = re.compile(r"([^<>\n]{1,1024}\.py)\(\d{1,7}\): ")


class ProfilerStacksError(Exception):
    """The profiler gave no stacks; the message says why."""


class _Event(msgspec.Struct):
    name: str = ""
    cat: str = ""


class _Trace(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815 - its name in the file


def collect_profiler_stacks(target: Target, path: Path) -> None:
    """Write the stacks of a process, as a trace of its own profiler.

    Args:
        target: The rank.
        path: Where the trace goes. Kineto leaves folders out of the names of files; the key
            ``pythonFiles`` that is added tells them.

    Raises:
        ProfilerStacksError: There is no agent, or it got no stacks.
    """
    folder = next((one for one in _list_folders(target) if has_agent(one)), None)
    if folder is None:
        raise ProfilerStacksError("no agent serves this process")
    try:
        trace = _take(folder, target.pid, path.parent)
        data = _read(trace)
        path.write_bytes(_add_files(data, target.pid))
        trace.unlink()
    except AgentError as error:
        raise ProfilerStacksError(str(error)) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise ProfilerStacksError(f"its trace cannot be read: {reason}") from error


def _list_folders(target: Target) -> Iterator[Path]:
    """Yield where the agent that serves a process may live."""
    if target.job_dir is not None:
        yield target.job_dir / _JOB_FOLDER
    environment: dict[str, str] = {}
    with suppress(OSError):
        environment = read_environment(target.pid)
    for name in _FOLDER_VARIABLES:
        folder = environment.get(name, "")
        if folder.startswith("/"):
            yield Path(folder)
    yield Path(f"/tmp/whystuck-agent-{os.geteuid()}")  # noqa: S108 - its owner is checked


def _take(folder: Path, pid: int, output: Path) -> Path:
    """Ask for the trace, and wait for its end; raises AgentError."""
    request = TraceRequest(
        pids=(pid,),
        duration_ms=DURATION_MS,
        stacks=True,
        output=str(output.absolute()),
        packed=False,
        stop_s=TIMEOUT_S,
    )
    reply = ask_agent(folder, {"fn": "whystuck.trace.start", "request": request}, _CALL_S)
    progress, name = _read_progress(reply, pid), str(reply.get("id", ""))
    deadline_s = time.monotonic() + TIMEOUT_S
    while progress.state not in ENDED:
        if time.monotonic() > deadline_s:
            raise AgentError(f"its profiler gave no stacks in {TIMEOUT_S:.0f} s")
        fields = {"fn": "whystuck.trace.progress", "id": name, "timeout_s": 1.0}
        progress = _read_progress(ask_agent(folder, fields, _CALL_S), pid)
    if progress.state is not TraceState.WRITTEN:
        raise AgentError(f"its profiler gave no stacks: {progress.reason or progress.state}")
    trace = Path(progress.file)
    if trace.parent != output.absolute():
        raise AgentError("its agent put the trace somewhere else")
    return trace


def _read_progress(reply: dict[str, Any], pid: int) -> TraceProgress:
    try:
        found = convert(reply.get("progress"), list[TraceProgress])
    except msgspec.ValidationError as error:
        raise AgentError("the agent is of another version") from error
    for one in found:
        if one.pid == pid:
            return one
    raise AgentError("the process does not ask the agent for work")


def _read(path: Path) -> bytes:
    with folder_at(path.parent) as folder:
        data, _ = read_file(folder, path.name, _MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise OSError(f"it has more than {_MAX_BYTES} bytes")
    return data


def _add_files(data: bytes, pid: int) -> bytes:
    """Add the paths of the files that a trace names, as far as they can be found."""
    try:
        events = decode_json(data, _Trace).traceEvents
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise OSError("it is no trace") from error
    names = {match[1] for event in events if (match := _NAME.match(event.name))}
    folders = _list_search_folders(pid)
    files = {}
    for name in sorted(names)[:_MAX_PATHS]:
        found = next((one / name for one in folders if (one / name).is_file()), None)
        if found is not None:
            files[name] = str(found)
    added = b'"pythonFiles": ' + msgspec.json.encode(files) + b","
    return data.replace(b"{", b"{" + added, 1)


def _list_search_folders(pid: int) -> list[Path]:
    """Return where a process looks for modules, as far as its command tells: its script first."""
    here = Path(f"/proc/{pid}")
    folders = []
    try:
        cwd = (here / "cwd").readlink()
        words = read_words(pid)
        folders = [cwd / Path(word).parent for word in words[1:] if word.endswith(".py")][:1]
        folders.append(cwd)
        paths = read_environment(pid).get("PYTHONPATH", "").split(":")
        folders += [cwd / path for path in paths if path]
    except OSError:
        pass  # ended, or not ours to look at
    return folders
