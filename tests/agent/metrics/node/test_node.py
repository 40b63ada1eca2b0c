"""Processors, memory, disks, file systems, networks and pressure of the real machine."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import psutil
import pytest
from tests.agent.metrics.checking import collect, names

from whystuck.agent.metrics.filters import Names
from whystuck.agent.metrics.node.disks import DiskSource, VolumeSource
from whystuck.agent.metrics.node.host import HostSource
from whystuck.agent.metrics.node.network import NetworkSource
from whystuck.agent.metrics.node.pressure import PressureSource
from whystuck.agent.metrics.node.standard import make_node_sources
from whystuck.agent.metrics.rank.labels import RankProcess


def test_host_says_what_psutil_says() -> None:
    source = HostSource()

    first, second = collect(source), collect(source)

    assert first["memory_total_bytes",] == psutil.virtual_memory().total
    assert first["cpus",] == psutil.cpu_count()
    assert abs(first["boot_time_seconds",] - psutil.boot_time()) < 2
    assert second["cpu_seconds_total", "user"] >= first["cpu_seconds_total", "user"]
    assert first["memory_available_bytes",] <= first["memory_total_bytes",]
    assert source.problem == ""
    assert not {key for key in first if key[0] == "cpu_core_seconds_total"}


def test_utilization_is_that_between_two_readings() -> None:
    source = HostSource()
    assert ("cpu_utilization_ratio",) not in collect(source)
    # the kernel counts in ticks: until there are some, nothing is known
    until_s = time.monotonic() + 60
    while ("cpu_utilization_ratio",) not in (found := collect(source)):
        assert time.monotonic() < until_s

    assert 0 <= found["cpu_utilization_ratio",] <= 1


def test_each_core_can_have_its_own_seconds() -> None:
    found = collect(HostSource(is_per_core=True))

    cores = {key[1] for key in found if key[0] == "cpu_core_seconds_total"}
    assert cores == {str(number) for number in range(os.cpu_count() or 1)}


def test_disks_are_whole_disks() -> None:
    found = collect(DiskSource())

    devices = {key[1] for key in found}
    assert devices <= {path.name for path in Path("/sys/block").iterdir()}
    assert not [name for name in devices if name.startswith(("loop", "ram"))]


def test_volumes_are_those_of_statvfs() -> None:
    found = collect(VolumeSource())

    [labels] = {key[1:] for key in found if key[3:] == ("/",)}
    room = os.statvfs("/")
    assert found[("filesystem_size_bytes", *labels)] == room.f_blocks * room.f_frsize
    assert found[("filesystem_device_error", *labels)] == 0


def test_mounts_can_be_left_out() -> None:
    found = collect(VolumeSource(exclude=["/"]))

    assert not [key for key in found if key[3] == "/"]


def test_a_mount_that_does_not_answer_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a kernel that keeps whoever asks for the room of one mount
    release, asked, real = threading.Event(), [], os.statvfs

    def ask(path: str) -> os.statvfs_result:
        if str(path) == "/dev/shm":
            asked.append(path)
            release.wait(60)
        return real(path)

    monkeypatch.setattr("whystuck.agent.metrics.node.disks.os.statvfs", ask)
    monkeypatch.setattr("whystuck.agent.metrics.node.disks._ANSWER_S", 0.2)
    source = VolumeSource(include=["/", "/dev/shm"])

    first, second = collect(source), collect(source)

    for found in (first, second):
        errors = {key[3]: value for key, value in found.items() if "error" in key[0]}
        assert errors == {"/": 0, "/dev/shm": 1}
    assert source.problem == "no answer from /dev/shm"
    # One thread is kept, however often we look.
    assert len(asked) == 1
    release.set()
    for thread in threading.enumerate():
        if thread.name == "room":
            thread.join(60)
    healed = collect(source)
    assert {value for key, value in healed.items() if "error" in key[0]} == {0}
    assert source.problem == ""


def test_interfaces_that_containers_make_are_left_out() -> None:
    found = collect(NetworkSource())
    everything = collect(NetworkSource(exclude=()))

    assert {key[1] for key in everything} == set(psutil.net_io_counters(pernic=True))
    assert "lo" not in {key[1] for key in found}
    assert everything["network_receive_bytes_total", "lo"] >= 0


def test_interfaces_can_be_chosen() -> None:
    found = collect(NetworkSource(include=["l?"], exclude=()))

    assert {key[1] for key in found} == {"lo"}


def test_infiniband_ports_are_read(tmp_path: Path) -> None:
    port = tmp_path / "mlx5_0" / "ports" / "1"
    (port / "counters").mkdir(parents=True)
    (port / "counters" / "port_rcv_data").write_text("1000\n")
    (port / "counters" / "link_downed").write_text("3\n")
    (port / "counters" / "symbol_error").write_text("not a number\n")
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("200 Gb/sec (4X HDR)\n")

    found = collect(NetworkSource(exclude=["*"], infiniband=tmp_path))

    labels = ("mlx5_0", "1")
    assert found == {
        ("infiniband_port_data_received_bytes_total", *labels): 4000,
        ("infiniband_link_downed_total", *labels): 3,
        ("infiniband_port_active", *labels): 1,
        ("infiniband_rate_bytes", *labels): 25e9,
    }


def test_names_match_patterns() -> None:
    assert Names(["eth*", "ib0"], ["eth1"]).choose(["eth0", "eth1", "ib0", "lo"]) == ["eth0", "ib0"]
    assert Names().has("anything")


@pytest.fixture
def pressure(tmp_path: Path) -> Path:
    folder = tmp_path / "pressure"
    folder.mkdir()
    for resource, some, full in (("cpu", 2_500_000, 0), ("io", 7, 1), ("memory", 0, 0)):
        (folder / resource).write_text(
            f"some avg10=0.00 avg60=0.00 avg300=0.00 total={some}\n"
            f"full avg10=0.00 avg60=0.00 avg300=0.00 total={full}\n"
        )
    return folder


def test_pressure_is_in_seconds(pressure: Path, tmp_path: Path) -> None:
    source = PressureSource(pressure=pressure, cgroups=tmp_path / "none")

    found = collect(source)

    assert found["pressure_cpu_waiting_seconds_total",] == 2.5
    assert found["pressure_io_stalled_seconds_total",] == 1e-6
    assert source.problem == ""


def test_a_kernel_without_pressure_is_told(tmp_path: Path) -> None:
    source = PressureSource(pressure=tmp_path, cgroups=tmp_path)

    assert collect(source) == {}
    assert source.problem == "this kernel tells no pressure"


def own_group(version: int) -> str:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    parts = [line.split(":", 2) for line in lines]
    wanted = "" if version == 2 else "memory"
    return next((path for _, names, path in parts if wanted in names.split(",")), "/")


def test_cgroups_of_version_2_are_read(pressure: Path, tmp_path: Path) -> None:
    group = tmp_path / "cgroup" / own_group(2).lstrip("/")
    group.mkdir(parents=True)
    (group / "memory.current").write_text("1000\n")
    (group / "memory.max").write_text("max\n")
    (group / "memory.stat").write_text("anon 500\ninactive_file 300\n")
    (group / "memory.events").write_text("low 0\nmax 4\noom 1\noom_kill 2\n")
    (group / "cpu.stat").write_text("usage_usec 5000000\nthrottled_usec 250000\n")
    (group / "io.pressure").write_text("some avg10=0 avg60=0 avg300=0 total=3000000\n")

    found = collect(PressureSource(pressure=pressure, cgroups=tmp_path / "cgroup"))

    groups = {key[0]: value for key, value in found.items() if len(key) > 1}
    assert groups == {
        "cgroup_memory_bytes": 1000,
        "cgroup_memory_working_set_bytes": 700,
        "cgroup_oom_kills_total": 2,
        "cgroup_cpu_throttled_seconds_total": 0.25,
        "cgroup_cpu_seconds_total": 5,
        "cgroup_pressure_io_waiting_seconds_total": 3,
    }


@pytest.mark.skipif(own_group(1) == "/", reason="no cgroup of version 1 here")
def test_cgroups_of_version_1_are_read(pressure: Path, tmp_path: Path) -> None:
    group = tmp_path / "cgroup" / "memory" / own_group(1).lstrip("/")
    group.mkdir(parents=True)
    (group / "memory.usage_in_bytes").write_text("1000\n")
    (group / "memory.limit_in_bytes").write_text("2000\n")
    (group / "memory.oom_control").write_text("oom_kill_disable 0\noom_kill 1\n")

    found = collect(PressureSource(pressure=pressure, cgroups=tmp_path / "cgroup"))

    groups = {key[0]: value for key, value in found.items() if len(key) > 1}
    assert groups["cgroup_memory_bytes"] == 1000
    assert groups["cgroup_memory_limit_bytes"] == 2000
    assert groups["cgroup_oom_kills_total"] == 1


def test_a_cgroup_path_cannot_leave_its_folder(tmp_path: Path) -> None:
    from whystuck.agent.metrics.node.pressure import _below

    assert _below(tmp_path, "/../../etc") == tmp_path
    assert _below(tmp_path, "/a/b") == tmp_path / "a" / "b"


def test_ended_ranks_have_no_cgroup() -> None:
    ended = RankProcess(pid=2**22 + 1, job="j", rank=0)

    assert collect(PressureSource(lambda: [ended]))


def test_all_sources_of_a_node_read_this_machine() -> None:
    for source in make_node_sources(is_per_core=True):
        assert names(collect(source)) <= {
            family.name.removeprefix("whystuck_") for family in source.families
        }
