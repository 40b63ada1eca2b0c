"""What a reload takes on, and what it leaves for a restart."""

from __future__ import annotations

from pathlib import Path

from whystuck.agent.config import AgentConfig, Launch
from whystuck.agent.config_file import overrule, read_settings
from whystuck.agent.reload import plan_reload

NOW = overrule(AgentConfig(), {"agent.folder": "/tmp/a"})


def test_nothing_changed() -> None:
    plan = plan_reload(NOW, NOW)

    assert plan.config == NOW
    assert plan.in_words() == "reloaded, nothing has changed"
    assert not plan.touches(["rpc"])


def test_what_can_be_changed_is_and_the_rest_is_told() -> None:
    wanted = overrule(
        NOW,
        {"agent.folder": "/tmp/b", "fabric.abstract": True, "metrics.every_s": 2.0, "rpc.port": 9},
    )

    plan = plan_reload(NOW, wanted)

    assert plan.config == overrule(NOW, {"metrics.every_s": 2.0, "rpc.port": 9})
    assert plan.touches(["rpc"])
    assert plan.touches(["metrics"])
    assert not plan.touches(["fabric", "agent"])
    assert plan.in_words() == (
        "reloaded, changed: rpc.port, metrics.every_s; "
        "only a restart changes: agent.folder, fabric.abstract"
    )


def test_triggers_are_a_setting_as_a_whole() -> None:
    wanted = overrule(NOW, {"trigger": [{"name": "a"}]})

    assert plan_reload(NOW, wanted).touches(["trigger"])


def test_options_stay_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text("[rpc]\nport = 1\n[metrics]\nevery_s = 7")
    launch = Launch(config_file=str(file), options={"rpc.port": 2})

    config = read_settings(launch)

    assert (config.rpc.port, config.metrics.every_s) == (2, 7)


def test_agent_of_a_job_lives_in_its_folder_and_has_no_port(tmp_path: Path) -> None:
    config = read_settings(Launch(job_dir=str(tmp_path)))

    assert config.agent.folder == str(tmp_path / "k")
    assert config.rpc.port == 0


def test_agent_of_a_job_has_the_port_that_it_is_asked_for(tmp_path: Path) -> None:
    config = read_settings(Launch(job_dir=str(tmp_path), options={"rpc.port": 1800}))

    assert config.rpc.port == 1800
