"""The namespace of a pod is read from a file of the process, and from no file of root."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.guarded.strangers import Kind, Scenery, Stranger, needs_root, scenery

from whystuck.agent.metrics.rank import attribution

FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
CGROUP = "0::/kubepods/pod1a2b3c4d-1a2b-3c4d-5e6f-1a2b3c4d5e6f/" + "a" * 64

pytestmark = needs_root


@pytest.fixture
def place() -> Iterator[Scenery]:
    with scenery() as made:
        (made.secrets / "word").write_text("hunter2")
        at = made.jail
        for name in FOLDER.split("/")[1:]:
            at = made.give(at / name)
        yield made


def find_labels(
    place: Scenery,
    kind: Kind,
    monkeypatch: pytest.MonkeyPatch,
    mounts: Mapping[Path, Path] | None = None,
) -> Mapping[str, str]:
    """Return the labels of a process of another user whose control group is that of a pod."""
    labels = attribution.labels_of_cgroup(CGROUP)
    monkeypatch.setattr(attribution, "labels_of_cgroup", lambda _: labels)
    with Stranger(kind, place.jail, mounts=mounts) as stranger:
        return attribution.Attribution()(stranger.pid)


def link(place: Scenery, target: str) -> None:
    (place.outside(FOLDER) / "namespace").symlink_to(target)


@pytest.mark.parametrize("kind", [Kind.CHROOT, Kind.NAMESPACE])
def test_namespace_is_read_through_the_links_of_a_volume(
    place: Scenery, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.give(place.outside(FOLDER) / "..2026_01_31")
    place.write(f"{FOLDER}/..2026_01_31/namespace", "team-a")
    (place.outside(FOLDER) / "..data").symlink_to("..2026_01_31")
    link(place, "..data/namespace")

    assert find_labels(place, kind, monkeypatch)["namespace"] == "team-a"


@pytest.mark.parametrize("kind", [Kind.CHROOT, Kind.NAMESPACE])
def test_link_to_a_file_of_root_shows_nothing(
    place: Scenery, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    link(place, str(place.secrets / "word"))

    assert "namespace" not in find_labels(place, kind, monkeypatch)


def test_mount_of_a_folder_of_root_shows_nothing(
    place: Scenery, monkeypatch: pytest.MonkeyPatch
) -> None:
    link(place, "/tmp/secrets/word")
    mounts = {place.top: place.outside("/tmp")}

    assert "namespace" not in find_labels(place, Kind.NAMESPACE, monkeypatch, mounts)
