"""The settings of an agent: a TOML file, which options of the command line overrule.

Unknown keys and wrong types are errors, with the place in the file and the nearest name. What a
reload (SIGHUP) can change, and what needs a restart, is said by `NEEDS_RESTART`.
"""

from __future__ import annotations

import socket
from typing import Annotated, Any

import msgspec

from whystuck.evidence.agent import DYNO_PORT

# Those that containers make; the same as the source of network figures has.
SKIPPED_INTERFACES = (
    *("lo", "veth*", "docker*", "br-*", "virbr*", "vnet*", "tap*", "dummy*", "ifb*"),
    *("cali*", "cni*", "flannel*", "cilium*", "lxc*", "kube-*", "nodelocaldns"),
)
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
"""0 switches the listener off."""
Seconds = Annotated[float, msgspec.Meta(ge=0.1, le=86400)]
LogBytes = Annotated[int, msgspec.Meta(ge=64 << 10, le=16 << 30)]


class AgentSection(msgspec.Struct, kw_only=True, frozen=True):
    """``[agent]``: where it lives and what it writes of itself.

    An empty ``folder`` is the default one of this user, an empty ``node`` the host's name, an empty
    ``log_file`` stderr. ``stop_s`` is how long a stop waits for traces that are being written.
    """

    folder: str = ""
    node: str = ""
    log_file: str = ""
    log_max_bytes: LogBytes = 10 << 20
    stop_s: Annotated[float, msgspec.Meta(ge=0, le=600)] = 10.0


class FabricSection(msgspec.Struct, kw_only=True, frozen=True):
    """``[fabric]``: where torch processes ask for work.

    ``abstract`` listens where they ask without ``KINETO_IPC_SOCKET_DIR``, instead of in the folder.
    ``all_users`` also serves processes of other users; only root may ask for that.
    """

    enabled: bool = True
    abstract: bool = False
    all_users: bool = False


class RpcSection(msgspec.Struct, kw_only=True, frozen=True):
    """``[rpc]``: where commands ask, beside the socket in the folder.

    A ``host`` that is not this host's loopback needs ``token_file``, and ``tls_cert`` with
    ``tls_key``. ``tls_client_ca`` asks clients for a certificate too.
    """

    host: str = ""
    port: Port = DYNO_PORT
    token_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""


class TracesSection(msgspec.Struct, kw_only=True, frozen=True):
    """``[traces]``: where traces go when a request does not say, a folder or URL.

    An empty ``output`` leaves them where processes write them. They write below ``raw_folder``, one
    in ``/tmp`` when empty: newer Kineto writes nowhere else unless ``KINETO_ONDEMAND_TRACE_DIR`` of
    the process names it.
    """

    output: str = ""
    raw_folder: str = ""


class PrometheusSection(msgspec.Struct, kw_only=True, frozen=True):
    """``[metrics.prometheus]``: the endpoint that Prometheus reads; port 0 is off.

    A ``host`` that is not loopback needs ``token_file``, whose token who asks must send, and TLS,
    so that nobody else gets to know it.
    """

    host: str = "127.0.0.1"
    port: Port = 0
    token_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""


class OtlpSection(msgspec.Struct, kw_only=True, frozen=True):
    """``[metrics.otlp]``: an OpenTelemetry collector, by HTTP; an empty ``url`` is off."""

    url: str = ""
    headers: dict[str, str] = {}


class JsonLinesSection(msgspec.Struct, kw_only=True, frozen=True):
    """``[metrics.json_lines]``: a file with one JSON object a round; an empty ``path`` is off."""

    path: str = ""
    max_bytes: LogBytes = 64 << 20


class SourcesSection(msgspec.Struct, kw_only=True, frozen=True):
    """``[metrics.sources]``: what is read. What is not there on a node gives nothing."""

    node: bool = True
    processes: bool = True
    ranks: bool = True
    perf: bool = True
    own: bool = True
    nvidia: bool = True
    dcgm: bool = True
    amd: bool = True
    ascend: bool = True


class MetricsSection(msgspec.Struct, kw_only=True, frozen=True):
    """``[metrics]``: how often figures are read, of what, and who gets them.

    ``every_s`` is for the node and its processes, ``ranks_every_s`` for the progress of ranks,
    ``gpu_every_s`` for accelerators. Interfaces and mounts are chosen by patterns such as ``eth*``:
    one of ``interfaces`` must match, all do when there is none, and none of ``skip_interfaces``.
    """

    every_s: Seconds = 15.0
    ranks_every_s: Seconds = 5.0
    gpu_every_s: Seconds = 10.0
    per_core: bool = False
    interfaces: tuple[str, ...] = ()
    skip_interfaces: tuple[str, ...] = SKIPPED_INTERFACES
    skip_mounts: tuple[str, ...] = ()
    max_series: Annotated[int, msgspec.Meta(ge=10, le=1_000_000)] = 2000
    dcgm_url: str = "http://127.0.0.1:9400/metrics"
    sources: SourcesSection = SourcesSection()
    prometheus: PrometheusSection = PrometheusSection()
    otlp: OtlpSection = OtlpSection()
    json_lines: JsonLinesSection = JsonLinesSection()


class AttributionSection(msgspec.Struct, kw_only=True, frozen=True):
    """``[attribution]``: whose a process is, beside what its environment and cgroup tell.

    ``labels`` are given to all figures; ``environment`` makes labels of variables of a process:
    label to variable.
    """

    enabled: bool = True
    labels: dict[str, str] = {}
    environment: dict[str, str] = {}


class LimitsSection(msgspec.Struct, kw_only=True, frozen=True):
    """``[limits]``: what the agent may use itself; 0 is no limit.

    ``cpu_percent`` is of one core, over a minute. Above a limit it reads figures less often.
    """

    cpu_percent: Annotated[float, msgspec.Meta(ge=0, le=10_000)] = 2.0
    rss_bytes: Annotated[int, msgspec.Meta(ge=0)] = 128 << 20


class AgentConfig(msgspec.Struct, kw_only=True, frozen=True):
    """The whole file. ``trigger`` are the tables of ``[[trigger]]`` as they are written."""

    agent: AgentSection = AgentSection()
    fabric: FabricSection = FabricSection()
    rpc: RpcSection = RpcSection()
    traces: TracesSection = TracesSection()
    metrics: MetricsSection = MetricsSection()
    attribution: AttributionSection = AttributionSection()
    limits: LimitsSection = LimitsSection()
    trigger: tuple[dict[str, Any], ...] = ()


class Launch(msgspec.Struct, kw_only=True, frozen=True):
    """How an agent was started, which a reload reads its settings by once more.

    ``options`` are those of the command line, by setting (``{"rpc.port": 0}``). An agent with a
    ``job_dir`` is that of one job: it lives in there, and has no TCP port unless asked for one.
    """

    config_file: str = ""
    options: dict[str, Any] = {}
    job_dir: str = ""


def name_of_node(config: AgentConfig) -> str:
    """Return what the node is called: as it is set, else its host name."""
    return config.agent.node or socket.gethostname()
