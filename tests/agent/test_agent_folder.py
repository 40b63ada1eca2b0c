from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from whystuck.agent import agent_folder as places
from whystuck.agent import agent_list
from whystuck.agent.agent_folder import FolderClaim, agent_folder, claim_folder, default_folder
from whystuck.agent.agent_list import find_agent, list_agents, remove_agent, write_agent
from whystuck.evidence.agent import AgentRecord
from whystuck.evidence.errors import UsageError
from whystuck.launch import jobdir

CLAIMER = """
import sys
from pathlib import Path
from whystuck.agent.agent_folder import agent_folder, claim_folder
from whystuck.agent.agent_list import write_agent
from whystuck.evidence.agent import AgentRecord
import os
folder = agent_folder(sys.argv[1])
claim = claim_folder(folder)
write_agent(AgentRecord(pid=os.getpid(), folder=str(folder)))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short folder, in which the default folder and the job folders of this test lie."""
    with tempfile.TemporaryDirectory(prefix="ws", dir="/tmp") as name:
        monkeypatch.delenv(places.FOLDER_ENV, raising=False)
        for module in (places, agent_list):
            monkeypatch.setattr(module, "default_folder", lambda: Path(name) / "node")
        monkeypatch.setattr(agent_list, "_MEMORY", Path(name) / "memory")
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


def _serve(folder: Path, job_dir: Path | None = None, *, started_ns: int = 0) -> FolderClaim:
    claim = claim_folder(agent_folder(folder))
    job = str(job_dir) if job_dir else ""
    write_agent(
        AgentRecord(pid=os.getpid(), folder=str(folder), job_dir=job, started_ns=started_ns)
    )
    return claim


def test_default_folder_is_short_and_of_this_user() -> None:
    assert default_folder() == Path(f"/tmp/whystuck-agent-{os.getuid()}")


def test_folder_is_made_private(root: Path) -> None:
    folder = root / "a"
    folder.mkdir()
    folder.chmod(0o755)

    assert agent_folder(folder) == folder
    assert agent_folder(f"{root}/x/../a/") == folder
    assert folder.stat().st_mode & 0o7777 == 0o700
    assert agent_folder() == root / "node"


@pytest.mark.parametrize(
    ("mode", "is_shared"), [(0o1777, False), (0o755, False), (0o1777, True), (0o700, True)]
)
def test_folder_that_is_used_for_something_else_stays_as_it_is(
    root: Path, mode: int, *, is_shared: bool
) -> None:
    folder = root / "etc"
    folder.mkdir()
    (folder / "passwd").touch()
    (folder / "lock").touch()
    folder.chmod(mode)

    with pytest.raises(UsageError, match="is used by others" if mode == 0o1777 else "holds files"):
        agent_folder(folder, is_shared=is_shared)

    assert folder.stat().st_mode & 0o7777 == mode
    assert {one.name for one in folder.iterdir()} == {"passwd", "lock"}


def test_empty_folder_that_others_can_write_to_stays_as_it_is(root: Path) -> None:
    for mode in (0o1777, 0o777):
        (root / "tmp").mkdir(exist_ok=True)
        (root / "tmp").chmod(mode)

        with pytest.raises(UsageError, match="is used by others"):
            agent_folder(root / "tmp")

        assert (root / "tmp").stat().st_mode & 0o7777 == mode


def test_closed_folder_with_other_files_is_used_as_it_is(root: Path) -> None:
    (root / "mine").mkdir()
    (root / "mine" / "token").touch()
    (root / "mine").chmod(0o2700)

    assert agent_folder(root / "mine") == root / "mine"
    assert (root / "mine").stat().st_mode & 0o7777 == 0o2700


@pytest.mark.parametrize("is_shared", [False, True])
def test_folder_that_an_agent_left_is_used_again(root: Path, *, is_shared: bool) -> None:
    claim = claim_folder(agent_folder(root / "a", is_shared=not is_shared))
    write_agent(AgentRecord(pid=os.getpid(), folder=str(root / "a")))
    (root / "a" / "dynoconfigclient-1").touch()
    claim.release()

    mode = agent_folder(root / "a", is_shared=is_shared).stat().st_mode & 0o7777

    assert mode == (0o1777 if is_shared else 0o700)


def test_shared_folder_to_which_others_have_added_is_used_again(root: Path) -> None:
    claim = claim_folder(agent_folder(root / "s", is_shared=True))
    write_agent(AgentRecord(pid=os.getpid(), folder=str(root / "s")))
    claim.release()
    (root / "s" / "anything").touch()

    assert agent_folder(root / "s", is_shared=True) == root / "s"


def test_list_of_agents_leaves_a_shared_folder_open(root: Path) -> None:
    shared = agent_folder(root / "node", is_shared=True)
    claim = _serve(root / "other")

    assert shared.stat().st_mode & 0o7777 == 0o1777
    assert [one.folder for one in list_agents()] == [str(root / "other")]
    claim.release()


def test_folder_comes_from_the_environment(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(places.FOLDER_ENV, str(root / "mine"))

    assert agent_folder() == root / "mine"


def test_shared_folder_lets_all_add_and_nobody_take_away(root: Path) -> None:
    assert agent_folder(root / "s", is_shared=True).stat().st_mode & 0o7777 == 0o1777


def test_long_path_is_refused_before_anything_is_made(root: Path) -> None:
    fits = root / ("x" * (54 - len(str(root)) - 1))
    assert agent_folder(fits) == fits

    with pytest.raises(UsageError, match="55 bytes"):
        agent_folder(f"{fits}x")
    assert not Path(f"{fits}x").exists()


def test_link_file_and_unusable_place_are_refused(root: Path) -> None:
    (root / "real").mkdir()
    (root / "link").symlink_to(root / "real")
    (root / "file").touch()

    for bad in ("link", "file", "file/below"):
        with pytest.raises(UsageError) as error:
            agent_folder(root / bad)
        assert error.value.hint


@pytest.mark.skipif(os.getuid() != 0, reason="gives a folder to another user, which root can")
def test_folder_of_another_user_is_refused(root: Path) -> None:
    (root / "theirs").mkdir()
    os.chown(root / "theirs", 12345, 12345)

    with pytest.raises(UsageError, match="uid 12345"):
        agent_folder(root / "theirs")


def test_second_agent_is_told_who_serves(root: Path) -> None:
    claim = _serve(root / "a")

    with pytest.raises(UsageError, match=f"pid {os.getpid()} serves"):
        claim_folder(root / "a")
    claim.release()
    claim_folder(root / "a").release()


def test_killed_agent_frees_its_folder(root: Path) -> None:
    command = [sys.executable, "-c", CLAIMER, str(root / "a")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        assert other.stdout.readline() == b"ready\n"
        with pytest.raises(UsageError, match=f"pid {other.pid} serves"):
            claim_folder(root / "a")
        other.send_signal(signal.SIGKILL)
        other.wait()

        claim = claim_folder(root / "a")
        assert claim.is_held()
        claim.release()


def test_removed_folder_is_made_and_claimed_anew(root: Path) -> None:
    claim = _serve(root / "a")
    claim.renew()
    (root / "a").rename(root / "gone")
    assert not claim.is_held()

    claim.renew()

    assert claim.is_held()
    with pytest.raises(UsageError):
        claim_folder(root / "a")
    claim.release()
    assert not claim.is_held()


def test_folder_that_another_took_meanwhile_is_not_taken_back(root: Path) -> None:
    claim = _serve(root / "a")
    (root / "a").rename(root / "gone")
    other = _serve(root / "a")

    with pytest.raises(UsageError, match="serves"):
        claim.renew()
    other.release()


def test_agents_are_listed_wherever_they_live(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(places.FOLDER_ENV, str(root / "env"))
    in_memory = root / "memory" / f"whystuck-{os.getuid()}-ab"
    in_temp = root / f"whystuck-{os.getuid()}-cd"
    claims = [
        _serve(root / "far" / "away", started_ns=2),
        _serve(in_memory / "k", in_memory, started_ns=1),
        _serve(in_temp / "k", in_temp, started_ns=9),
        _serve(root / "env", started_ns=3),
        _serve(root / "node", started_ns=4),
    ]

    folders = [Path(record.folder) for record in list_agents()]
    assert folders == [
        root / "far" / "away",
        root / "env",
        root / "node",
        in_memory / "k",
        in_temp / "k",
    ]
    for name in (str(in_temp), str(in_temp / "k"), in_temp.name):
        found = find_agent(name)
        assert found is not None
        assert found.folder == str(in_temp / "k")
    first = find_agent()
    assert first is not None
    assert first.folder == str(root / "far" / "away")
    assert find_agent("none") is None

    for claim in claims:
        claim.release()
    assert list_agents() == []


def test_dead_and_broken_records_are_left_out(root: Path) -> None:
    claim = _serve(root / "node")
    record = root / "node" / "agent.json"
    for broken in (b"", b"[]", b'{"pid": "x"}', b'{"pid": 0}', b"\xff" * 100, b"{" * (1 << 17)):
        record.write_bytes(broken)
        assert list_agents() == []
    record.write_bytes(b'{"pid": 7, "folder": "/elsewhere", "new": 1}')
    assert [(one.pid, one.folder) for one in list_agents()] == [(7, str(root / "node"))]

    claim.release()
    assert list_agents() == []


def test_list_is_not_believed_and_forgets(root: Path) -> None:
    claim = _serve(root / "far")
    listed = root / "node" / "agents"
    (entry,) = listed.iterdir()
    (listed / "0").write_bytes(os.fsencode(root / "far"))
    (listed / "1").write_bytes(b"\0\xff")
    (listed / "2").mkdir()
    assert [one.folder for one in list_agents()] == [str(root / "far")]

    remove_agent(root / "far")
    assert not entry.exists()
    assert list_agents() == []
    claim.release()


def test_entry_of_a_removed_folder_goes_with_the_next_one(root: Path) -> None:
    _serve(root / "one").release()
    (root / "one").rename(root / "gone")
    claim = _serve(root / "two")

    assert len(list((root / "node" / "agents").iterdir())) == 1
    claim.release()


@pytest.mark.skipif(os.getuid() != 0, reason="gives a folder to another user, which root can")
def test_folder_of_another_user_is_not_listed(root: Path) -> None:
    claim = _serve(root / "node")
    os.chown(root / "node", 12345, 12345)

    assert list_agents() == []
    claim.release()


def test_link_that_another_laid_is_not_written_through(root: Path) -> None:
    claim = claim_folder(agent_folder(root / "s", is_shared=True))
    (root / "precious").write_text("kept")
    (root / "s" / f"agent.json.{os.getpid()}").symlink_to(root / "precious")

    write_agent(AgentRecord(pid=os.getpid(), folder=str(root / "s")))

    assert (root / "precious").read_text() == "kept"
    assert (root / "s" / "agent.json").stat().st_mode & 0o777 == 0o600
    claim.release()


def test_names_agree_with_those_of_the_launcher() -> None:
    assert agent_list._JOB_PREFIX == jobdir.PREFIX
