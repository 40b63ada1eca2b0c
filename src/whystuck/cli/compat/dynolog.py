"""``dynolog``: starts an agent as scripts start dynolog's daemon, in the foreground."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import click

from whystuck.cli.compat.gflags import parse_flags
from whystuck.cli.script import run_script
from whystuck.cli.stdout import encode_for_stdout, write_stdout
from whystuck.evidence.agent import DYNO_PORT
from whystuck.evidence.errors import UsageError

SWITCHES = frozenset(
    {
        "enable_ipc_monitor",
        "enable_gpu_monitor",
        "enable_perf_monitor",
        "enable_tpu_monitor",
        "enable_env_var_attribution",
        "use_JSON",
        "use_prometheus",
        "use_otlp",
        "use_otel",
        "use_fbrelay",
        "use_ODS",
        "use_scuba",
        "filter_nic_interfaces",
        "logtostderr",
        "alsologtostderr",
        "help",
        "helpshort",
        "version",
    }
)
# Numbers that are settings of ours under another name.
_NUMBERS = {
    "port": ("rpc.port", int),
    "kernel_monitor_reporting_interval_s": ("metrics.every_s", float),
    "dcgm_reporting_interval_s": ("metrics.gpu_every_s", float),
}
_GPU_SOURCES = ("nvidia", "dcgm", "amd", "ascend")
_KNOWN = {
    *_NUMBERS,
    "enable_ipc_monitor",
    "enable_gpu_monitor",
    "enable_perf_monitor",
    "enable_env_var_attribution",
    "use_prometheus",
    "prometheus_port",
    "prometheus_address",
    "logtostderr",
    "alsologtostderr",
}
_HELP = """\
usage: dynolog [--FLAG[=VALUE]]...

Starts an agent of whystuck as dynolog is started, in the foreground. These flags count, the others
of dynolog are noted and ignored:

  --enable_ipc_monitor                      serve PyTorch jobs that have KINETO_USE_DAEMON=1
  --port N                                  the port of `dyno` on loopback (1778)
  --kernel_monitor_reporting_interval_s S   read figures of the node every S seconds
  --enable_perf_monitor                     hardware counters
  --enable_gpu_monitor                      accelerators
  --dcgm_reporting_interval_s S             how often
  --use_prometheus --prometheus_port N --prometheus_address A    serve metrics
  --flagfile FILE                           flags, one a line

`whystuck agent` has more: a configuration file, a token and TLS for other machines.
"""


def make_options(flags: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of an agent that flags of dynolog ask for.

    Raises:
        UsageError: A number is none.
    """
    options: dict[str, Any] = {"rpc.port": DYNO_PORT}
    for name, (setting, kind) in _NUMBERS.items():
        if name in flags:
            options[setting] = _read_number(name, flags[name], kind)
    socket_dir = environment.get("KINETO_IPC_SOCKET_DIR", "")
    is_monitor = flags.get("enable_ipc_monitor") == "true"
    options["fabric.enabled"] = is_monitor
    options["fabric.abstract"] = is_monitor and not socket_dir
    # A folder of its own: it may run beside an agent of the node.
    own = f"/tmp/whystuck-dynolog-{os.getuid()}-{options['rpc.port']}"  # noqa: S108 - private
    options["agent.folder"] = socket_dir if is_monitor and socket_dir else own
    options["metrics.sources.perf"] = flags.get("enable_perf_monitor") == "true"
    for source in _GPU_SOURCES:
        options[f"metrics.sources.{source}"] = flags.get("enable_gpu_monitor") == "true"
    if flags.get("use_prometheus") == "true":
        port = flags.get("prometheus_port", "8080")
        options["metrics.prometheus.port"] = _read_number("prometheus_port", port, int)
        options["metrics.prometheus.host"] = flags.get("prometheus_address", "127.0.0.1")
    return options


def _read_number(name: str, text: str, kind: type[int | float]) -> float:
    try:
        return kind(text)
    except ValueError:
        raise UsageError(f"`--{name}={text}` is no number", hint=f"e.g. `--{name}=10`") from None


def _run(arguments: Sequence[str]) -> int:
    flags = parse_flags(arguments, SWITCHES)
    if {"help", "helpshort"} & flags.keys():
        write_stdout(encode_for_stdout(_HELP))
        return 0
    if "version" in flags:
        from whystuck.agent.rpc.dyno_calls import DYNOLOG_VERSION

        write_stdout(encode_for_stdout(f"dynolog version {DYNOLOG_VERSION}\n"))
        return 0
    ignored = sorted(flags.keys() - _KNOWN)
    if ignored:
        names = ", ".join(f"--{name}" for name in ignored)
        click.echo(f"note: these flags do nothing here: {names}", err=True)
    if flags.get("enable_ipc_monitor") != "true":
        click.echo("note: without --enable_ipc_monitor there are no traces", err=True)
    from whystuck.agent.config import Launch
    from whystuck.agent.daemon import run

    return run(None, Launch(options=make_options(flags, os.environ)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``dynolog`` and return its exit code."""
    return run_script(_run, argv)
