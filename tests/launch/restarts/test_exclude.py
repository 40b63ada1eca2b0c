"""The list of nodes to keep away from, as Kubernetes takes it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from whystuck.cli.run.init import make_script
from whystuck.launch.restarts.exclude import ExcludedNode, write_excluded

KUSTOMIZATION = """
resources: [job.yaml]
patches:
  - path: exclude/kubernetes.yaml
    target: {kind: Job}
"""


def may_run(pod: dict[str, Any], node: str) -> bool:
    """Return what the scheduler says to a node, by its rules: any term, all of its expressions."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = pod["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"]
    labels = {"kubernetes.io/hostname": node}
    operators = {"In": lambda a, b: a in b, "NotIn": lambda a, b: a not in b}
    return any(
        all(
            operators[one["operator"]](labels.get(one["key"]), one["values"])
            for one in term["matchExpressions"]
        )
        for term in terms
    )


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")
def test_pods_of_the_next_job_keep_away_from_nodes_of_the_list(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    # GIVEN two nodes on the list, of which one has another name than its host
    write_excluded(tmp_path, ExcludedNode(node="train-0", code="N411", reason="", kubernetes="n3"))
    write_excluded(tmp_path, ExcludedNode(node="n7", code="C208", reason=""))
    (tmp_path / "job.yaml").write_text(make_script("kubernetes"))
    (tmp_path / "kustomization.yaml").write_text(KUSTOMIZATION)

    done = subprocess.run(
        ["kubectl", "kustomize", str(tmp_path)], capture_output=True, check=True, timeout=60
    )

    before = {one["kind"]: one for one in yaml.safe_load_all((tmp_path / "job.yaml").read_text())}
    after = {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}
    pod = after["Job"]["spec"]["template"]["spec"]
    allowed = {node for node in ("n1", "n3", "n7", "train-0") if may_run(pod, node)}
    assert allowed == {"n1", "train-0"}
    # AND nothing else is changed
    del pod["affinity"]
    assert after == before


def test_names_that_are_none_are_left_out(tmp_path: Path) -> None:
    write_excluded(tmp_path, ExcludedNode(node="a b\n- x", code="N401", reason="", slurm="$(id)"))

    assert (tmp_path / "exclude/slurm.txt").read_text() == "--exclude=\n"
    assert (tmp_path / "exclude/kubernetes.yaml").read_text().endswith("values:\n")
