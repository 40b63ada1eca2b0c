"""What other users can do to an agent of root that serves them all, by files beside its own."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.guarded.strangers import STRANGER, Kind, Scenery, Stranger, needs_root, scenery

from whystuck.agent import agent_folder as places
from whystuck.agent import agent_list
from whystuck.agent.agent_folder import agent_folder, claim_folder, read_agent
from whystuck.agent.agent_list import list_agents, write_agent
from whystuck.agent.fabric.addresses import PathAddress
from whystuck.agent.ondemand.raw_files import make_root
from whystuck.agent.rpc.own_calls import CallRefusedError, _read_piece, _remove
from whystuck.agent.triggers.engine import STATE_FILE, RateLimits
from whystuck.agent.triggers.rules import TriggerKind, TriggerRule
from whystuck.agent.triggers.trace_output import make_place
from whystuck.collect.agent_client import has_agent
from whystuck.evidence.agent import AGENT_FILE, RPC_SOCKET, AgentRecord
from whystuck.evidence.errors import UsageError
from whystuck.guarded.results import ForeignFolderError, open_own_folder, written_private

pytestmark = needs_root


@pytest.fixture
def place() -> Iterator[Scenery]:
    """What other users and root have on this machine."""
    with scenery() as made:
        yield made


@pytest.fixture
def shared(place: Scenery, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an agent, in which everybody may make files."""
    folder = agent_folder(place.top / "k", is_shared=True)
    for module in (places, agent_list):
        monkeypatch.setattr(module, "default_folder", lambda: folder)
    monkeypatch.setattr(agent_list, "_MEMORY", place.top / "memory")
    return folder


@pytest.mark.parametrize("trap", ["folder", "full folder", "link", "file", "pipe"])
@pytest.mark.parametrize("is_shared", [False, True])
def test_what_another_user_made_in_the_place_of_roots_default_folder_is_put_aside(
    place: Scenery, monkeypatch: pytest.MonkeyPatch, trap: str, *, is_shared: bool
) -> None:
    folder = place.top / "whystuck-agent-0"
    for module in (places, agent_list):
        monkeypatch.setattr(module, "default_folder", lambda: folder)
    place.top.chmod(0o1777)
    with Stranger(Kind.PLAIN, place.jail) as stranger:
        made = {
            "folder": "os.mkdir({0!r})",
            "full folder": "os.mkdir({0!r}); open({0!r} + '/dynolog', 'w').close()",
            "link": "os.symlink({1!r}, {0!r})",
            "file": "open({0!r}, 'w').close()",
            "pipe": "os.mkfifo({0!r})",
        }[trap]
        stranger.do(made.format(str(folder), str(place.secrets)))

    assert agent_folder(is_shared=is_shared) == folder

    status = folder.lstat()
    assert stat.S_ISDIR(status.st_mode)
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (0, 0o1777 if is_shared else 0o700)
    assert not list(folder.iterdir())
    place.check_unharmed()


def test_named_folder_of_another_user_stays(place: Scenery) -> None:
    theirs = place.give(place.top / "theirs")

    with pytest.raises(UsageError, match=f"uid {STRANGER}"):
        agent_folder(theirs)
    assert theirs.stat().st_uid == STRANGER


@pytest.mark.parametrize("trap", ["pipe", "file", "link"])
def test_lock_of_another_user_is_not_taken_for_ours(
    place: Scenery, shared: Path, trap: str
) -> None:
    path = shared / places.LOCK_FILE
    if trap == "pipe":
        os.mkfifo(path)
    elif trap == "link":
        path.symlink_to(place.secret)
    else:
        path.touch()
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    with pytest.raises(UsageError):
        claim_folder(shared, is_shared=True)
    assert list_agents() == []
    place.check_unharmed()


@pytest.mark.parametrize("trap", ["pipe", "link", "zeros", "record"])
def test_record_of_another_user_is_not_read(place: Scenery, shared: Path, trap: str) -> None:
    path = shared / AGENT_FILE
    if trap == "pipe":
        os.mkfifo(path)
    elif trap == "record":
        path.write_bytes(msgspec.json.encode(AgentRecord(pid=1, folder=str(shared))))
    else:
        path.symlink_to("/dev/zero" if trap == "zeros" else place.secret)
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    claim = claim_folder(shared, is_shared=True)
    assert read_agent(shared) is None
    assert list_agents() == []
    claim.release()


def test_agent_takes_the_place_of_what_others_laid(place: Scenery, shared: Path) -> None:
    names = (places.LOCK_FILE, AGENT_FILE, RPC_SOCKET)
    for name in names:
        os.mkfifo(shared / name)
        os.chown(shared / name, STRANGER, STRANGER)
    place.give(shared / places.LIST_FOLDER)
    (shared / places.LIST_FOLDER / "file").touch()
    theirs = shared / "dynoconfigclient-1"
    theirs.touch()
    os.chown(theirs, STRANGER, STRANGER)

    agent_folder(shared, is_shared=True)

    claim_folder(shared, is_shared=True).release()
    for name in (AGENT_FILE, RPC_SOCKET, places.LIST_FOLDER):
        assert not os.path.lexists(shared / name)
    assert theirs.exists()


def test_list_that_another_user_laid_is_not_looked_through(place: Scenery, shared: Path) -> None:
    listed = shared / places.LIST_FOLDER
    place.give(listed)
    os.mkfifo(listed / "pipe")
    (listed / "zeros").symlink_to("/dev/zero")
    far = agent_folder(place.top / "far")
    claim = claim_folder(far)
    write_agent(AgentRecord(pid=os.getpid(), folder=str(far)))
    assert sorted(one.name for one in listed.iterdir()) == ["pipe", "zeros"]
    assert list_agents() == []
    claim.release()


@pytest.mark.parametrize("trap", ["pipe", "zeros", "file", "link to a part"])
def test_memory_of_rules_is_the_agents_own(shared: Path, place: Scenery, trap: str) -> None:
    path = shared / STATE_FILE
    if trap == "pipe":
        os.mkfifo(path)
    elif trap == "zeros":
        path.symlink_to("/dev/zero")
    elif trap == "file":
        path.write_text('{"taken_ns": {"stall": [1, 2, 3]}}')
        os.chown(path, STRANGER, STRANGER)
    else:
        (shared / f"{STATE_FILE}.part-{os.getpid()}").symlink_to(place.secret)
    limits = RateLimits(path)
    rule = TriggerRule(name="stall", when=TriggerKind.STALL)
    limits.note(rule, 17)
    assert ":[17]" in path.read_text()
    assert path.lstat().st_uid == 0
    place.check_unharmed()


@pytest.mark.parametrize("is_link", [False, True])
def test_folders_beside_the_agent_are_its_own(
    shared: Path, place: Scenery, *, is_link: bool
) -> None:
    theirs = place.give(place.top / "theirs")
    for name in ("triggers", "traces"):
        if is_link:
            (shared / name).symlink_to(place.secrets)
            os.lchown(shared / name, STRANGER, STRANGER)
        else:
            place.give(shared / name)
    with pytest.raises(PermissionError):
        make_place(None, shared, TriggerKind.STALL)
    with pytest.raises(UsageError, match="belongs to uid 12345"):
        make_root(shared / "traces")
    assert not list(theirs.iterdir())
    place.check_unharmed()


def test_socket_of_another_user_is_no_agent(shared: Path) -> None:
    with socket.socket(socket.AF_UNIX) as served:
        served.bind(str(shared / RPC_SOCKET))
        assert has_agent(shared)
        os.chown(shared / RPC_SOCKET, STRANGER, STRANGER)
        assert not has_agent(shared)


@pytest.mark.parametrize("trap", ["none", "link", "second name", "file"])
def test_answer_goes_to_the_socket_of_the_client_and_nowhere_else(
    shared: Path, place: Scenery, trap: str
) -> None:
    address = PathAddress(shared, is_shared=True)
    bound = address.open()
    client, other = str(shared / "dynolog-client"), str(place.top / "other")
    try:
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening,
        ):
            asking.bind(client)
            listening.bind(other)
            if trap == "none":
                address.send(bound, b"answer", client)
                assert asking.recv(100) == b"answer"
                return
            Path(client).unlink()
            if trap == "link":
                Path(client).symlink_to(other)
            elif trap == "second name":
                os.link(other, client)
            else:
                Path(client).touch()
            with pytest.raises(OSError):  # noqa: PT011 - of many kinds
                address.send(bound, b"answer", client)
            listening.setblocking(False)
            with pytest.raises(BlockingIOError):
                listening.recv(100)
    finally:
        bound.close()
        address.close()


def test_trace_that_lies_where_another_user_has_a_say_is_not_fetched(place: Scenery) -> None:
    theirs = place.give(place.top / "theirs")
    (theirs / "t.json").write_text("{}")
    link = place.top / "link"
    link.symlink_to(place.secrets)
    os.lchown(link, STRANGER, STRANGER)
    for path in (theirs / "t.json", link / place.secret.name):
        with pytest.raises(CallRefusedError, match="belongs to uid 12345"):
            _read_piece(str(path), 0, 100)
        _remove(path)
        assert path.exists()
    ours = place.output / "t.json"
    ours.write_text("{}")
    own_link = place.top / "own"
    own_link.symlink_to("output")
    assert _read_piece(str(own_link / "t.json"), 0, 100) == (b"{}", 2)
    place.check_unharmed()


def test_result_of_the_agents_own_is_private_and_goes_nowhere_else(place: Scenery) -> None:
    target = place.top / "new" / "deep" / "x.json"
    with written_private(str(target)) as stream:
        stream.write(b"1")
        assert not target.exists()
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert stat.S_IMODE(target.parent.stat().st_mode) == 0o700
    with pytest.raises(ZeroDivisionError), written_private(str(target)) as stream:
        stream.write(b"1" * (1 // 0))
    assert [one.name for one in target.parent.iterdir()] == ["x.json"]
    theirs = place.give(place.top / "theirs")
    with written_private(str(theirs / "new" / "x.json")) as stream:
        stream.write(b"root works where a user works, as in a container")
    assert (theirs / "new" / "x.json").stat().st_uid == 0
    loop = place.top / "loop"
    loop.symlink_to("loop")
    with pytest.raises(OSError, match="too many links"):
        open_own_folder(str(loop))
    sticky = place.top / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    with Stranger(Kind.PLAIN, place.jail) as job:
        job.do(f"os.symlink({str(place.secrets)!r}, {str(sticky / 'whystuck-trace-id')!r})")
        job.do(f"os.mkdir({str(sticky / 'whystuck-trace-other')!r}, 0o777)")
    for name in ("id", "other"):
        path = sticky / f"whystuck-trace-{name}" / "x.json"
        with pytest.raises(ForeignFolderError), written_private(str(path)):
            pass
    place.check_unharmed()
