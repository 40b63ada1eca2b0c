"""The nodes on which a job should not be started again, for those who can see to that.

Each node writes a file of its own, so that nodes that share the evidence folder do not write over
each other; the texts for schedulers are made of all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from whystuck.evidence.decoding import decode_json
from whystuck.launch.incidents.folder import write_whole

FOLDER = "exclude"
SLURM_FILE = "slurm.txt"
KUBERNETES_FILE = "kubernetes.yaml"
NODES_FILE = "nodes.txt"
_MAX_NODES = 4096
_MAX_BYTES = 1 << 16
# Of hosts, nodes of Slurm and nodes of Kubernetes; nothing else goes into a command or YAML.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
# The operator of Kubernetes that keeps pods away from nodes by name. A patch replaces lists whole:
# one for a job that has other terms is to be put together by hand.
_KUBERNETES = """\
# A Job that is there cannot be changed. For the next one, this is a patch of kustomize, with
# `target: {kind: Job}`; the name is not used then.
apiVersion: batch/v1
kind: Job
metadata:
  name: any
spec:
  template:
    spec:
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution:
            nodeSelectorTerms:
              - matchExpressions:
                  - key: kubernetes.io/hostname
                    operator: NotIn
                    values:
"""


class ExcludedNode(msgspec.Struct, kw_only=True):
    """``exclude/NODE.json``: one node, and why.

    ``slurm`` and ``kubernetes`` are its names there, empty where it has none.
    """

    node: str
    code: str
    reason: str
    time: str = ""
    slurm: str = ""
    kubernetes: str = ""


def name_node(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the names of this node for Slurm and for Kubernetes.

    The pod has a host name of its own: the manifest of `whystuck init` tells the name of the node.
    """
    return environment.get("SLURMD_NODENAME", ""), environment.get("NODE_NAME", "")


def write_excluded(root: Path, entry: ExcludedNode) -> None:
    """Add a node to the list in an evidence folder; raises OSError."""
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    name = entry.node if _NAME.fullmatch(entry.node) else "node"
    write_whole(folder / f"{name}.json", msgspec.json.format(msgspec.json.encode(entry)))
    entries = _read_all(folder)
    for file, text in render_lists(entries).items():
        write_whole(folder / file, text.encode())


def render_lists(entries: list[ExcludedNode]) -> dict[str, str]:
    """Return the texts for people and schedulers, by the name of their file."""
    nodes = _choose(one.node for one in entries)
    slurm = _choose(one.slurm or one.node.partition(".")[0] for one in entries)
    kubernetes = _choose(one.kubernetes or one.node for one in entries)
    values = "".join(f"                      - {name}\n" for name in kubernetes)
    return {
        NODES_FILE: "".join(f"{name}\n" for name in nodes),
        SLURM_FILE: f"--exclude={','.join(slurm)}\n",
        KUBERNETES_FILE: _KUBERNETES + values,
    }


def _choose(names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if _NAME.fullmatch(name)})


def _read_all(folder: Path) -> list[ExcludedNode]:
    entries = []
    for path in sorted(folder.glob("*.json"))[:_MAX_NODES]:
        try:
            with path.open("rb") as file:
                entries.append(decode_json(file.read(_MAX_BYTES), ExcludedNode))
        except (OSError, ValueError):
            continue
    return entries
