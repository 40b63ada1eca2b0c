"""Alerts and the dashboard: right for Prometheus, and about metrics that there are."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.metrics.sinks.promtool import promtool

from whystuck.agent.metrics.catalogue import CATALOGUE
from whystuck.agent.metrics.gpu.nvidia_figures import _REASONS

ROOT = Path(__file__).parents[3]
PROMETHEUS = ROOT / "packaging" / "prometheus"
ALERTS = (PROMETHEUS / "alerts.yml").read_text()
ALERT_TESTS = (PROMETHEUS / "alerts-test.yml").read_text()
DASHBOARD = json.loads((ROOT / "packaging" / "grafana" / "whystuck.json").read_text())
FAMILIES = {family.name: family for group in CATALOGUE.values() for family in group}
NAMES = re.findall(r"alert: (\w+)", ALERTS)
# What Prometheus itself adds to each series.
TARGET_LABELS = {"node", "job", "instance"}


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\bwhystuck_\w+", text))


def queries() -> list[str]:
    """All queries of the dashboard."""
    found = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    assert found
    return found


def test_alerts_are_as_prometheus_wants_them() -> None:
    done = promtool("check", "rules", str(PROMETHEUS / "alerts.yml"))

    assert (done.returncode, done.stderr) == (0, "")
    assert f"{len(NAMES)} rules found" in done.stdout


def test_alerts_fire_when_they_should() -> None:
    done = promtool("test", "rules", str(PROMETHEUS / "alerts-test.yml"))

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_alert_is_seen_to_fire(name: str, tmp_path: Path) -> None:
    # GIVEN alerts of which one can no longer fire
    begin, rest = ALERTS.split(f"alert: {name}\n")
    body, mark, end = rest.partition("        labels:\n")
    body = re.sub(r"expr: .*?\n(?=        \w|\Z)", "expr: vector(0) > 1\n", body, flags=re.DOTALL)
    (tmp_path / "alerts.yml").write_text(f"{begin}alert: {name}\n{body}{mark}{end}")
    (tmp_path / "alerts-test.yml").write_text(ALERT_TESTS)

    done = promtool("test", "rules", str(tmp_path / "alerts-test.yml"))

    assert done.returncode != 0
    assert name in done.stdout + done.stderr


@pytest.mark.parametrize("is_beyond", [False, True], ids=["loopback", "beyond"])
def test_the_scrape_configuration_is_valid(tmp_path: Path, is_beyond: bool) -> None:
    text = f'rule_files: ["{PROMETHEUS / "alerts.yml"}"]\n'
    scrape = (PROMETHEUS / "scrape.yml").read_text()
    if is_beyond:
        # GIVEN that the user takes the marks of comments away, as the file says
        begin, mark, rest = scrape.partition("by TLS only:\n")
        scrape = begin + mark + rest.replace("    # ", "    ")
        scrape = scrape.replace("/etc/prometheus/", f"{tmp_path}/")
        for name in ("whystuck.crt", "whystuck.token"):
            (tmp_path / name).touch()
    path = tmp_path / "prometheus.yml"
    path.write_text(text + scrape)

    done = promtool("check", "config", str(path))

    assert done.returncode == 0, done.stdout + done.stderr
    assert ("\n    scheme: https\n" in path.read_text()) == is_beyond
    # the labels of ranks must not be renamed
    assert "honor_labels: true" in path.read_text()


def test_alerts_name_metrics_that_there_are() -> None:
    assert names_in(ALERTS) <= set(FAMILIES)
    assert names_in(ALERT_TESTS) <= set(FAMILIES)


def test_the_dashboard_names_metrics_that_there_are() -> None:
    assert names_in(json.dumps(DASHBOARD)) <= set(FAMILIES)
    assert all(names_in(query) for query in queries())


def test_queries_are_right_for_prometheus(tmp_path: Path) -> None:
    rules = [
        {"record": f"query:number:{number}", "expr": query_of(query)}
        for number, query in enumerate(queries())
    ]
    path = tmp_path / "queries.yml"  # JSON is YAML
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))

    done = promtool("check", "rules", str(path))

    assert done.returncode == 0, done.stdout + done.stderr


def query_of(text: str) -> str:
    for name, value in (("$__rate_interval", "5m"), ("$job", ".*"), ("$node", ".*")):
        text = text.replace(name, value)
    assert "$" not in text
    return text


def selectors_in(text: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the metrics of a query, each with the labels by which it is chosen."""
    for name, matchers in re.findall(r"\b(whystuck_\w+)(?:\{([^}]*)\})?", text):
        yield name, set(re.findall(r"(\w+)\s*[=!]~?", matchers))


@pytest.mark.parametrize("text", [ALERTS, "\n".join(queries())], ids=["alerts", "dashboard"])
def test_metrics_are_chosen_by_labels_that_they_have(text: str) -> None:
    for name, labels in selectors_in(text):
        assert labels <= {*FAMILIES[name].labels, *TARGET_LABELS}, name


def test_counters_are_asked_for_their_growth() -> None:
    for text in (ALERTS, "\n".join(queries())):
        for name in re.findall(r"(?:rate|increase)\((whystuck_\w+)", text):
            assert FAMILIES[name].kind == "counter", name


def test_panels_have_a_question_and_a_place() -> None:
    panels: list[dict[str, Any]] = DASHBOARD["panels"]
    places = [tuple(sorted(panel["gridPos"].items())) for panel in panels]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(set(places)) == len(places)
    assert all(panel["description"] for panel in panels if panel["type"] != "row")


def test_reasons_of_throttling_are_those_of_the_driver() -> None:
    pattern = re.search(r'reason=~"([^"]+)"', ALERTS)
    assert pattern

    found = {reason for reason in _REASONS if re.fullmatch(pattern[1], reason)}
    assert found == {"hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal"}


def test_the_reference_is_what_the_code_says() -> None:
    spec = importlib.util.spec_from_file_location("docs_metrics", ROOT / "docs" / "metrics.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    kept = (ROOT / "docs" / "metrics.md").read_text()
    assert kept == module.render(), "run `python docs/metrics.py`"


def test_the_guide_names_metrics_that_there_are() -> None:
    guide = (ROOT / "docs" / "guides" / "metrics.md").read_text()

    assert {name for name in names_in(guide) if not name.endswith("_")} <= set(FAMILIES)
    assert set(re.findall(r"\bWhystuck[A-Z]\w+", guide)) <= set(NAMES)
