"""``whystuck init``: a start script whose logs are whole and whose exit code is that of the job."""

from __future__ import annotations

import os
import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path

import click

from whystuck.cli.output import write_file
from whystuck.cli.stdout import encode_for_stdout, write_stdout

_SCRIPTS = Path(__file__).with_name("scripts")
_FILES = {"bash": "start.sh", "slurm": "slurm.sh", "kubernetes": "kubernetes.yaml"}
_SCRIPT = '--nproc-per-node "${NPROC_PER_NODE:-gpu}" train.py'
_RENDEZVOUS = (
    '--nnodes "${nodes}" --rdzv-backend c10d --rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT" '
    '--rdzv-id "{job}"'
)
_NODES = {
    "bash": "--standalone",
    "slurm": _RENDEZVOUS.format(nodes="SLURM_NNODES", job="$SLURM_JOB_ID"),
    "kubernetes": _RENDEZVOUS.format(nodes="NNODES", job="train"),
}
# With any of these, a command of torchrun says itself which nodes are in the job.
_TELLS_NODES = ("--nnodes", "--standalone", "--node-rank", "--master-", "--rdzv-")
_WATCHED = (
    'whystuck run --check --hold "$HOLD_S" --max-restarts "$MAX_RESTARTS" '
    '--evidence "$LOG_DIR/whystuck" {meeting}-- '
)
# Slurm's variables say which of the nodes this is.
_MEETINGS = {
    "bash": "",
    "slurm": '${COORDINATOR:+--coordinator "$COORDINATOR"} ',
    "kubernetes": '${COORDINATOR:+--coordinator "$COORDINATOR" --nnodes "$NNODES" '
    '--node-rank "$NODE_RANK"} ',
}


@click.command()
@click.option("-o", "--output", metavar="FILE", help="Write it to FILE instead of stdout.")
@click.argument("kind", type=click.Choice(list(_FILES)))
@click.argument("command", nargs=-1, metavar="[-- COMMAND [ARG...]]")
def init(*, kind: str, output: str | None, command: tuple[str, ...]) -> int:
    """Write a start script for a shell, for Slurm, or for Kubernetes.

    It logs each stage with time and host, keeps the exit code of the job and the last lines of its
    output, passes signals on, and gives each start a log of its own. COMMAND takes the place of
    torchrun in it; where it is torchrun and names no nodes, those of the job are added.

    whystuck init slurm > job.sh
    """
    data = make_script(kind, command).encode()
    if output:
        write_file(Path(output), data)
    else:
        write_stdout(encode_for_stdout(data.decode()))
    return 0


def make_script(kind: str, command: tuple[str, ...] = ()) -> str:
    """Return a start script, with the words of a command quoted for bash."""
    text = (_SCRIPTS / _FILES[kind]).read_text()
    start = (_SCRIPTS / _FILES["bash"]).read_text().rstrip("\n")
    watched = _WATCHED.replace("{meeting}", _MEETINGS[kind])
    start = start.replace("@COMMAND@", watched + _make_command(kind, command))
    if kind == "bash":
        return start + "\n"
    return text.replace("@START@", textwrap.indent(start, "    ") if kind != "slurm" else start)


def _make_command(kind: str, command: Sequence[str]) -> str:
    """Return the command of the job: its launcher on each node starts a part of one job."""
    if not command:
        return f"torchrun {_NODES[kind]} {_SCRIPT}"
    program, *words = command
    tells = any(word.replace("_", "-").startswith(_TELLS_NODES) for word in words)
    if kind == "bash" or program != "torchrun" or tells:
        return _quote(command)
    return f"torchrun {_NODES[kind]} {_quote(words)}"


def _quote(command: Sequence[str]) -> str:
    """Return words on one line: a break in one could end the part of the script that it is in."""
    return " ".join(
        shlex.quote(word) if word.isprintable() else f"$'{''.join(map(_escape, word))}'"
        for word in command
    )


def _escape(char: str) -> str:
    if not char.isprintable():
        return "".join(f"\\x{byte:02x}" for byte in os.fsencode(char))
    return f"\\{char}" if char in "\\'" else char
