"""``whystuck run``: the supervisor around a command."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from whystuck.cli.number_range import NumberRange
from whystuck.cli.offline.signature_options import signatures_option
from whystuck.cli.remote_paths import choose_place
from whystuck.cli.run.nccl_options import nccl_options
from whystuck.cli.run.node_options import node_options
from whystuck.cli.run.recorder_options import recorder_options
from whystuck.cli.run.restart_options import RestartOptions, restart_options
from whystuck.cli.run.switch_options import switch_options
from whystuck.evidence.errors import UsageError
from whystuck.launch.environment.nccl import NcclOptions
from whystuck.launch.environment.recorder import RecorderSettings
from whystuck.launch.options import OnStall, RunOptions, SwitchOptions, check_command
from whystuck.launch.stalls.stall import StallLimit

if TYPE_CHECKING:
    from whystuck.check.nodes.place import MeetingPlace
    from whystuck.launch.restarts.rounds import Rounds
    from whystuck.parse.logs.signatures import Signature


@click.command(
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@click.option(
    "--evidence",
    metavar="DIR|URL",
    help="Where the evidence goes; to a URL it is copied.  "
    "[default: ./whystuck/<UTC time>-<job id or pid>]",
)
@click.option(
    "--stall-after",
    metavar="auto|S",
    default="auto",
    show_default=True,
    help="Seconds without progress that count as a stall; "
    "auto is the larger of 20 s and five times the longest gap seen.",
)
@click.option(
    "--on-stall",
    type=click.Choice(["report", "kill", "hold"]),
    default="report",
    show_default=True,
    help="When the job is stuck: tell and keep watching, end it with code 124, "
    "or keep it for a look and end it then.",
)
@click.option(
    "--hold",
    "hold_s",
    metavar="S",
    type=NumberRange(min=0),
    help="Keep the processes of a job that crashes or is stuck for S seconds at most, until "
    "`whystuck release`; with `--on-stall hold`, of one that is stuck alone.  [default: 0, with "
    "`--on-stall hold` 3600]",
)
@click.option(
    "--agent/--no-agent",
    default=True,
    show_default=True,
    help="Start an agent beside the job, which traces it when `whystuck trace start` asks.",
)
@click.option(
    "--gpu-coredump",
    is_flag=True,
    help="At a stall, have CUDA dump the device of one rank of each node, without its memory: it "
    "tells which kernel runs there. Variables of CUDA that are set stay as they are.",
)
@click.option(
    "--check/--no-check",
    "is_checked",
    default=False,
    show_default=True,
    help="Check this node first, and again when the job fails; where it is not fit, "
    "end with code 120 and do not start.",
)
@click.option(
    "--check-policy", metavar="FILE", help="With `--check`, thresholds of your own, in TOML."
)
@node_options
@restart_options
@switch_options
@nccl_options
@signatures_option
@recorder_options
@click.argument("command", nargs=-1, metavar="-- COMMAND [ARG...]")
def run(
    *,
    evidence: str | None,
    stall_after: str,
    on_stall: str,
    hold_s: float | None,
    agent: bool,
    gpu_coredump: bool,
    is_checked: bool,
    check_policy: str | None,
    meeting: MeetingPlace | None,
    restarts: RestartOptions,
    switch: SwitchOptions,
    nccl: NcclOptions,
    signatures: tuple[Signature, ...],
    recorder: RecorderSettings,
    command: tuple[str, ...],
) -> int:
    """Start a job, watch it, and tell why it stops.

    The job runs as without whystuck: same output, same exit code. When it is stuck, or ends
    with an error, one screen on stderr names the rank, the line and the cause, and the evidence
    lies in a folder.

    The options that begin with `--fr-` are settings of torch's flight recorder. A variable of the
    recorder that is set in the environment always wins over them.

    whystuck run -- torchrun --nproc-per-node 8 train.py
    """
    _check_given(command, nccl)
    local, url = choose_place(evidence)
    options = RunOptions(
        command=list(command),
        evidence=local,
        evidence_url=url,
        limit=StallLimit(_parse_stall_after(stall_after)),
        on_stall=OnStall(on_stall),
        hold_s=hold_s,
        recorder=recorder,
        switch=switch,
        nccl=nccl,
        signatures=signatures,
        agent=agent,
        gpu_coredump=gpu_coredump,
    )
    nodes = _Nodes(is_checked or check_policy is not None, check_policy, meeting)
    _check_meeting(nodes, restarts)
    return _run_job(options, restarts, nodes)


@dataclass(frozen=True)
class _Nodes:
    """Whether nodes are checked, by which thresholds, and where those of the job meet."""

    are_checked: bool
    policy: str | None
    meeting: MeetingPlace | None


def _run_job(options: RunOptions, restarts: RestartOptions, nodes: _Nodes) -> int:
    if nodes.are_checked or restarts.are_wanted:
        return _run_rounds(options, restarts, nodes)
    from whystuck.launch.front import run_job

    return run_job(options)


def _run_rounds(options: RunOptions, restarts: RestartOptions, nodes: _Nodes) -> int:
    """Run the job in rounds: with checks, restarts, and exit codes of its root cause."""
    import socket

    from whystuck.launch.restarts.exit_codes import read_exit_codes
    from whystuck.launch.restarts.policy import RestartPolicy
    from whystuck.launch.restarts.rounds import Rounds

    codes = read_exit_codes(restarts.exit_code, restarts.exit_code_map)
    check_command(options.command[0])
    rounds = Rounds(
        options, socket.gethostname() or "localhost", RestartPolicy(restarts.max_restarts), codes
    )
    _add_checks(rounds, nodes)
    return rounds.run()


def _add_checks(rounds: Rounds, nodes: _Nodes) -> None:
    """Have the node checked, and have it agree with others, where that was asked for."""
    if not nodes.are_checked and nodes.meeting is None:
        return
    from whystuck.check.policy import read_policy

    policy = read_policy(Path(nodes.policy) if nodes.policy else None)
    command = rounds.options.command
    if nodes.are_checked:
        from whystuck.launch.check_node import NodeCheck

        rounds.check = NodeCheck(
            policy, rounds.options.evidence, rounds.node, command, nodes.meeting
        )
    if nodes.meeting is not None:
        from whystuck.launch.restarts.agreement import Agreement
        from whystuck.launch.restarts.nnodes import find_least_nodes

        least = find_least_nodes(command, os.environ)
        rounds.agreement = Agreement(
            policy, rounds.node, nodes.meeting, least, rounds.options.longest_hold_s
        )


def _check_meeting(nodes: _Nodes, restarts: RestartOptions) -> None:
    if nodes.meeting is not None and not (nodes.are_checked or restarts.max_restarts):
        raise UsageError(
            "`--coordinator` needs `--check` or `--max-restarts`",
            hint="nodes meet for the checks before the job, and to decide on restarts",
        )


def _check_given(command: tuple[str, ...], nccl: NcclOptions) -> None:
    if not command:
        raise UsageError(
            "there is no command to run",
            hint="put it after `--`, e.g. `whystuck run -- torchrun --nproc-per-node 8 train.py`",
        )
    from whystuck.launch.environment.nccl_check import check_nccl_options

    check_nccl_options(nccl)


def _parse_stall_after(text: str) -> float | None:
    if text == "auto":
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1.0 <= seconds < float("inf"):
        raise UsageError(
            f"`--stall-after {text}` is not a number of seconds",
            hint="use `auto`, or at least 1, e.g. `--stall-after 60`",
        )
    return seconds
