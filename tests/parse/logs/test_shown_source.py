"""Source that people show in logs: how commands print it, what its lines are, what is none."""

from __future__ import annotations

import ast

import pytest

from whystuck.evidence.ops.collectives import Frame
from whystuck.parse.logs.reader import read_log
from whystuck.parse.logs.shown_sources import make_sources

CODE = """\
def save(model, path, rank):
    if rank != 0:
        return
    torch.save(model.state_dict(), path)

    dist.barrier()
"""
FIRST = 36
LINES = CODE.splitlines()


def number(form: str, *, shift: int = 0) -> str:
    shown = (form.format(FIRST + at, line) for at, line in enumerate(LINES))
    return "\n".join(line[shift:].rstrip() for line in shown)


LISTED = {
    "nl": "$ nl -ba ckpt.py | sed -n 36,41p\n" + number("{:6d}\t{}"),
    "cat": "$ cat -n ckpt.py | head\n" + number("{:6d}\t{}"),
    "grep": "$ grep -n -A5 'def save' ckpt.py\n" + number("{}-{}"),
    "grep of files": number("ckpt.py:{}:{}"),
    "name": "ckpt.py\n" + number(" {}  {}"),
    "name and colon": "ckpt.py:\n" + number("{}: {}"),
    "bars": "# ckpt.py\n" + number("{} | {}"),
    "pdb": "> ckpt.py\n" + number(" {}  \t{}"),
    "sed": f"$ sed -n 36,41p ckpt.py\n{CODE}",
    "sed quoted": f"me@node-3:~/run$ sed -n '36,41p' ckpt.py\n{CODE}",
    "sed by count": f"$ sed -n 36,+5p ckpt.py\n{CODE}",
    "awk": f"# awk 'NR>=36 && NR<=41' ckpt.py\n{CODE}",
    "head and tail": f"$ head -41 ckpt.py | tail -6\n{CODE}",
    "tail": f"$ tail -n +36 ckpt.py | head -6\n{CODE}",
    "said": f"ckpt.py:36-41\n{CODE}",
    "link": f"ckpt.py#L36-L41\n{CODE}",
    "short": f"ckpt.py l.36-41:\n{CODE}",
    "said in words": f"ckpt.py, lines 36 to 41:\n{CODE}",
    "quoted": "\n".join(f"> {line}" for line in ("$ sed -n 36,41p ckpt.py", *LINES)),
}


def read_sources(text: str, *frames: Frame) -> dict[str, str]:
    return make_sources(read_log(text.encode()).sources, frames)


def find_line(text: str, words: str) -> int:
    return next((at for at, line in enumerate(text.split("\n"), 1) if words in line), 0)


@pytest.mark.parametrize("form", LISTED)
def test_lines_have_the_numbers_of_the_file(form: str) -> None:
    found = read_sources(f"hangs after the save\n\n{LISTED[form]}\n\n$ uptime\n 10:00 up 3 days\n")

    assert list(found) == ["ckpt.py"]
    assert find_line(found["ckpt.py"], "def save") == FIRST
    assert find_line(found["ckpt.py"], "dist.barrier()") == FIRST + 5
    assert ast.parse(found["ckpt.py"]).body[0].end_lineno == FIRST + 5


def test_whole_file_begins_at_its_first_line() -> None:
    assert find_line(read_sources(f"$ cat ckpt.py\n{CODE}$ ls\n")["ckpt.py"], "def save") == 1


def test_two_pieces_of_a_file_are_one_text() -> None:
    text = "$ sed -n 10,11p a.py\nx = 1\ny = 2\n$ sed -n 20,21p a.py\nif x:\n    y()\n"
    found = read_sources(text)["a.py"]

    assert (find_line(found, "y = 2"), find_line(found, "y()")) == (11, 21)


def test_text_is_that_of_the_file_of_a_frame() -> None:
    found = read_sources(LISTED["sed"], Frame("save", "/app/run/ckpt.py", 41))

    assert set(found) == {"ckpt.py", "/app/run/ckpt.py"}


def test_file_of_a_name_that_several_have_is_that_of_none() -> None:
    frames = Frame("save", "/app/a/ckpt.py", 41), Frame("save", "/app/b/ckpt.py", 41)

    assert set(read_sources(LISTED["sed"], *frames)) == {"ckpt.py"}


def test_listing_without_a_name_is_of_the_file_whose_frame_is_in_it() -> None:
    text = f"and the code\n\n{number('  {}  {}')}\n"

    assert set(read_sources(text, Frame("save", "ckpt.py", 41), Frame("f", "b.py", 9))) == {
        "ckpt.py"
    }
    assert not read_sources(text, Frame("save", "ckpt.py", 41), Frame("f", "b.py", 40))
    assert not read_sources(text)


PIECES = {
    "inside of a loop": ("        a(x)\n        if x:\n            continue\n        b(x)", "b(x)"),
    "end of one branch": ("            a(x)\n        else:\n            b(x)\n        c()", "c()"),
    "handler": ("            a(x)\n        except ValueError:\n            b(x)", "b(x)"),
    "cut behind a head": ("    a(x)\n    b(x)\n    for one in x:", "b(x)"),
    "begun above": ("            y=2)\n        b(x)\n        c(x)", "c(x)"),
    "cut in a call": ("        a(x)\n        b(x)\n        c(x,", "b(x)"),
    "not all of it": ("    a(x)\n    ...\n    b(x)", "b(x)"),
}


@pytest.mark.parametrize("name", PIECES)
def test_piece_from_the_middle_of_a_file_is_parsed(name: str) -> None:
    piece, words = PIECES[name]
    found = read_sources(f"$ sed -n 60,70p a.py\n{piece}\n$ ls\n")["a.py"]
    line = 60 + next(at for at, one in enumerate(piece.splitlines()) if words in one)

    assert find_line(found, words) == line
    ast.parse(found)


def test_branches_of_a_piece_are_branches() -> None:
    piece = PIECES["end of one branch"][0]
    found = read_sources(f"$ sed -n 60,70p a.py\n{piece}\n$ ls\n")["a.py"]
    first = next(one for one in ast.walk(ast.parse(found)) if isinstance(one, ast.If))

    assert (first.body[0].lineno, first.orelse[0].lineno) == (60, 62)


NONE = {
    "cards": "GPU  Temp\n0    52.0c    60.0c\n1    53.0c    61.0c\n2    58.0c    71.0c\n",
    "tasks": "0: step 1 loss 2.0\n1: step 1 loss 2.1\n2: step 1 loss 2.2\n",
    "frames": "    all_reduce (torch/distributed/c10d.py:2501)\n    <module> (train.py:9)\n",
    "output of a program": "$ python train.py\n1 a\n2 b\n3 c\n",
    "traceback": 'File "train.py", line 3, in f\n    dist.barrier()\n',
    "log of a file": "$ cat run.log\ndef = 3\n",
    "counts": "steps\n100 ok\n101 ok\n102 ok\n",
}


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_source_is_none(name: str) -> None:
    assert not read_sources(NONE[name], Frame("f", "train.py", 2))


def test_text_of_another_language_is_left_out() -> None:
    assert not read_sources("$ cat a.py\nint main() { return 0; }\nif (x) y();\n$ ls\n")


def test_long_log_is_not_looked_through() -> None:
    healthy = "2026-01-01 00:00:00 step 1 loss 2.0 train.py\n" * 8000

    assert not read_sources(healthy + LISTED["sed"])
