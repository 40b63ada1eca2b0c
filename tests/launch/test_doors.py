"""What other users lay where job folders are: commands of this user pass it by, at once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.guarded.strangers import STRANGER, needs_root, scenery

from whystuck import cli
from whystuck.cli.output import write_file
from whystuck.guarded.remote import written

# Places of its own for jobs, temporary files and agents: what lies there must not meet other tests.
_PROGRAM = """
import json, os, resource, subprocess, sys, time
trap, uid, commands = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
agents = f"/tmp/whystuck-agent-{os.getuid()}"
os.makedirs(agents, 0o700, exist_ok=True)
for place, mode in (("/dev/shm", 0o1777), ("/var/tmp", 0o1777), (agents, 0o700)):
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True).returncode:
        sys.exit(77)
    os.chmod(place, mode)

def lay(place):
    folder = f"{place}/whystuck-{os.getuid() if uid == 0 else 0}-trap"
    if trap == "link to a folder":
        os.mkdir(f"{place}/real", 0o700); os.mkfifo(f"{place}/real/owner")
        os.symlink(f"{place}/real", folder)
        return
    if trap == "pipe":
        os.mkfifo(folder)
        return
    os.mkdir(folder, 0o777 if trap == "open to all" else 0o700)
    os.chmod(folder, 0o777 if trap == "open to all" else 0o700)
    for name in ("owner", "job.json", "beat-1", "switched-1"):
        path = f"{folder}/{name}"
        if trap == "link to zeros":
            os.symlink("/dev/zero", path)
        elif trap == "link to much":
            with open(f"{place}/much", "wb") as file:
                file.truncate(64 << 30)
            os.symlink(f"{place}/much", path)
        else:
            os.mkfifo(path)
    os.mkdir(f"{folder}/k")
    for name in ("agent.json", "lock"):
        os.mkfifo(f"{folder}/k/{name}")

child = os.fork()
if child == 0:
    try:
        os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
        lay("/dev/shm"); lay("/var/tmp")
        os._exit(0)
    finally:
        os._exit(1)
if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
    sys.exit(78)
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
for command in commands:
    done = subprocess.run(
        [sys.executable, "-m", "whystuck", *command], capture_output=True, text=True, timeout=60
    )
    print(json.dumps([command, done.returncode, done.stdout[-500:], done.stderr[-500:]]))
print(json.dumps(sorted(os.listdir("/dev/shm"))))
"""
TRAPS = ("pipes", "pipe", "link to zeros", "link to much", "link to a folder", "open to all")


def try_trap(trap: str, uid: int, evidence: Path) -> tuple[list[tuple[int, str]], list[str]]:
    """Run commands where somebody has laid a trap; return how they ended, and what is left."""
    commands = [
        ["run", "--evidence", str(evidence), "--", sys.executable, "-c", "print('it ran')"],
        ["switch", "get"],
        ["agent", "--status"],
        ["trace", "list"],
    ]
    program = [sys.executable, "-c", _PROGRAM, trap, str(uid), json.dumps(commands)]
    done = subprocess.run(
        ["unshare", "-m", "--propagation", "private", *program],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=evidence.parent,
        env={**os.environ, "TMPDIR": "/var/tmp"},
    )
    if done.returncode == 77:
        pytest.skip("no mounts can be made here")
    assert done.returncode == 0, done.stderr
    *told, left = [json.loads(line) for line in done.stdout.splitlines()]
    return [(code, out + error) for _, code, out, error in told], left


@needs_root
@pytest.mark.parametrize("trap", TRAPS)
def test_traps_of_another_user_are_passed_by(tmp_path: Path, trap: str) -> None:
    ended, left = try_trap(trap, STRANGER, tmp_path / "evidence")

    (run_code, run_text), (switch_code, switch_text), (status_code, _), (list_code, _) = ended
    assert run_code == 0, run_text
    assert "it ran" in run_text
    assert (switch_code, "no job runs here" in switch_text) == (2, True), switch_text
    assert status_code == 3
    assert list_code in {2, 3}
    assert "whystuck-0-trap" in left, "it is not ours to remove"


@needs_root
@pytest.mark.parametrize("trap", ["pipes", "pipe", "link to zeros", "link to much", "open to all"])
def test_odd_files_of_this_user_are_passed_by(tmp_path: Path, trap: str) -> None:
    ended, left = try_trap(trap, 0, tmp_path / "evidence")

    assert [code for code, _ in ended][:3] == [0, 2, 3], ended
    assert "whystuck-0-trap" in left


@needs_root
@pytest.mark.parametrize("kind", ["folder", "link"])
def test_default_folder_that_another_user_has_laid_is_not_used(kind: str) -> None:
    with scenery() as place:
        place.top.chmod(0o1777)
        theirs = place.top / "whystuck"
        if kind == "folder":
            place.give(theirs).chmod(0o777)
        else:
            theirs.symlink_to(place.give(place.top / "traps"))
            os.chown(theirs, STRANGER, STRANGER, follow_symlinks=False)
        command = [sys.executable, "-m", "whystuck", "run", "--", sys.executable, "-c", "print(7)"]
        done = subprocess.run(
            command, cwd=place.top, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr
        assert not list(theirs.iterdir())
        (made,) = place.top.glob("whystuck.0-*")
        assert made.stat().st_mode & 0o777 == 0o700


@needs_root
def test_folder_of_the_user_whose_place_it_is_is_used() -> None:
    with scenery() as place:
        home = place.give(place.top / "home")
        home.chmod(0o777)
        theirs = place.give(home / "whystuck")
        command = [sys.executable, "-m", "whystuck", "run", "--", sys.executable, "-c", "print(7)"]
        subprocess.run(command, cwd=home, capture_output=True, timeout=60, check=True)
        assert list(theirs.iterdir())


def test_report_follows_the_umask_and_is_never_changed_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "chmod", lambda *_: pytest.fail("by its name"))
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "report.html", b"x")
    finally:
        os.umask(before)
    assert (tmp_path / "report.html").read_bytes() == b"x"
    assert (tmp_path / "report.html").stat().st_mode & 0o777 == 0o640


@needs_root
@pytest.mark.parametrize("trap", ["link", "dangling link", "link to a link", "device", "pipe"])
@pytest.mark.parametrize("mode", [0o755, 0o1777], ids=["theirs", "open to all"])
def test_report_is_not_written_through_what_another_user_laid_in_its_place(
    trap: str, mode: int
) -> None:
    with scenery() as place:
        folder = place.give(place.top / "theirs", STRANGER if mode == 0o755 else 0)
        folder.chmod(mode)
        report = folder / "report.html"
        targets = {
            "link": place.secret,
            "dangling link": place.secrets / "new",
            "link to a link": folder / "second",
            "device": Path("/dev/null"),
        }
        if trap == "pipe":
            os.mkfifo(report)
            os.chown(report, STRANGER, STRANGER)
        else:
            (folder / "second").symlink_to(place.secret)
            report.symlink_to(targets[trap])
            for link in (folder / "second", report):
                os.lchown(link, STRANGER, STRANGER)

        write_file(report, b"x")

        assert (report.is_symlink(), report.is_file(), report.read_bytes()) == (False, True, b"x")
        place.check_unharmed()


def test_commands_write_files_that_a_user_names_in_one_way() -> None:
    source = Path(cli.__file__).parent
    own = {"output.py", "stdout.py", "remote_paths.py"}
    found = [
        f"{path.relative_to(source)}: {line.strip()}"
        for path in source.rglob("*.py")
        for line in path.read_text().splitlines()
        if path.name not in own and re.search(r"write_(text|bytes)\(.*enc|open\(\"[wax]", line)
    ]
    assert found == []


@needs_root
def test_links_of_this_user_lead_to_the_report_and_those_behind_them_of_others_do_not(
    tmp_path: Path,
) -> None:
    other, theirs, ours = (tmp_path / name for name in ("other", "theirs", "ours"))
    ours.symlink_to(theirs)
    theirs.symlink_to(other)
    write_file(ours, b"x")
    assert (other.read_bytes(), ours.is_symlink(), theirs.is_symlink()) == (b"x", True, True)

    os.lchown(theirs, STRANGER, STRANGER)
    write_file(ours, b"y")
    assert (other.read_bytes(), ours.read_bytes()) == (b"x", b"y")
    assert not theirs.is_symlink()


def test_folder_that_another_user_puts_in_the_place_of_ours_is_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN somebody who swaps each folder that is made in his own as soon as it is there
    private, theirs = tmp_path / "private", tmp_path / "theirs"
    for folder in (private, theirs):
        folder.mkdir()
    made = tempfile.mkdtemp

    def swap(*words: Any, **options: Any) -> str:
        name = str(made(*words, **options))
        Path(name).rename(f"{name}.mine")
        Path(name).symlink_to(private)
        return name

    monkeypatch.setattr(tempfile, "mkdtemp", swap)
    with written(str(theirs / "out.json")) as stream:
        stream.write(b"x")
        stream.flush()
        assert not list(private.iterdir())
    assert not list(private.iterdir())
    assert (theirs / "out.json").read_bytes() == b"x"


def test_file_that_becomes_a_link_is_not_written_through(tmp_path: Path) -> None:
    other, target = tmp_path / "other", tmp_path / ("n" * 250 + ".json")
    other.write_text("mine")

    with written(str(target)) as stream:
        stream.write(b"x")
        target.symlink_to(other)

    assert (other.read_text(), target.read_bytes(), target.is_symlink()) == ("mine", b"x", False)
    with suppress(ZeroDivisionError), written(str(target)) as stream:
        stream.write(b"y" * (1 // 0))
    assert target.read_bytes() == b"x"
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([other.name, target.name])
