"""The settings of an agent: what a file may say, what is told when it is wrong, what overrules."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whystuck.agent.config import AgentConfig
from whystuck.agent.config_file import (
    MAX_CONFIG_BYTES,
    changed_settings,
    load_config,
    needs_restart,
    overrule,
    parse_config,
    render_toml,
)
from whystuck.evidence.errors import UsageError

FULL = b"""
[agent]
folder = "/run/w"
node = "n3"
log_file = "/var/log/w.log"
log_max_bytes = 1000000
[fabric]
abstract = true
[rpc]
host = "10.0.0.1"
port = 1779
token_file = "/etc/token"
[metrics]
every_s = 30
interfaces = ["eth*", "ib*"]
[metrics.sources]
perf = false
[metrics.prometheus]
port = 9602
[metrics.otlp]
url = "http://localhost:4318/v1/metrics"
headers = { "X-Key" = "1" }
[metrics.json_lines]
path = "/tmp/m.jsonl"
[attribution]
labels = { cluster = "a" }
[limits]
cpu_percent = 0.5
[[trigger]]
name = "slow"
when = "step-time"
threshold = 30
[[trigger]]
name = "stall"
when = "stall"
"""


def test_file_with_all_tables_is_read() -> None:
    config = parse_config(FULL, "agent.toml")

    assert config.agent.node == "n3"
    assert config.fabric.abstract
    assert config.rpc.port == 1779
    assert config.metrics.every_s == 30
    assert config.metrics.interfaces == ("eth*", "ib*")
    assert not config.metrics.sources.perf
    assert config.metrics.sources.node
    assert config.metrics.otlp.headers == {"X-Key": "1"}
    assert [one["name"] for one in config.trigger] == ["slow", "stall"]


def test_empty_file_is_the_defaults() -> None:
    assert parse_config(b"", "agent.toml") == AgentConfig()


@pytest.mark.parametrize(
    ("text", "told", "hint"),
    [
        ("[rpc]\nprot = 1", "`rpc.prot` is no setting", "did you mean `port`?"),
        ("[metric]", "`metric` is no setting", "did you mean `metrics`?"),
        ("[metrics.sources]\nnvdia = true", "`metrics.sources.nvdia`", "did you mean `nvidia`?"),
        ("[rpc]\nzzzz = 1", "`rpc.zzzz` is no setting", "known here: host, port"),
        ('[rpc]\nport = "1778"', "`rpc.port`: expected `int`, got `str`", "--print-config"),
        ("[rpc]\nport = 65536", "`rpc.port`: expected `int` <= 65535", "--print-config"),
        ("[metrics]\nevery_s = 0", "`metrics.every_s`: expected `float` >= 0.1", "--print-config"),
        ('[traces]\noutput = "memory://x"', "`traces.output`: what is written to", "s3://"),
        ("metrics = 1", "`metrics`: expected `object`", "--print-config"),
        ('[[trigger]]\nname = "a"\nwhen = "stal"', "agent.toml: line 3, [[trigger]]", "`stall`"),
        ("trigger = 1", "`trigger`: expected `array`", "--print-config"),
        ("[rpc\n", "agent.toml is not TOML", "quotes"),
        ("\udcff", "agent.toml is not TOML", "quotes"),
    ],
)
def test_wrong_file_is_told_with_place_and_hint(text: str, told: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_config(text.encode(errors="surrogateescape"), "agent.toml")

    assert told in caught.value.message
    assert hint in caught.value.hint


def test_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        load_config(tmp_path / "none.toml")


def test_huge_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_bytes(b"#" * (MAX_CONFIG_BYTES + 1))

    with pytest.raises(UsageError, match="is larger than"):
        load_config(path)


@settings(max_examples=40)
@given(st.binary(max_size=200))
def test_any_bytes_give_a_config_or_a_clear_error(data: bytes) -> None:
    try:
        config = parse_config(data, "agent.toml")
    except UsageError:
        return
    assert isinstance(config, AgentConfig)


def test_options_overrule_the_file() -> None:
    config = overrule(parse_config(FULL, "f"), {"rpc.port": 0, "metrics.prometheus.port": 9000})

    assert config.rpc.port == 0
    assert config.rpc.host == "10.0.0.1"
    assert config.metrics.prometheus.port == 9000
    assert [one["name"] for one in config.trigger] == ["slow", "stall"]


def test_option_out_of_range_is_told() -> None:
    with pytest.raises(UsageError, match=r"the command line: `rpc\.port`"):
        overrule(AgentConfig(), {"rpc.port": 70000})


@pytest.mark.parametrize("text", [b"", FULL])
def test_what_is_printed_reads_back(text: bytes) -> None:
    config = parse_config(text, "f")

    assert parse_config(render_toml(config).encode(), "printed") == config


@settings(max_examples=40)
@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.text("ab\x7f\"'\\\n")),
)
def test_any_text_reads_back(node: str, headers: dict[str, str]) -> None:
    config = overrule(AgentConfig(), {"agent.node": node, "metrics.otlp.headers": headers})

    assert parse_config(render_toml(config).encode(), "printed") == config


def test_nested_trigger_reads_back() -> None:
    table = {"name": "a", "trace": {"iterations": 3, "stacks": True}, "for_s": 1.5, "r": [1, 2]}
    config = msgspec.structs.replace(AgentConfig(), trigger=(table,))

    assert tomllib.loads(render_toml(config))["trigger"] == [table]


def test_changes_are_named_and_those_that_need_a_restart_too() -> None:
    old = parse_config(FULL, "f")
    new = overrule(old, {"agent.node": "n4", "fabric.abstract": False, "metrics.every_s": 5.0})

    changed = changed_settings(old, new)

    assert changed == ["agent.node", "fabric.abstract", "metrics.every_s"]
    assert [one for one in changed if needs_restart(one)] == ["agent.node", "fabric.abstract"]
    assert changed_settings(old, old) == []


def test_interfaces_that_are_left_out_are_those_of_the_source() -> None:
    from whystuck.agent.metrics.node import network

    assert AgentConfig().metrics.skip_interfaces == network.SKIPPED_INTERFACES
