"""What a job of another user cannot make root's agent do by the paths that it chose or changes."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gzip
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.guarded.strangers import (
    SECRET,
    STRANGER,
    THIRD,
    Kind,
    Scenery,
    Stranger,
    filter_system_call,
    needs_root,
    scenery,
)

from whystuck.agent.interfaces import FabricPoll
from whystuck.agent.ondemand.finishing import Finished, FinishError, Order, check_whole, finish
from whystuck.agent.ondemand.raw_files import RawFile, make_raw_file, make_root, watch_path
from whystuck.agent.ondemand.reach import choose_number
from whystuck.agent.ondemand.tracer import OnDemandTracer
from whystuck.agent.processes.registry import ProcessRegistry
from whystuck.evidence.agent import ENDED, TraceRequest, TraceState
from whystuck.guarded import user_process
from whystuck.guarded.opening import can_open_below
from whystuck.guarded.processes import Owner, Pinned
from whystuck.guarded.user_process import UserProcess

pytestmark = needs_root

TRACE = '{"baseTimeNanoseconds": 1000, "traceEvents": [{"ph": "X"}],"traceName": "x" }'
ALL = pytest.mark.parametrize("kind", list(Kind))


@pytest.fixture
def place() -> Iterator[Scenery]:
    """What other users and root have on this machine."""
    with scenery() as made:
        yield made


def watch(place: Scenery, kind: Kind, job: Stranger, told: str = "/traces/t.json") -> RawFile:
    return watch_path(place.told(kind, told), pid=7, host_pid=job.pid, uid=STRANGER)


def take(place: Scenery, raw: RawFile) -> Finished | None:
    """Take a trace as the agent does; None when there is none to take."""
    found = raw.find()
    if found is None:
        return None
    return finish(Order(found, str(place.output), "x.pt.trace.json", {}, is_packed=False))


def refused(place: Scenery, raw: RawFile) -> bool:
    """See that a trace is not taken, and that nothing of root's has come to harm."""
    try:
        done = take(place, raw)
    except FinishError:
        done = None
    place.check_unharmed()
    return done is None and not list(place.output.iterdir())


@ALL
def test_trace_of_another_user_is_taken_and_only_its_reader_reads_it(
    place: Scenery, kind: Kind
) -> None:
    with Stranger(kind, place.jail) as job:
        raw = watch(place, kind, job)
        assert raw.look() == (-1, -1)
        place.write("/traces/t_7.json.tmp", "12345")
        assert raw.look() == (5, -1)
        whole = place.write("/traces/t_7.json", TRACE)
        assert raw.look() == (5, len(TRACE))
        done = take(place, raw)

    assert done is not None
    assert json.loads(Path(done.file).read_text()) == json.loads(TRACE)
    assert stat.S_IMODE(Path(done.file).stat().st_mode) == 0o600
    assert Path(done.file).stat().st_uid == 0, "who asked was root"
    assert not whole.exists()
    assert place.outside("/traces/t_7.json.tmp").exists(), "it is not the one that was taken"


def link_the_folder(place: Scenery) -> None:
    place.outside("/traces").rmdir()
    place.outside("/traces").symlink_to(place.secrets)


def link_the_file(place: Scenery) -> None:
    place.outside("/traces/t_7.json").symlink_to(place.secret)


def link_hard(place: Scenery) -> None:
    os.link(place.secret, place.outside("/traces/t_7.json"))


def lay_a_second_name(place: Scenery) -> None:
    os.link(
        place.write("/tmp/other", SECRET.replace("ROOT", "")), place.outside("/traces/t_7.json")
    )


def lay_a_pipe(place: Scenery) -> None:
    os.mkfifo(place.outside("/traces/t_7.json"))
    os.chown(place.outside("/traces/t_7.json"), STRANGER, STRANGER)


def lay_a_device(place: Scenery) -> None:
    path = place.outside("/traces/t_7.json")
    try:
        os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("no devices can be made here")
    os.chown(path, STRANGER, STRANGER)


def lay_a_file_of_root(place: Scenery) -> None:
    place.write("/traces/t_7.json", TRACE, uid=0)


def lay_a_file_of_a_third(place: Scenery) -> None:
    place.write("/traces/t_7.json", TRACE, uid=THIRD)


@ALL
@pytest.mark.parametrize(
    "trick",
    [
        link_the_folder,
        link_the_file,
        link_hard,
        lay_a_second_name,
        lay_a_pipe,
        lay_a_device,
        lay_a_file_of_root,
        lay_a_file_of_a_third,
    ],
)
def test_what_is_no_plain_file_of_the_job_is_not_taken(
    place: Scenery, kind: Kind, trick: Callable[[Scenery], None]
) -> None:
    with Stranger(kind, place.jail) as job:
        raw = watch(place, kind, job)
        trick(place)
        assert refused(place, raw)
        assert raw.look() == (-1, -1)


@ALL
def test_file_that_lay_there_before_is_not_taken(place: Scenery, kind: Kind) -> None:
    with Stranger(kind, place.jail) as job:
        place.write("/traces/t_7.json", TRACE)
        raw = watch(place, kind, job)
        assert refused(place, raw)
        old = place.write("/tmp/mine.json", TRACE)
        assert refused(place, raw)
        assert old.exists()


@ALL
@pytest.mark.parametrize("told", ["/traces/../../secrets/t.json", "/../secrets/t.json"])
def test_path_with_dots_leads_nowhere(place: Scenery, kind: Kind, told: str) -> None:
    with Stranger(kind, place.jail) as job:
        assert refused(place, watch(place, kind, job, told))


def test_mount_over_the_folder_shows_nothing_of_root(place: Scenery) -> None:
    mounts = {place.secrets: place.outside("/traces")}
    with Stranger(Kind.NAMESPACE, place.jail, mounts=mounts) as job:
        raw = watch(place, Kind.NAMESPACE, job)
        assert refused(place, raw)
        place.secret.touch()
        assert raw.look() == (-1, -1)
        assert refused(place, raw)


@ALL
def test_folder_that_is_swapped_after_the_look_shows_nothing(place: Scenery, kind: Kind) -> None:
    with Stranger(kind, place.jail) as job:
        raw = watch(place, kind, job)
        place.write("/traces/t_7.json", TRACE)
        found = raw.find()
        assert found is not None
        place.outside("/traces").rename(place.outside("/before"))
        place.outside("/traces").symlink_to(place.secrets)
        assert check_whole(found)
        with pytest.raises(FinishError):
            finish(Order(found, str(place.output), "x.json", {}, is_packed=False))
        assert refused(place, raw)
        place.outside("/traces").unlink()
        place.give(place.outside("/traces"))
        place.write("/traces/t_7.json", TRACE)
        assert check_whole(found) == "another file has come to its place"


@ALL
def test_swapping_all_the_time_gains_nothing(place: Scenery, kind: Kind) -> None:
    with Stranger(kind, place.jail) as job:
        raw = watch(place, kind, job)
        folder, other = place.told(kind, "/traces"), place.told(kind, "/other")
        job.do(
            f"""
def swap():
    while not is_over:
        os.rename({folder!r}, {other!r}); os.symlink({str(place.secrets)!r}, {folder!r})
        os.unlink({folder!r}); os.rename({other!r}, {folder!r})
is_over = False
swapper = threading.Thread(target=swap); swapper.start()
"""
        )
        for _ in range(15):
            inside = f"{folder}/t_7.json"
            job.do(
                "for _ in range(1000):\n"
                f"    try: open({inside!r}, 'w').write({TRACE!r}); break\n"
                "    except OSError: pass"
            )
            for _ in range(20):
                raw.look()
            try:
                done = take(place, raw)
            except FinishError:
                done = None
            if done is not None:
                assert json.loads(Path(done.file).read_text()) == json.loads(TRACE)
            place.check_unharmed()
        job.do("is_over = True; swapper.join()")


@ALL
def test_folder_for_the_trace_is_made_by_the_job_and_nowhere_else(
    place: Scenery, kind: Kind
) -> None:
    with Stranger(kind, place.jail) as job:
        watch(place, kind, job, "/traces/new/deep/t.json")
        assert place.outside("/traces/new/deep").stat().st_uid == STRANGER
        place.outside("/tmp/link").symlink_to(place.secrets)
        watch(place, kind, job, "/tmp/link/new/t.json")
        place.check_unharmed()
        place.outside("/etc").chmod(0o700)
        os.chown(place.outside("/etc"), 0, 0)
        watch(place, kind, job, "/etc/new/t.json")
        assert not list(place.outside("/etc").iterdir()), "the job could not have made it"


@pytest.mark.parametrize("mode", [0o700, 0o1777])
def test_folder_of_the_agent_that_was_renamed_leads_nowhere(place: Scenery, mode: int) -> None:
    root = make_root(place.top / "raw")
    root.chmod(mode)
    with Stranger(Kind.PLAIN, place.jail) as job:
        raw = make_raw_file(root, "id-7", pid=7, host_pid=job.pid, probe=False, uid=STRANGER)
        job.do(f"open({str(root / 'id-7' / 'trace_7.json')!r}, 'w').write({TRACE!r})")
        assert raw.look() == (-1, len(TRACE))
        if mode == 0o1777:
            job.do(f"os.rename({str(root / 'id-7')!r}, {str(root / 'mine')!r})")
            job.do(f"os.symlink({str(place.secrets)!r}, {str(root / 'id-7')!r})")
            assert raw.look() == (-1, -1)
            assert refused(place, raw)
            raw.remove()
            place.check_unharmed()
            with pytest.raises(FileExistsError):
                make_raw_file(root, "id-7", pid=7, host_pid=job.pid, probe=False)
            assert place.secrets.stat().st_uid == 0, "it was not given away"
        else:
            assert take(place, raw) is not None
            raw.remove()
            assert not list(root.iterdir())


@pytest.mark.parametrize("kind", [Kind.CHROOT, Kind.NAMESPACE])
def test_trace_is_taken_from_the_folder_of_that_name_in_a_container(
    place: Scenery, kind: Kind
) -> None:
    root = make_root(place.top / "raw")
    with Stranger(kind, place.jail) as job:
        raw = make_raw_file(root, "id-7", pid=7, host_pid=job.pid, probe=False, uid=STRANGER)
        inside = place.outside(str(root / "id-7"))
        inside.mkdir(parents=True)
        place.write(f"{root}/id-7/trace_7.json", TRACE)
        assert raw.look() == (-1, -1), "a folder of root's is none of the job's"
        os.chown(inside, STRANGER, STRANGER)
        assert raw.look() == (-1, len(TRACE))
        done = take(place, raw)
        raw.remove()
    assert done is not None
    assert json.loads(Path(done.file).read_text()) == json.loads(TRACE)
    assert not list(inside.iterdir())
    assert not list(root.iterdir())


def test_files_in_a_folder_of_the_agent_are_those_of_the_job_only(place: Scenery) -> None:
    root = make_root(place.top / "raw")
    with Stranger(Kind.PLAIN, place.jail) as job:
        raw = make_raw_file(root, "id-7", pid=7, host_pid=job.pid, probe=False, uid=STRANGER)
        inside = root / "id-7" / "trace_7.json"
        os.link(place.secret, inside)
        assert refused(place, raw)
        inside.unlink()
        job.do(f"os.symlink({str(place.secret)!r}, {str(inside)!r})")
        assert refused(place, raw)
        raw.remove()
        assert not list(root.iterdir())
        place.check_unharmed()


@ALL
def test_result_goes_with_the_rights_of_the_job_where_it_has_a_say(
    place: Scenery, kind: Kind
) -> None:
    theirs = place.give(place.top / "theirs")
    with Stranger(kind, place.jail) as job:
        raw = watch(place, kind, job)
        place.write("/traces/t_7.json", TRACE)
        found = raw.find()
        assert found is not None
        done = finish(Order(found, str(theirs / "new"), "x.json", {}, is_packed=True))
        status = Path(done.file).stat()
        assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (STRANGER, 0o600)
        assert json.loads(gzip.decompress(Path(done.file).read_bytes())) == json.loads(TRACE)
        assert done.file_bytes == status.st_size

        (theirs / "link").symlink_to(place.secrets)
        os.lchown(theirs / "link", STRANGER, STRANGER)
        place.write("/traces/t_7.json", TRACE)
        again = raw.find()
        assert again is not None
        with pytest.raises(FinishError, match=r"[Pp]ermission"):
            finish(Order(again, str(theirs / "link"), "x.json", {}))
        place.check_unharmed()
        third = place.give(place.top / "third", THIRD)
        with pytest.raises(FinishError, match="belongs to uid"):
            finish(Order(again, str(third), "x.json", {}))
        assert not list(third.iterdir())
        assert place.outside("/traces/t_7.json").exists()


def test_program_with_the_rights_of_several_users_is_left_alone(place: Scenery) -> None:
    with Stranger(Kind.PLAIN, place.jail) as job, pytest.raises(OSError, match="another user"):
        watch_path(str(place.secret), pid=7, host_pid=job.pid, uid=THIRD)
    code = "import os; os.setresuid(12345, 0, 0); print(1, flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe) as one:
        assert one.stdout
        assert one.stdout.readline() == b"1\n"
        with pytest.raises(OSError, match="several users"):
            watch_path(str(place.secret), pid=7, host_pid=one.pid)
        one.communicate(b"\n")


def test_number_that_a_process_tells_is_one_of_its_own(place: Scenery) -> None:
    with Stranger(Kind.PLAIN, place.jail) as job:
        assert choose_number(job.pid, job.pid) == job.pid
        assert choose_number(job.pid, os.getpid()) == job.pid
    assert choose_number(0, 7) == 7


def test_groups_of_the_job_are_taken_on_and_no_others(place: Scenery) -> None:
    raw_folder = place.give(place.outside("/traces/group"))
    os.chown(raw_folder, STRANGER, 777)
    raw_folder.chmod(0o070)  # only by his group he can enter it, as owner he cannot
    with Stranger(Kind.PLAIN, place.jail) as job:
        job.do("libc.prctl(15, b'x\\rUid:0 0 0 0', 0, 0, 0)")
        with Pinned(job.pid) as process:
            assert process.read_owner() == Owner(STRANGER, STRANGER, ())
        raw = watch_path(str(raw_folder / "t.json"), pid=7, host_pid=job.pid, uid=STRANGER)
        place.write("/traces/group/t_7.json", TRACE)
        assert refused(place, raw)
        raw_folder.chmod(0o700)
        assert take(place, raw) is not None
    owner = Owner(STRANGER, STRANGER, (776, 777))
    root = os.open("/", os.O_PATH)
    with UserProcess(owner, root) as worker:
        status = Path(f"/proc/{worker._process.pid}/status")
        worker.ask("folder", folder=str(place.outside("/traces")))
        fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines())
    os.close(root)
    assert fields["Uid"].split() == fields["Gid"].split() == [str(STRANGER)] * 4
    assert fields["Groups"].split() == ["776", "777"]
    assert {fields[f"Cap{name}"] for name in ("Inh", "Prm", "Eff", "Amb")} == {"0" * 16}
    assert fields["NoNewPrivs"] == "1"


def test_root_without_the_rights_to_become_others_says_so(place: Scenery) -> None:
    with Stranger(Kind.PLAIN, place.jail) as job:
        raw = watch(place, Kind.PLAIN, job)
        place.write("/traces/t_7.json", TRACE)
        found = raw.find()
        assert found is not None
        child = os.fork()
        if child == 0:
            try:
                # What is started next has no CAP_SETUID.
                assert ctypes.CDLL(None).prctl(24, 7, 0, 0, 0) == 0
                told = check_whole(found)
                os._exit(0 if "the rights of uid 12345 cannot be taken on" in told else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_root_of_a_container_that_is_not_known_follows_no_link(place: Scenery) -> None:
    told = str(place.outside("/traces/t.json"))
    raw = watch_path(told, pid=7, host_pid=-1, uid=0)
    place.write("/traces/t_7.json", TRACE, uid=0)
    found = raw.find()
    assert found is not None
    link = place.outside("/traces")
    link.rename(place.outside("/before"))
    link.symlink_to(place.secrets)
    assert check_whole(found)
    assert refused(place, raw)
    with pytest.raises(OSError, match="which process"):
        watch_path(told, pid=7, host_pid=0, uid=STRANGER)


def test_user_who_kills_what_works_for_root_ends_his_own_trace_only(place: Scenery) -> None:
    hunter = 12399  # no other test has processes of his
    os.chown(place.outside("/traces"), hunter, hunter)
    with Stranger(Kind.PLAIN, place.jail, uid=hunter) as job:
        told = str(place.outside("/traces/t.json"))
        raw = watch_path(told, pid=7, host_pid=job.pid, uid=hunter)
        place.write("/traces/t_7.json", TRACE, uid=hunter)
        found = raw.find()
        assert found is not None
        job.do(
            """
def hunt():
    own = os.getpid()
    while not is_over:
        for name in os.listdir("/proc"):
            try:
                if name.isdigit() and int(name) != own: os.kill(int(name), 9)
            except OSError: pass
is_over = False
hunter = threading.Thread(target=hunt); hunter.start()
"""
        )
        ends = {check_whole(found) for _ in range(5)}
        job.do("is_over = True; hunter.join()")
        assert ends <= {"", "the process that looks at it for us has ended"}
        assert check_whole(found) == ""
        place.check_unharmed()


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EPERM])
def test_without_openat2_files_of_others_are_left_alone(place: Scenery, error: int) -> None:
    with Stranger(Kind.PLAIN, place.jail) as job:
        place.write("/traces/t_7.json", TRACE)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                filter_system_call(437, error)
                can_open_below.cache_clear()
                try:
                    watch(place, Kind.PLAIN, job)
                except OSError as refusal:
                    code = 0 if "openat2" in str(refusal) else 2
                watch_path(str(place.top / "own" / "t.json"), pid=7, host_pid=os.getpid())
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert (place.top / "own").is_dir(), "those of its own user are opened as ever"
        place.check_unharmed()


def test_file_system_that_hangs_is_given_up(
    place: Scenery, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Stranger(Kind.PLAIN, place.jail) as job:
        raw = watch(place, Kind.PLAIN, job)
        place.write("/traces/t_7.json", TRACE)
        found = raw.find()
        assert found is not None
        code = "import time; time.sleep(3600)"
        monkeypatch.setattr(user_process, "_python", lambda: [sys.executable, "-c", code])
        monkeypatch.setattr(user_process.UserProcess.__init__, "__kwdefaults__", {"timeout_s": 0.2})
        assert check_whole(found) == "its file system does not answer"


@pytest.mark.parametrize("kind", [Kind.CHROOT, Kind.NAMESPACE])
@pytest.mark.parametrize("is_named", [False, True])
def test_agent_of_root_publishes_nothing_that_a_job_of_another_user_points_at(
    place: Scenery, kind: Kind, is_named: bool
) -> None:
    async def main(job: Stranger) -> None:
        tracer = OnDemandTracer(ProcessRegistry(node="n1"), raw_root=place.top / "raw")

        def ask() -> str:
            told, now_ns = (7, 1), time.time_ns()
            return tracer.answer(
                FabricPoll(
                    address="/x",
                    pid=job.pid,
                    uid=STRANGER,
                    told_pids=told,
                    job_number=0,
                    wants=3,
                    time_ns=now_ns,
                )
            )

        ask()
        named = "/traces/t.json" if is_named else ""
        tracer.start(TraceRequest(id="a", duration_ms=50, log_file=named, output=str(place.output)))
        (line,) = [one for one in ask().splitlines() if one.startswith("ACTIVITIES_LOG_FILE=")]
        folder = place.outside(line.partition("=")[2].rpartition("/")[0])
        folder.parent.mkdir(parents=True, exist_ok=True)
        if is_named:
            folder.rmdir()
        folder.symlink_to(place.secrets)
        for _ in range(40):
            if tracer.progress("a")[0].state in ENDED:
                break
            await asyncio.sleep(0.05)
        place.check_unharmed()
        assert tracer.progress("a")[0].state is not TraceState.WRITTEN
        assert not list(place.output.iterdir())
        tracer.close()
        place.check_unharmed()

    with Stranger(kind, place.jail) as job:
        asyncio.run(main(job))
