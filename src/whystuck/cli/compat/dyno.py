"""``dyno``: the client of dynolog, for scripts that call it; it talks to an agent or to dynolog."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from whystuck.cli.script import run_command
from whystuck.cli.stdout import encode_for_stdout, write_stdout
from whystuck.evidence.agent import DYNO_PORT
from whystuck.evidence.decoding import decode_json
from whystuck.evidence.errors import UsageError, WhystuckError
from whystuck.safe_text.escaping import escape_lines

if TYPE_CHECKING:
    from whystuck.agent.rpc.client import RpcAddress

PANIC = 101
"""The exit code of dynolog's client when there is no server, or no reply."""
_TIMEOUT_S = 60.0
_U64 = click.IntRange(0, 2**64 - 1)
_U32 = click.IntRange(0, 2**32 - 1)
_I64 = click.IntRange(-(2**63), 2**63 - 1)


class DynoError(WhystuckError):
    """The server cannot be reached, or does not answer."""

    exit_code = PANIC


@click.group(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
)
@click.option("--hostname", default="localhost", show_default=True, help="Where the agent runs.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DYNO_PORT,
    show_default=True,
    help="The port that it listens on.",
)
@click.option(
    "--token-file", metavar="FILE", help="Send the token in this file, for agents that want one."
)
@click.option(
    "--tls-ca", metavar="FILE", help="Use TLS, and trust certificates that this one has signed."
)
@click.pass_context
def dyno(
    context: click.Context, hostname: str, port: int, token_file: str | None, tls_ca: str | None
) -> None:
    """Ask an agent of whystuck, or dynolog, for traces of PyTorch jobs."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)
    from whystuck.agent.rpc.auth import make_client_tls, read_token
    from whystuck.agent.rpc.client import RpcAddress

    context.obj = RpcAddress(
        host=hostname,
        port=port,
        token=read_token(Path(token_file)) if token_file else "",
        tls=make_client_tls(Path(tls_ca)) if tls_ca else None,
    )


@dyno.command()
@click.pass_obj
def status(address: RpcAddress) -> int:
    """Check the status of a dynolog process."""
    _show(_ask(address, b'{"fn":"getStatus"}'))
    return 0


@dyno.command()
@click.pass_obj
def version(address: RpcAddress) -> int:
    """Check the version of a dynolog process."""
    _show(_ask(address, b'{"fn":"getVersion"}'))
    return 0


@dyno.command("dcgm-pause")
@click.option(
    "--duration-s",
    type=click.IntRange(-(2**31), 2**31 - 1),
    default=300,
    show_default=True,
    help="For how long, in seconds.",
)
@click.pass_obj
def dcgm_pause(address: RpcAddress, duration_s: int) -> int:
    """Pause the profiling by DCGM, for tools that need it."""
    body = f'\n{{\n    "fn": "dcgmProfPause",\n    "duration_s": {duration_s}\n}}'
    _show(_ask(address, body.encode()))
    return 0


@dyno.command("dcgm-resume")
@click.pass_obj
def dcgm_resume(address: RpcAddress) -> int:
    """Resume the profiling by DCGM."""
    _show(_ask(address, b'{"fn":"dcgmProfResume"}'))
    return 0


@dyno.command()
@click.option("--job-id", type=_U64, default=0, show_default=True, help="The job to trace.")
@click.option(
    "--pids", default="0", show_default=True, help="Its processes, with commas; 0 means all."
)
@click.option("--duration-ms", type=_U64, default=500, show_default=True, help="How long.")
@click.option(
    "--iterations", type=_I64, default=-1, show_default=True, help="How many iterations instead."
)
@click.option("--log-file", required=True, metavar="FILE", help="Where the trace goes.")
@click.option(
    "--profile-start-time", type=_U64, default=0, show_default=True, help="When, in ms since 1970."
)
@click.option(
    "--profile-start-iteration-roundup",
    type=_U64,
    default=1,
    show_default=True,
    help="Begin at a multiple of this iteration.",
)
@click.option(
    "--process-limit", type=_U32, default=3, show_default=True, help="Trace so many at most."
)
@click.option("--record-shapes", is_flag=True, help="Record shapes of inputs.")
@click.option(
    "--profile-memory",
    is_flag=True,
    help="Ask for allocations, which torch leaves out; not with --iterations.",
)
@click.option("--with-stacks", is_flag=True, help="Record Python stacks.")
@click.option(
    "--with-flops", is_flag=True, help="Ask for counts of operations, which torch leaves out."
)
@click.option("--with-modules", is_flag=True, help="Record modules; needs --with-stacks.")
@click.option("--fail-on-no-process", is_flag=True, help="Exit with 1 when no process matches.")
@click.pass_obj
def gputrace(address: RpcAddress, /, **options: Any) -> int:  # noqa: ANN401 - each of its own type
    """Trace a PyTorch job."""
    config = make_config(options)
    request = make_request(config, options)
    reply = _ask(address, request, f"Kineto config = \n{config}\n")
    _show(reply, more="\n")
    matched = _read_matched(reply)
    _print(_say_matched(matched, str(options["log_file"])))
    return 1 if options["fail_on_no_process"] and not matched else 0


def make_config(options: dict[str, Any]) -> str:
    """Return the text for Kineto, in the order of dynolog's client.

    Its memory snapshot (``PROFILE_MEMORY``) is left out: the thread that serves it spins until the
    job ends. What is asked for in its place adds nothing to the trace, as with dynolog.
    """
    lines = [f"ACTIVITIES_LOG_FILE={options['log_file']}"]
    if options["iterations"] > 0:
        if options["profile_memory"]:
            raise DynoError(
                "Please only use -profile-memory with duration mode, i.e. set --duration-ms",
                hint="leave --iterations out",
            )
        lines += [
            "PROFILE_START_ITERATION=0",
            f"PROFILE_START_ITERATION_ROUNDUP={options['profile_start_iteration_roundup']}",
            f"ACTIVITIES_ITERATIONS={options['iterations']}",
        ]
    else:
        lines += [
            f"PROFILE_START_TIME={options['profile_start_time']}",
            f"ACTIVITIES_DURATION_MSECS={options['duration_ms']}",
        ]
    lines.append(f"PROFILE_REPORT_INPUT_SHAPES={_flag(options['record_shapes'])}")
    if options["profile_memory"]:
        lines.append("PROFILE_PROFILE_MEMORY=true")
    lines += [
        f"PROFILE_WITH_STACK={_flag(options['with_stacks'])}",
        f"PROFILE_WITH_FLOPS={_flag(options['with_flops'])}",
        f"PROFILE_WITH_MODULES={_flag(options['with_modules'])}",
    ]
    return "\n".join(lines)


def make_request(config: str, options: dict[str, Any]) -> bytes:
    """Return the request as dynolog's client lays it out, byte for byte."""
    pids = [part.strip() for part in str(options["pids"]).split(",")]
    if not all(part.isascii() and part.isdigit() for part in pids):
        raise UsageError(f"`{options['pids']}` are no pids", hint="e.g. `--pids 4711,4712`")
    text = msgspec.json.encode(config).decode()
    return (
        f'\n{{\n    "fn": "setKinetOnDemandRequest",\n    "config": {text},\n'
        f'    "job_id": {options["job_id"]},\n    "pids": [{",".join(pids)}],\n'
        f'    "process_limit": {options["process_limit"]}\n}}'
    ).encode()


def _flag(is_on: object) -> str:
    return "true" if is_on else "false"


def _ask(address: RpcAddress, body: bytes, before: str = "") -> bytes:
    """Send a request; ``before`` is printed once there is a connection, as in dynolog's client."""
    from whystuck.agent.rpc.client import REFUSED, CallError, exchange

    if address.token:
        body = b'{"token":' + msgspec.json.encode(address.token) + b"," + body.lstrip()[1:]
    try:
        reply = asyncio.run(exchange(address, body, timeout_s=_TIMEOUT_S))
    except CallError as error:
        if error.kind == REFUSED:
            raise DynoError(
                f"Couldn't connect to the server...: {error.message}", hint=error.hint
            ) from error
        _print(before)
        raise DynoError(
            f"Unable to decode output bytes: {error.message}", hint=error.hint
        ) from error
    _print(before)
    return reply


def _show(reply: bytes, more: str = "") -> None:
    text = escape_lines(reply.decode("utf-8", "replace"))
    _print(f"response length = {len(reply)}\nresponse = {text}\n{more}")


def _read_matched(reply: bytes) -> list[int]:
    class Matched(msgspec.Struct, rename={"matched": "processesMatched"}):
        matched: list[int]

    try:
        return decode_json(reply, Matched).matched
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise DynoError(
            f"the reply is not understood: {error}", hint="is it an agent that listens there?"
        ) from error


def _say_matched(matched: Sequence[int], log_file: str) -> str:
    if not matched:
        return "No processes were matched, please check --job-id or --pids flags\n"
    files = [f"    {log_file.replace('.json', f'_{pid}.json')}\n" for pid in matched]
    head = f"Matched {len(matched)} processes\nTrace output files will be written to:\n"
    return head + "".join(files)


def _print(text: str) -> None:
    write_stdout(encode_for_stdout(text))


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``dyno`` and return its exit code."""
    return run_command(dyno, "dyno", argv)
