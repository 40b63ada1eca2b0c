"""Whose a process is: what its environment and its control group tell of job, rank and container.

Schedulers leave their marks in two places. Slurm sets variables and names its control groups
``job_N/step_M``. Kubernetes names them after the pod and the container, and puts names into
variables where the pod's author asked for that (the downward API). Both are only read.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from whystuck.agent.processes.launcher_env import find_place
from whystuck.collect.processes.proc_files import read_environment, read_small, read_start
from whystuck.evidence.errors import UsageError
from whystuck.guarded.process_files import read_file_of
from whystuck.safe_text.secrets import hide_secrets, is_secret_name

LABELS: Final = (
    *("job", "rank", "slurm_job_id", "slurm_step", "pod", "namespace", "container"),
    "pod_uid",
)
"""What may be known of a process; those that are not are left out."""
_MAX_NAMESPACE_BYTES: Final = 64
_MAX_VALUE_CHARS: Final = 128
_MAX_CACHED: Final = 4096
# A process has its parent's environment until it calls exec; one that is so young is read again.
_YOUNG_S: Final = 30.0
_REREAD_S: Final = 2.0
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_NO_ID: Final = "none"  # torchrun's run id when nobody gave it one
_JOB_VARIABLES: Final = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "JOB_ID")
# There is no standard for names of the downward API; these are those of common charts.
_POD_VARIABLES: Final = ("POD_NAME", "K8S_POD_NAME", "MY_POD_NAME", "KUBERNETES_POD_NAME")
_NAMESPACE_VARIABLES: Final = (
    *("POD_NAMESPACE", "K8S_POD_NAMESPACE", "MY_POD_NAMESPACE"),
    *("KUBERNETES_POD_NAMESPACE", "KUBERNETES_NAMESPACE"),
)
_CONTAINER_VARIABLES: Final = ("CONTAINER_NAME", "K8S_CONTAINER_NAME", "MY_CONTAINER_NAME")
_SERVICE_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
_NAMESPACE: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
_OURS: Final = frozenset({*LABELS, "node", "gpu", "uuid", "vendor", "pid"})

# `pod<uid>` with dashes (cgroupfs), underscores (systemd) or neither (static pods), then the
# container, which runtimes call `<id>`, `cri-containerd-<id>.scope`, `crio-<id>.scope` and so on.
_POD_UID: Final = re.compile(
    r"kubepods(?:(?!kubepods)[\s\S])*?[-/]pod"
    r"(?P<uid>[0-9a-f]{8}[-_]?[0-9a-f]{4}[-_]?[0-9a-f]{4}[-_]?[0-9a-f]{4}[-_]?[0-9a-f]{12})"
)
_CONTAINER_ID: Final = re.compile(r"(?<![0-9a-f])(?P<id>[0-9a-f]{64})(?![0-9a-f])")
_SLURM_GROUP: Final = re.compile(r"/job_(?P<job>[0-9]{1,18})(?:/step_(?P<step>[a-z0-9_+]{1,32}))?")
_SHORT_ID_CHARS: Final = 12


@dataclass(frozen=True)
class _Read:
    """What was read of a process, and when; ``age_s`` is how old it was then."""

    started_ticks: int
    at_s: float
    age_s: float
    labels: Mapping[str, str]


class Attribution:
    """Tells whose a process is.

    Args:
        variables: Labels of your own: name of the label to the variable that it is taken from.

    Calls are cheap: what was read is kept for as long as the process lives. It may be called from
    several threads, and never raises. Raises UsageError for a label or variable that cannot be.
    """

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self._variables = dict(variables or {})
        for label, variable in self._variables.items():
            _check_label(label, variable)
        self._known: dict[int, _Read] = {}
        # By control group, that is by container: to read one as another user takes a process.
        self._namespaces: dict[bytes, str] = {}

    def __call__(self, pid: int) -> Mapping[str, str]:
        """Return what is known of the process with this pid of the host, by label."""
        start = read_start(pid)
        if start is None:
            self._known.pop(pid, None)
            return MappingProxyType({})
        started, now_s = start[1], time.monotonic()
        known = self._known.get(pid)
        if known is not None and known.started_ticks == started and not _is_due(known, now_s):
            return known.labels
        if len(self._known) >= _MAX_CACHED:
            self._known.clear()
        age_s = max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started / _TICKS_PER_S)
        labels = MappingProxyType(self._read(pid))
        self._known[pid] = _Read(started, now_s, age_s, labels)
        return labels

    def _read(self, pid: int) -> dict[str, str]:
        environment: dict[str, str] = {}
        groups = b""
        with suppress(OSError):
            groups = read_small(pid, "cgroup")
            environment = read_environment(pid)
        found = labels_of_environment(environment)
        # Variables hold names, groups only ids.
        found = {**labels_of_cgroup(groups.decode(errors="replace")), **found}
        if "job" not in found and "slurm_job_id" in found:
            found["job"] = found["slurm_job_id"]
        if "pod_uid" in found and "namespace" not in found:
            namespace = self._namespaces.get(groups) or _read_namespace(pid)
            found |= {"namespace": namespace} if namespace else {}
            if namespace and len(self._namespaces) < _MAX_CACHED:
                self._namespaces[groups] = namespace
        for label, variable in self._variables.items():
            value = _clean(environment.get(variable, ""))
            found |= {label: value} if value else {}
        return found


def labels_of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what variables tell of job, rank, Slurm and pod; pure."""
    is_pod = "KUBERNETES_SERVICE_HOST" in environment
    found = {
        "job": next((v for v in _values(environment, _JOB_VARIABLES) if v != _NO_ID), ""),
        "rank": _rank_of(environment),
        "slurm_job_id": _first(environment, ("SLURM_JOB_ID", "SLURM_JOBID")),
        "slurm_step": _first(environment, ("SLURM_STEP_ID", "SLURM_STEPID")),
        "pod": _first(environment, _POD_VARIABLES)
        # The name of a pod is its host name, unless it uses the network of its host.
        or (_first(environment, ("HOSTNAME",)) if is_pod else ""),
        "namespace": _first(environment, _NAMESPACE_VARIABLES),
        "container": _first(environment, _CONTAINER_VARIABLES),
    }
    return {name: value for name, value in found.items() if value}


def labels_of_cgroup(text: str) -> dict[str, str]:
    """Return what ``/proc/PID/cgroup``, of either version, tells of pod, container and job; pure.

    ``container`` is the start of its id, as ``docker ps`` and ``crictl ps`` show it.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        path = line.split(":", 2)[-1] if line.count(":") >= 2 else ""  # noqa: PLR2004 - N:NAME:PATH
        pod = _POD_UID.search(path)
        if pod:
            digits = pod["uid"].replace("-", "").replace("_", "")
            found["pod_uid"] = "-".join(
                (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
            )
        containers = _CONTAINER_ID.findall(path)
        if containers:
            found["container"] = containers[-1][:_SHORT_ID_CHARS]
        slurm = _SLURM_GROUP.search(path) if "slurm" in path else None
        if slurm:
            found["slurm_job_id"] = slurm["job"]
            found |= {"slurm_step": slurm["step"]} if slurm["step"] else {}
    return found


def _check_label(label: str, variable: str) -> None:
    hint = 'write `my_label = "MY_VARIABLE"`, with small letters, digits and `_` in the label'
    if not _LABEL.fullmatch(label) or label in _OURS:
        problem = "is one that whystuck gives itself" if label in _OURS else "is no name of a label"
        raise UsageError(f"attribution: `{label}` {problem}", hint=hint)
    if not variable or "=" in variable or "\0" in variable:
        raise UsageError(f"attribution: `{variable}` is no name of a variable", hint=hint)
    if is_secret_name(variable):
        raise UsageError(
            f"attribution: `{variable}` looks like a secret, and labels can be read by many",
            hint="name a variable that holds none",
        )


def _values(environment: Mapping[str, str], names: tuple[str, ...]) -> list[str]:
    return [value for name in names if (value := _clean(environment.get(name, "")))]


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next(iter(_values(environment, names)), "")


def _rank_of(environment: Mapping[str, str]) -> str:
    """Return the rank in its job, by the rule that traces go by."""
    rank = find_place(environment).rank
    return str(rank) if rank >= 0 else ""


def _clean(value: str) -> str:
    value = value[:_MAX_VALUE_CHARS].strip()
    return hide_secrets(value) if value.isprintable() else ""


def _is_due(known: _Read, now_s: float) -> bool:
    return known.age_s < _YOUNG_S and now_s - known.at_s >= _REREAD_S


def _read_namespace(pid: int) -> str:
    try:
        data = read_file_of(pid, _SERVICE_ACCOUNT, _MAX_NAMESPACE_BYTES)
    except OSError:
        return ""
    # Whoever runs the process may have put anything there.
    text = data.decode(errors="replace")
    return text if _NAMESPACE.fullmatch(text) else ""
