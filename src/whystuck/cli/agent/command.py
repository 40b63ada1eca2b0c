"""``whystuck agent``: the process of a node that traces jobs on demand and reads metrics."""

from __future__ import annotations

from typing import Any

import click

from whystuck.cli.form_options import format_option
from whystuck.cli.stdout import write_stdout

# Each option is a setting of the configuration file, which it overrules.
SETTINGS = {
    "folder": "agent.folder",
    "node": "agent.node",
    "log_file": "agent.log_file",
    "abstract": "fabric.abstract",
    "all_users": "fabric.all_users",
    "host": "rpc.host",
    "port": "rpc.port",
    "token_file": "rpc.token_file",
    "tls_cert": "rpc.tls_cert",
    "tls_key": "rpc.tls_key",
    "tls_client_ca": "rpc.tls_client_ca",
    "every_s": "metrics.every_s",
    "metrics_host": "metrics.prometheus.host",
    "metrics_port": "metrics.prometheus.port",
    "otlp_url": "metrics.otlp.url",
    "json_lines": "metrics.json_lines.path",
}


@click.command()
@click.option(
    "--folder",
    metavar="DIR",
    help="Where its sockets lie; at most 54 bytes long.  [default: /tmp/whystuck-agent-UID]",
)
@click.option("--node", metavar="NAME", help="What this node is called.  [default: its host name]")
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    envvar="WHYSTUCK_AGENT_CONFIG",
    help="Read settings from a TOML file; also by the variable WHYSTUCK_AGENT_CONFIG.",
)
@click.option(
    "--port", metavar="N", type=int, help="The TCP port of `dyno`; 0 for none.  [default: 1778]"
)
@click.option(
    "--host",
    metavar="ADDRESS",
    help="Listen there instead of on loopback; needs a token and TLS.",
)
@click.option("--token-file", metavar="FILE", help="Calls by TCP must have the token in this file.")
@click.option("--tls-cert", metavar="FILE", help="The certificate for TLS, a PEM file.")
@click.option("--tls-key", metavar="FILE", help="Its key.")
@click.option("--tls-client-ca", metavar="FILE", help="Clients need a certificate of this one.")
@click.option(
    "--abstract",
    is_flag=True,
    default=None,
    help="Listen where jobs ask that have no KINETO_IPC_SOCKET_DIR, as dynolog does.",
)
@click.option(
    "--all-users", is_flag=True, default=None, help="Serve jobs of all users; only for root."
)
@click.option("--every", "every_s", metavar="S", type=float, help="Read figures every S seconds.")
@click.option(
    "--metrics-port", metavar="N", type=int, help="Serve metrics to Prometheus on this port."
)
@click.option("--metrics-host", metavar="ADDRESS", help="Serve them there.  [default: 127.0.0.1]")
@click.option("--otlp-url", metavar="URL", help="Send metrics to this OpenTelemetry collector.")
@click.option("--json-lines", metavar="FILE", help="Append metrics to this file.")
@click.option(
    "--job-dir", metavar="DIR", help="Serve one job of `whystuck run`, which starts this itself."
)
@click.option("--log-file", metavar="FILE", help="Write the log there.  [default: stderr]")
@click.option("--print-config", is_flag=True, help="Print all settings as TOML, and end.")
@click.option("--status", is_flag=True, help="Show the agents that run here, and end.")
@format_option("The form of what `--status` shows.")
def agent(
    *,
    config_file: str | None,
    job_dir: str | None,
    print_config: bool,
    status: bool,
    output_format: str,
    **options: Any,  # noqa: ANN401 - the settings, each of its own type
) -> int:
    """Trace jobs of this node on demand, and read its metrics.

    It needs no root. It serves until a signal ends it; SIGHUP reads the configuration again.

    whystuck agent --metrics-port 9602
    """
    from whystuck.agent.config import Launch
    from whystuck.agent.config_file import read_settings

    if status:
        from whystuck.cli.agent.status import show_status

        return show_status(options["folder"], output_format)
    given = {SETTINGS[name]: value for name, value in options.items() if value is not None}
    launch = Launch(config_file=config_file or "", options=given, job_dir=job_dir or "")
    config = read_settings(launch)
    if print_config:
        from whystuck.agent.config_file import fill_in, render_toml

        write_stdout(render_toml(fill_in(config)).encode())
        return 0
    from whystuck.agent.daemon import run

    return run(config, launch)
