"""The settings of an agent as TOML: read and checked, with what options overrule, and written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from whystuck.agent.agent_folder import JOB_FOLDER, named_folder
from whystuck.agent.config import AgentConfig, Launch, name_of_node
from whystuck.evidence.decoding import convert
from whystuck.evidence.errors import UsageError
from whystuck.guarded.remote import check_lasting

MAX_CONFIG_BYTES = 1 << 20
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
