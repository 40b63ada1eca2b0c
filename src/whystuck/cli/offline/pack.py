"""``whystuck pack``: one archive of what tells of a job, without names and secrets."""

from __future__ import annotations

import io
import json
import re
import tarfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click

from whystuck.cli.offline.diagnose import check_readable
from whystuck.cli.output import write_file
from whystuck.evidence.errors import UsageError
from whystuck.evidence.fault_events import FAULT_EVENTS_FILE, FAULT_LOG_FILE
from whystuck.evidence.finding import Gap
from whystuck.guarded.evidence_files import open_evidence, size_of
from whystuck.report.redact import FileRedactor, redact_report
from whystuck.safe_text.escaping import escape_line

_DEFAULT = "whystuck"
_TOP = "whystuck-pack"
# The command is free text of the job.
_COMMAND = re.compile(r"(?m)(Start of round \d+: ).*$")
_MAX_FILE_BYTES = 4 << 20
_MAX_FILES = 5000
# Of all files together: a MB takes half a second, and twice its size in memory.
_MAX_BYTES = 64 << 20
_MAX_VALUES = 1 << 18
_NO_TEXT = "no text: it cannot be redacted"
# Records with the environment or the source of the job, and pages that are made anew.
_LEFT_OUT = frozenset({"env.json", "report.json", "report.txt", "report.html", "sources.json"})


@dataclass
class _Contents:
    """What goes into the archive, by name, and what does not, with the reason."""

    files: dict[str, bytes] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


@click.command()
@click.argument("folder", required=False, metavar="[DIR]")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="The archive.  [default: whystuck-pack-<UTC time>.tar.gz]",
)
def pack(*, folder: str | None, output: str | None) -> int:
    """Put what tells of a job into one archive that can be given away.

    It holds the report, `fault.log`, the logs and the records of the evidence folder DIR (the
    newest run in ./whystuck when left out), all redacted: no host, user, folder, command, variable
    or secret. Dumps, op logs, traces and sources cannot be redacted and are left out;
    `contents.txt` lists all that is in it and all that is not.

    whystuck pack ./whystuck -o for-support.tar.gz
    """
    place = folder or _DEFAULT
    check_readable(place)
    root = _find_run(Path(place).resolve())
    contents = _gather(root)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    target = Path(output or f"{_TOP}-{stamp}.tar.gz")
    write_file(target, _make_archive(contents))
    click.echo(f"packed {len(contents.files)} files into {target}", err=True)
    click.echo(
        "look through it before you give it away: names may stand where none is known", err=True
    )
    return 0


def _find_run(place: Path) -> Path:
    """Return the folder of one run: the place itself, or the newest one in it."""
    if not place.is_dir():
        raise UsageError(
            f"`{place}` is no folder", hint="give the folder that `whystuck run` wrote"
        )
    if (place / "job.json").exists() or not any(place.glob("*/job.json")):
        return place
    return max(place.glob("*/job.json"), key=lambda path: path.stat().st_mtime).parent


def _gather(root: Path) -> _Contents:
    from whystuck.pipeline import diagnose_paths, render_all

    contents = _Contents()
    report = diagnose_paths([root])
    # Read twice, so that not all texts are in memory at once.
    paths = dict(_list_paths(root, contents))
    redactor = FileRedactor(report, _list_nodes(root), _read_all(paths, contents))
    for name, path in paths.items():
        if name not in contents.left_out:
            _keep(contents, name, _read_text(path), redactor)
    contents.files |= render_all(redact_report(report))
    contents.left_out = {
        redactor.path(name): redactor.text(why) for name, why in contents.left_out.items()
    }
    contents.files["contents.txt"] = _describe(contents)
    return contents


def _list_paths(root: Path, contents: _Contents) -> Iterator[tuple[str, Path]]:
    """Yield the files that may be text, by name, and note why others are left out."""
    from whystuck.read.walking import list_files

    gaps: list[Gap] = []
    log = root / FAULT_LOG_FILE
    paths = [*list_files(root, gaps), *([log] if log.is_file() else [])]
    for path in paths[:_MAX_FILES]:
        name = path.relative_to(root).as_posix()
        if path.name in _LEFT_OUT:
            contents.left_out[name] = "the environment, the sources, or made anew"
        else:
            yield name, path
    contents.left_out |= {gap.what: gap.reason for gap in gaps}
    if (root / FAULT_EVENTS_FILE).is_file():
        contents.left_out[FAULT_EVENTS_FILE] = f"{FAULT_LOG_FILE} says the same"
    if len(paths) > _MAX_FILES:
        contents.left_out["others"] = f"there are more than {_MAX_FILES} files"


def _read_all(paths: Mapping[str, Path], contents: _Contents) -> Iterator[str]:
    """Yield the texts one by one, up to a size in all."""
    left = _MAX_BYTES
    for name, path in paths.items():
        text = _read_text(path) if left > 0 else ""
        if text is None:
            contents.left_out[name] = _NO_TEXT
        elif len(text) > left or left <= 0:
            contents.left_out[name] = f"the files before it have {_MAX_BYTES >> 20} MiB of text"
            left = 0
        else:
            left -= len(text)
            yield text


def _keep(contents: _Contents, name: str, text: str | None, redactor: FileRedactor) -> None:
    """Put a file into the archive, redacted."""
    if text is None:
        contents.left_out[name] = _NO_TEXT
    elif name.endswith(".json"):
        try:
            contents.files[redactor.path(name)] = _redact_json(text, redactor)
        except (ValueError, RecursionError):
            # As plain text, it would keep commands and variables.
            contents.left_out[name] = "no whole JSON of a fit size: it cannot be redacted"
    else:
        if name.endswith(FAULT_LOG_FILE):
            text = _COMMAND.sub(r"\1<hidden>", text)
        contents.files[redactor.path(name)] = redactor.text(text).encode()


def _redact_json(text: str, redactor: FileRedactor) -> bytes:
    if text.count("[") + text.count("{") > _MAX_VALUES:
        raise ValueError("too many values")
    return json.dumps(redactor.json(json.loads(text)), indent=1).encode() + b"\n"


def _read_text(path: Path) -> str | None:
    """Return the end of a file; None where it is no text or cannot be read."""
    try:
        with open_evidence(path) as file:
            size = size_of(file)
            file.seek(max(0, size - _MAX_FILE_BYTES))
            data = file.read(_MAX_FILE_BYTES)
    except OSError:
        return None
    if b"\0" in data:
        return None
    if size > _MAX_FILE_BYTES:  # not a part of a line, which may be one of a secret
        data = data.partition(b"\n")[2]
    return data.decode(errors="replace")


def _list_nodes(root: Path) -> list[str]:
    """Return the nodes whose folders lie in rounds and incidents."""
    found = [*root.glob("rounds/*/*"), *root.glob("incidents/*/*")]
    return sorted({path.name.removesuffix(".evidence.tar") for path in found if _is_node(path)})


def _is_node(path: Path) -> bool:
    return path.is_dir() or path.name.endswith(".evidence.tar")


def _describe(contents: _Contents) -> bytes:
    kept = [f"{name}  {len(data)} bytes" for name, data in sorted(contents.files.items())]
    left = [escape_line(f"{name}: {why}") for name, why in sorted(contents.left_out.items())]
    lines = ["In this archive, redacted:", *kept, "", "Left out:", *(left or ["nothing"])]
    return ("\n".join(lines) + "\n").encode()


def _make_archive(contents: _Contents) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in sorted(contents.files.items()):
            member = tarfile.TarInfo(f"{_TOP}/{name}")
            member.size, member.mtime, member.mode = len(data), int(time.time()), 0o600
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()
