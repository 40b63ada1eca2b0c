"""The settings of an agent: a TOML file, which options of the command line overrule.

Unknown keys and wrong types are errors, with the place in the file and the nearest name. What a
reload (SIGHUP) can change, and what needs a restart, is said by `NEEDS_RESTART`.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from whystuck.agent.agent_folder import JOB_FOLDER, named_folder
from whystuck.evidence.agent import DYNO_PORT
from whystuck.evidence.decoding import convert
from whystuck.evidence.errors import UsageError
from whystuck.guarded.remote import check_lasting

MAX_CONFIG_BYTES = 1 << 20
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


NEEDS_RESTART = ("agent.folder", "agent.node", "fabric", "traces")
"""Settings that a reload cannot change: jobs already know the agent by them."""


def read_settings(launch: Launch) -> AgentConfig:
    """Return the settings that count: options, then the file, then defaults.

    Raises:
        UsageError: The file cannot be read, or something in it or in the options is wrong.
    """
    tables = _load_tables(Path(launch.config_file)) if launch.config_file else {}
    config = _convert(tables, launch.config_file)
    if not launch.job_dir:
        return overrule(config, launch.options)
    rpc = tables.get("rpc", {})
    implied = {"agent.folder": str(Path(launch.job_dir) / JOB_FOLDER)}
    port = {} if "port" in rpc or "host" in rpc else {"rpc.port": 0}
    return overrule(config, {**port, **launch.options, **implied})


def name_of_node(config: AgentConfig) -> str:
    """Return what the node is called: as it is set, else its host name."""
    return config.agent.node or socket.gethostname()


def fill_in(config: AgentConfig) -> AgentConfig:
    """Return the settings with the folder and the name that an agent takes where none is set."""
    folder = str(named_folder(config.agent.folder))
    return overrule(config, {"agent.folder": folder, "agent.node": name_of_node(config)})


def load_config(path: Path) -> AgentConfig:
    """Read a TOML file; UsageError says what is wrong in it, and where."""
    return _convert(_load_tables(path), str(path))


def _load_tables(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"the configuration {path} cannot be read: {error.strerror or error}",
            hint="`whystuck agent --print-config` shows what may be in such a file",
        ) from error
    if len(data) > MAX_CONFIG_BYTES:
        raise UsageError(
            f"the configuration {path} is larger than {MAX_CONFIG_BYTES} bytes",
            hint="is this the right file?",
        )
    return _parse_tables(data, str(path))


def parse_config(data: bytes, name: str) -> AgentConfig:
    """Parse the text of a TOML file; ``name`` is for errors."""
    return _convert(_parse_tables(data, name), name)


def _parse_tables(data: bytes, name: str) -> dict[str, Any]:
    import tomllib

    try:
        text = data.decode()
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"{name} is not TOML: {error}", hint="strings need quotes, and tables a [name]"
        ) from error
    if isinstance(tables.get("trigger"), list):
        _check_rules(tables["trigger"], text, name)
    return tables


def _check_rules(tables: list[Any], text: str, name: str) -> None:
    """Refuse rules for traces that cannot be; here, as the text tells the lines."""
    from whystuck.agent.triggers.rules import parse_rules

    try:
        parse_rules(tables, text)
    except UsageError as error:
        raise UsageError(f"{name}: {error.message}", hint=error.hint) from None


def overrule(config: AgentConfig, values: Mapping[str, object]) -> AgentConfig:
    """Return ``config`` with settings such as ``{"rpc.port": 0}`` put over it."""
    tables = msgspec.to_builtins(config)
    for key, value in values.items():
        table = tables
        *path, last = key.split(".")
        for part in path:
            table = table[part]
        table[last] = value
    return _convert(tables, "the command line")


def changed_settings(old: AgentConfig, new: AgentConfig) -> list[str]:
    """Return the names of the settings that differ, such as ``rpc.port``."""
    before, after = dict(_flatten(old)), dict(_flatten(new))
    return [key for key in after if before.get(key) != after[key]]


def needs_restart(setting: str) -> bool:
    """Whether a reload cannot change this setting."""
    return any(setting == one or setting.startswith(f"{one}.") for one in NEEDS_RESTART)


def _flatten(section: msgspec.Struct, prefix: str = "") -> Iterator[tuple[str, object]]:
    for name in section.__struct_fields__:
        value = getattr(section, name)
        if isinstance(value, msgspec.Struct):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _convert(tables: dict[str, Any], name: str) -> AgentConfig:
    _check_keys(tables, AgentConfig(), "", name)
    try:
        config = convert(tables, AgentConfig)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{name}: {_in_words(str(error))}",
            hint="`whystuck agent --print-config` shows all settings and their defaults",
        ) from error
    try:
        check_lasting(config.traces.output)
    except UsageError as error:
        raise UsageError(f"{name}: `traces.output`: {error.message}", hint=error.hint) from None
    return config


def _check_keys(table: Mapping[str, Any], section: msgspec.Struct, prefix: str, name: str) -> None:
    """Refuse what is no setting; msgspec could do so, but does not say what was meant."""
    known = section.__struct_fields__
    for key, value in table.items():
        if key not in known:
            raise UsageError(f"{name}: `{prefix}{key}` is no setting", hint=_near(key, known))
        inner = getattr(section, key)
        if isinstance(inner, msgspec.Struct) and isinstance(value, Mapping):
            _check_keys(value, inner, f"{prefix}{key}.", name)


def _near(key: str, known: tuple[str, ...]) -> str:
    import difflib

    found = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"did you mean `{found[0]}`?" if found else f"known here: {', '.join(known)}"


def _in_words(message: str) -> str:
    """Turn msgspec's ``Expected `int`, got `str` - at `$.rpc.port``` into a sentence."""
    what, _, place = message.partition(" - at `$")
    setting = place.strip("`.")
    return f"`{setting}`: {what[:1].lower()}{what[1:]}" if setting else what


def render_toml(config: AgentConfig) -> str:
    """Return ``config`` as TOML with all its settings, which `parse_config` reads back."""
    tables: dict[str, list[str]] = {}
    for key, value in _flatten(config):
        if key != "trigger":
            table, _, last = key.rpartition(".")
            tables.setdefault(table, []).append(f"{last} = {_toml_value(value)}")
    parts = [f"[{table}]\n" + "\n".join(lines) + "\n" for table, lines in tables.items()]
    parts += [_toml_trigger(table) for table in config.trigger]
    return "\n".join(parts)


def _toml_trigger(table: Mapping[str, Any]) -> str:
    lines = [f"{_toml_key(key)} = {_toml_value(value)}" for key, value in table.items()]
    return "\n".join(["[[trigger]]", *lines, ""])


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        pairs = [f"{_toml_key(str(key))} = {_toml_value(one)}" for key, one in value.items()]
        return "{ " + ", ".join(pairs) + " }" if pairs else "{}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml_value(one) for one in value) + "]"
    # Strings of JSON and basic strings of TOML differ in DEL only; dates are quoted too.
    return msgspec.json.encode(str(value)).decode().replace("\x7f", "\\u007f")


def _toml_key(key: str) -> str:
    is_bare = key and key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if is_bare else _toml_value(key)
