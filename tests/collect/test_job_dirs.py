"""Which folder a process may tell as that of its job, and what is read there."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.guarded.strangers import (
    SECRET,
    STRANGER,
    THIRD,
    Kind,
    Scenery,
    Stranger,
    needs_root,
    scenery,
)

import whystuck
from whystuck.agent.metrics.rank.beat_files import BeatFiles
from whystuck.agent.ondemand.job_folders import list_mark_folders
from whystuck.agent.processes.identify import identify
from whystuck.agent.triggers.trace_output import find_evidence
from whystuck.collect.beats import LAYOUT, MAGIC, read_beat
from whystuck.collect.job_dirs import copy_artifact, find_job_dir, is_job_dir, read_artifact
from whystuck.collect.processes import discover
from whystuck.collect.processes.claims import read_command
from whystuck.collect.processes.discover import discover_jobs
from whystuck.collect.processes.proc import collect_process
from whystuck.collect.processes.proc_files import read_environment, read_start_of, read_words
from whystuck.collect.processes.target import Target
from whystuck.collect.recorder import RecorderError, ask_probe_for_dump
from whystuck.collect.scene import Scene
from whystuck.collect.source_reader import SourceReader

pytestmark = needs_root
SOURCES = Path(whystuck.__file__).parent


@pytest.fixture
def place() -> Iterator[Scenery]:
    """What other users and root have on this machine."""
    with scenery() as made:
        yield made


def make_job_dir(top: Path, uid: int = STRANGER, mode: int = 0o700) -> Path:
    folder = top / f"whystuck-{uid}-job"
    folder.mkdir(mode=mode)
    folder.chmod(mode)
    os.chown(folder, uid, uid)
    return folder


def told(place: Scenery, folder: str | Path, kind: Kind = Kind.PLAIN) -> str:
    with Stranger(kind, place.jail, environment={"WHYSTUCK_JOB_DIR": str(folder)}) as job:
        return find_job_dir(job.pid)


def test_folder_of_the_job_is_believed(place: Scenery) -> None:
    good = make_job_dir(place.top)
    assert told(place, good) == str(good)


@pytest.mark.parametrize("folder", ["/etc", "/root", "/tmp", "/", "/proc/self/cwd", "etc", ""])
def test_other_folders_of_the_machine_are_not(place: Scenery, folder: str) -> None:
    assert told(place, folder) == ""


def test_folder_of_another_user_or_open_to_others_or_a_link_is_not(place: Scenery) -> None:
    of_root = make_job_dir(place.top, 0)
    of_third = make_job_dir(place.top, THIRD)
    is_open = make_job_dir(place.top / "jail", mode=0o770)
    link = place.top / "whystuck-12345-link"
    link.symlink_to(of_root)
    named = place.give(place.top / "mine")
    for folder in (of_root, of_third, is_open, link, named, f"{named}/../{of_root.name}"):
        assert told(place, folder) == "", folder


@pytest.mark.parametrize("kind", [Kind.CHROOT, Kind.NAMESPACE])
def test_folder_that_the_process_does_not_see_itself_is_not(place: Scenery, kind: Kind) -> None:
    good = make_job_dir(place.top)
    assert told(place, good, kind) == ""


def test_process_that_nobody_may_look_into_does_not_pass_for_root(place: Scenery) -> None:
    of_root = make_job_dir(place.top, 0)
    environment = {"WHYSTUCK_JOB_DIR": str(of_root)}
    with Stranger(Kind.PLAIN, place.jail, environment=environment) as job:
        job.do("libc.prctl(4, 0, 0, 0, 0)")
        assert Path(f"/proc/{job.pid}/environ").stat().st_uid == 0
        assert find_job_dir(job.pid) == ""
        found = identify(job.pid)
        assert found is not None
        assert found.job_dir == ""
        assert find_evidence("", [job.pid]) is None


def test_nothing_is_made_in_a_folder_that_is_not_the_jobs(place: Scenery) -> None:
    for folder in (place.secrets, place.outside("/etc"), make_job_dir(place.top, mode=0o777)):
        (words, _) = list_mark_folders(Path("/nonexistent"), str(folder), STRANGER)
        before = sorted(Path(folder).iterdir())
        assert not words.leave("trace-7", "0 2 0")
        assert sorted(Path(folder).iterdir()) == before


@pytest.mark.parametrize("trap", ["pipe", "link", "hard link", "file"])
def test_word_for_a_probe_takes_the_place_of_what_others_laid(place: Scenery, trap: str) -> None:
    shared = place.top / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    path = shared / "trace-7"
    if trap == "pipe":
        os.mkfifo(path)
    elif trap == "link":
        path.symlink_to(place.secret)
    elif trap == "hard link":
        os.link(place.secret, path)
    else:
        path.write_text("of a third")
    os.chown(path, THIRD, THIRD, follow_symlinks=False)
    if trap == "hard link":
        os.chown(path, 0, 0)
    (words,) = list_mark_folders(shared, "", STRANGER)
    assert words.leave("trace-7", "0 2 0")
    assert path.read_text() == "0 2 0"
    assert path.lstat().st_uid == STRANGER, "its probe is to read it"
    place.check_unharmed()
    words.take_back("trace-7")
    assert not list(shared.iterdir())


def lay(folder: Path, name: str, trap: str, secret: Path) -> Path:
    path = folder / name
    if trap == "pipe":
        os.mkfifo(path)
    elif trap == "link":
        path.symlink_to(secret)
    elif trap == "zeros":
        path.symlink_to("/dev/zero")
    elif trap == "hard link":
        os.link(secret, path)
    else:
        path.mkdir()
    return path


def list_kinds() -> set[str]:
    """Return the kinds of files in a job folder that are asked for anywhere."""
    sources = [path.read_text() for path in (SOURCES / "collect").glob("*.py")]
    asked = re.compile(r'\bartifact\("([\w-]+)"\)|\("([\w-]+)", records\.\w+_FILE\)')
    return {one or other for text in sources for one, other in asked.findall(text)}


@pytest.mark.parametrize("trap", ["pipe", "link", "zeros", "hard link", "folder"])
def test_traps_among_the_files_of_a_job_are_not_read(place: Scenery, trap: str) -> None:
    job_dir = make_job_dir(place.top)
    kinds = list_kinds()
    assert {"exception", "beat", "probe", "disarmed", "switched"} <= kinds
    for kind in kinds:
        lay(job_dir, f"{kind}-{os.getpid()}", trap, place.secret)
    evidence = place.top / "evidence"
    evidence.mkdir()
    scene = Scene(evidence, [Target(0, os.getpid(), "n0", job_dir)])
    scene.copy_records()
    with pytest.raises(OSError):  # noqa: PT011 - of many kinds
        read_artifact(job_dir / f"exception-{os.getpid()}", 100)
    assert read_beat(job_dir / f"beat-{os.getpid()}") is None
    with pytest.raises(RecorderError):
        ask_probe_for_dump(job_dir / f"probe-{os.getpid()}", evidence / "x")
    place.check_unharmed()


@pytest.mark.parametrize(
    "answer", [b"[]", b"[" * 4096, b'"ok"', b"7", b"\xff", b'{"ok": []}', b'{"ok": false}', b""]
)
def test_any_answer_of_a_probe_is_taken(place: Scenery, answer: bytes) -> None:
    job_dir = make_job_dir(place.top, 0)
    path = job_dir / "probe-7"

    def serve(served: socket.socket) -> None:
        with served.accept()[0] as link:
            link.recv(4096)
            link.sendall(answer)

    with socket.socket(socket.AF_UNIX) as served:
        served.bind(str(path))
        served.listen()
        thread = threading.Thread(target=serve, args=(served,))
        thread.start()
        with pytest.raises(RecorderError):
            ask_probe_for_dump(path, place.output / "x")
        thread.join()


# The variables and the words of a process are where it says, up to all of its memory.
_SAY_MUCH = f"""
import ctypes, struct
size = {1 << 27}
libc.mmap.restype = libc.sbrk.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
place = libc.mmap(None, size, 1, 0x4022, -1, 0)
told = open("/proc/self/stat").read().rpartition(")")[2].split()
field = lambda number: int(told[number - 3])
code = [field(26), field(27), field(45), field(46), field(47), libc.sbrk(0), field(28)]
told = struct.pack("<11QQIi", *code, place, place + size, place, place + size, 0, 0, -1)
assert libc.prctl(35, 14, told, ctypes.c_ulong(len(told)), 0) == 0, "not allowed here"
"""


def test_process_that_says_much_of_itself_is_read_in_part(place: Scenery) -> None:
    with Stranger(Kind.PLAIN, place.jail) as job:
        try:
            job.do(_SAY_MUCH)
        except AssertionError:
            pytest.skip("a process cannot say here where its variables are")
        assert len(read_start_of(job.pid, "cmdline", 1 << 25)) == 1 << 25
        tracemalloc.start()
        try:
            read_environment(job.pid)
            read_words(job.pid)
            read_command(job.pid)
            collect_process(job.pid)
            discover_jobs([job.pid])
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak_bytes < 1 << 26


def test_process_of_another_user_is_no_rank_of_a_job_by_its_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {"MASTER_ADDR": "n0", "MASTER_PORT": "29500", "WORLD_SIZE": "2"}

    def candidate(pid: int, uid: int, **more: str) -> discover._Candidate:
        made = psutil.Process()
        monkeypatch.setattr(made, "_pid", pid)
        return discover._Candidate(made, {**names, **more}, [], is_spawned=False, uid=uid)

    several = [
        candidate(1, 0, RANK="0"),
        candidate(2, 0, RANK="1", WORLD_SIZE="9" * 30),
        candidate(3, STRANGER, RANK="1"),
    ]
    monkeypatch.setattr(discover, "_job_dir", lambda _: None)
    found = discover._group_by_rendezvous(several)
    assert [[rank.pid for rank in job.ranks] for job in found] == [[1, 2], [3]]
    assert [job.world_size for job in found] == [2, 2]
    assert discover._rank_of(candidate(4, 0, RANK="9" * 30)) is None


def test_folder_that_has_become_a_link_is_not_read(place: Scenery) -> None:
    job_dir = make_job_dir(place.top)
    assert is_job_dir(job_dir, STRANGER)
    job_dir.rename(place.top / "gone")
    job_dir.symlink_to(place.secrets)
    with pytest.raises(OSError):  # noqa: PT011 - of many kinds
        read_artifact(job_dir / place.secret.name, 100)
    with pytest.raises(OSError):  # noqa: PT011 - of many kinds
        copy_artifact(job_dir / place.secret.name, place.top / "copy")


def test_socket_of_another_user_is_not_asked(place: Scenery) -> None:
    job_dir = make_job_dir(place.top)
    with socket.socket(socket.AF_UNIX) as served:
        served.bind(str(place.secrets / "s"))
        served.listen()
        (job_dir / "probe-7").symlink_to(place.secrets / "s")
        with pytest.raises(RecorderError, match="cannot be reached"):
            ask_probe_for_dump(job_dir / "probe-7", place.output / "x")
        served.setblocking(False)
        with pytest.raises(BlockingIOError):
            served.accept()


def write_beat(path: Path, uid: int) -> None:
    path.write_bytes(LAYOUT.pack(MAGIC, 7, 1, 1, 3, 4, 17, 0, 0, 0, 0, 7))
    os.chown(path, uid, uid)


def test_beats_of_a_user_tell_of_his_processes_only(
    place: Scenery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(place.top))
    theirs, ours = make_job_dir(place.top), make_job_dir(place.top, 0)
    code = "import os; os.setresuid(12345, 12345, 12345)"
    program = f"{code}; os.execvp('sleep', ['sleep', '600'])"
    job = os.posix_spawn(sys.executable, [sys.executable, "-c", program], os.environ)
    try:
        while Path(f"/proc/{job}").stat().st_uid != STRANGER:
            assert Path(f"/proc/{job}").exists()
        write_beat(theirs / f"beat-{job}", STRANGER)
        write_beat(theirs / f"beat-{os.getpid()}", STRANGER)
        write_beat(ours / f"beat-{os.getpid()}", 0)
        found = [one for one in BeatFiles().read_all() if one.folder.parent == place.top]
    finally:
        os.kill(job, 9)
        os.waitpid(job, 0)
    assert {(one.pid, one.folder) for one in found} == {(job, theirs), (os.getpid(), ours)}


def test_many_folders_of_one_user_hide_no_other(
    place: Scenery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(place.top))
    ours = make_job_dir(place.top, 54322)
    write_beat(ours / "beat-1", 54322)
    for number in range(200):
        folder = place.top / f"whystuck-{STRANGER}-{number}"
        folder.mkdir(mode=0o700)
        os.chown(folder, STRANGER, STRANGER)
    assert ours in BeatFiles()._list_folders()


@pytest.mark.parametrize("kind", list(Kind))
def test_sources_are_read_with_the_rights_of_the_rank(place: Scenery, kind: Kind) -> None:
    readable = place.write("/tmp/train.py", "print(1)")
    readable.chmod(0o600)
    private = place.write("/tmp/private.py", "ROOTONLY", uid=0)
    private.chmod(0o600)
    (place.jail / "tmp" / "link.py").symlink_to(place.secret)
    (place.jail / "tmp" / "good.py").symlink_to("train.py")
    os.mkfifo(place.jail / "tmp" / "pipe.py")
    (place.jail / "tmp" / "zeros.py").symlink_to("/dev/zero")
    names = ("train", "private", "link", "good", "pipe", "zeros", "none")
    paths = {name: place.told(kind, f"/tmp/{name}.py") for name in names}
    paths["secret"] = str(place.secret)
    with Stranger(kind, place.jail) as job:
        found = SourceReader([Target(0, job.pid, "n0")]).read_all(paths.values())
    assert found == {paths["train"]: b"print(1)", paths["good"]: b"print(1)"}


def test_scene_of_a_rank_of_another_user_holds_no_file_of_root(place: Scenery) -> None:
    evidence = place.top / "evidence"
    job_dir = make_job_dir(place.top)
    hidden = place.secrets / "hidden.py"
    hidden.write_text("ROOTONLY")
    with Stranger(Kind.PLAIN, place.jail) as job:
        told = {"frames": [{"filename": str(hidden), "line": 1, "name": "f"}]}
        path = job_dir / f"exception-{job.pid}"
        path.write_text(json.dumps(told))
        os.chown(path, STRANGER, STRANGER)
        scene = Scene(evidence, [Target(0, job.pid, "n0", job_dir)])
        scene.copy_records()
    assert str(hidden) in (evidence / "n0/rank-0/exception.json").read_text()
    assert not (evidence / "sources").exists()
    hidden.unlink()
    place.check_unharmed()


def test_large_source_is_left_out_and_secret_stays(place: Scenery) -> None:
    place.write("/tmp/large.py", "x" * (1 << 20))
    place.write("/tmp/small.py", "x")
    with Stranger(Kind.PLAIN, place.jail) as job:
        paths = [str(place.outside(f"/tmp/{name}.py")) for name in ("large", "small")]
        assert list(SourceReader([Target(0, job.pid, "n0")]).read_all(paths)) == paths[1:]
    assert place.secret.read_text() == SECRET
