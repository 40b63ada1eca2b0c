"""``whystuck pack``: one archive, and nothing in it that should stay in the house."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest
from tests.launch.running import run_whystuck
from tests.safe_text.test_escaping import is_visible

from whystuck.cli.offline import pack

NODE, USER = "gpu-node-17", "jdoe"
TOKEN = "hf_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3z"


def make_run(folder: Path) -> Path:
    """An evidence folder that names a host, a user, a command and a secret."""
    rank = folder / "rounds/0" / NODE / "rank-0"
    rank.mkdir(parents=True)
    (folder / "job.json").write_text(
        json.dumps(
            {"command": ["python", "secret_model.py"], "cwd": f"/home/{USER}/x", "node": NODE}
        )
    )
    (folder / "fault.log").write_text(
        f"2026-01-31 12:00:00 Start of round 0: python secret_model.py\n"
        f"2026-01-31 12:00:00 Node: {NODE} (Linux 6.1)\n"
    )
    (rank / "launcher.txt").write_text(
        f"Traceback (most recent call last):\n"
        f'  File "/home/{USER}/x/train.py", line 3, in <module>\n'
        f"ValueError: HF_TOKEN={TOKEN} on {NODE}\n"
    )
    (rank / "fr.pickle").write_bytes(b"\x80\x04\0\0not text")
    (rank / "env.json").write_text('{"HF_TOKEN": "x"}')
    return folder


def unpack(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        members = {one.name: archive.extractfile(one) for one in archive.getmembers()}
        return {name: file.read().decode() for name, file in members.items() if file}


def test_an_archive_has_report_logs_and_records_without_names_and_secrets(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    done = run_whystuck("pack", run, "-o", "out.tar.gz", cwd=tmp_path)
    assert done.returncode == 0, done.stderr

    files = unpack(tmp_path / "out.tar.gz")
    whole = "\n".join([*files, *files.values()])
    for word in (NODE, USER, TOKEN, "secret_model", f"/home/{USER}"):
        assert word not in whole, word
    assert {
        "report.json",
        "report.txt",
        "report.html",
        "contents.txt",
        "fault.log",
        "job.json",
    } <= {name.removeprefix("whystuck-pack/") for name in files}
    log = files["whystuck-pack/rounds/0/node-1/rank-0/launcher.txt"]
    assert "ValueError: HF_TOKEN=<hidden> on node-1" in log
    assert "train.py" in log


def test_what_cannot_be_redacted_is_left_out_and_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    run_whystuck("pack", run, "-o", "out.tar.gz", cwd=tmp_path)

    files = unpack(tmp_path / "out.tar.gz")
    contents = files["whystuck-pack/contents.txt"]
    assert "rounds/0/node-1/rank-0/fr.pickle: no text" in contents
    assert not [name for name in files if name.endswith((".pickle", "env.json"))]


def test_links_are_not_followed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (tmp_path / "other.txt").write_text("not for you")
    (run / "rounds/0/link.txt").symlink_to(tmp_path / "other.txt")
    run_whystuck("pack", run, "-o", "out.tar.gz", cwd=tmp_path)

    assert "not for you" not in "\n".join(unpack(tmp_path / "out.tar.gz").values())


def test_the_newest_run_is_packed_when_none_is_named(tmp_path: Path) -> None:
    make_run(tmp_path / "whystuck/20260131T120000Z-1")
    done = run_whystuck("pack", cwd=tmp_path)

    assert done.returncode == 0
    assert len(list(tmp_path.glob("whystuck-pack-*.tar.gz"))) == 1


def test_a_folder_that_is_not_there_is_2(tmp_path: Path) -> None:
    done = run_whystuck("pack", "nothing", cwd=tmp_path)

    assert done.returncode == 2
    assert done.stderr.startswith(b"error: cannot read `nothing`")


def test_names_that_act_on_a_terminal_are_shown_as_escapes(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    folder = run / "rounds/0" / NODE
    for name in (b"a\x1b[31m\nb.txt", "c\u202ed.txt".encode(), b"e\xff.txt"):
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_text("word\n")
    (folder / "f\x1b.pickle").write_bytes(b"\0")
    done = run_whystuck("pack", run, "-o", "out.tar.gz", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    files = unpack(tmp_path / "out.tar.gz")
    contents = files["whystuck-pack/contents.txt"]
    assert all(is_visible(line) for line in [*files, *contents.splitlines()])
    assert r"a\x1b[31m\nb.txt" in contents
    assert r"f\x1b.pickle: no text" in contents


@pytest.mark.parametrize(
    "text",
    ["[" * 200_000, "[" * 900 + "]" * 900, '{"command": ["python", "SECRETIVE"', "[[]," * 300_000],
    ids=["deep", "nested", "cut", "wide"],
)
def test_json_that_cannot_be_read_whole_is_left_out(tmp_path: Path, text: str) -> None:
    run = make_run(tmp_path / "run")
    (run / "rounds/0" / NODE / "x.json").write_text(text)
    done = run_whystuck("pack", run, "-o", "out.tar.gz", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    files = unpack(tmp_path / "out.tar.gz")
    assert "x.json: no whole JSON" in files["whystuck-pack/contents.txt"]
    assert "SECRETIVE" not in "".join(files.values())


def test_texts_have_a_limit_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run")
    monkeypatch.setattr(pack, "_MAX_BYTES", 5000)
    first = run / "rounds/0" / NODE / "a.txt"
    first.write_text("word " * 900)
    for name in ("b.txt", "c.txt"):
        os.link(first, first.with_name(name))

    files = pack._gather(run).files

    assert "rounds/0/node-1/a.txt" in files
    assert "rounds/0/node-1/b.txt" not in files
    assert "b.txt: the files before it" in files["contents.txt"].decode()
