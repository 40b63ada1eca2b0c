"""NVIDIA's driver through its own Python package; its library is a stand-in with fixed answers."""

from pathlib import Path

import pytest
from tests.agent.metrics.gpu.nvml import as_told, nvml_folder, run

from whystuck.agent.metrics.gpu.families import GPU_FAMILIES

__all__ = ["nvml_folder"]
pytest.importorskip("pynvml")

GPU_0 = ("0", "GPU-0000", "nvidia", "job-7", "3")
GPU_1 = ("1", "GPU-1000", "nvidia", "", "")
TWO_LOOKS = """
lib = load()
lib.stand_in_process(os.getpid(), ctypes.c_ulonglong(5 << 30))
ctypes.CDLL("libcuda.so.1")
look()
lib.stand_in_links(ctypes.c_ulonglong(9000))
print(json.dumps([told(look()), source.problem, table.is_profiled("GPU-0000")]))
"""


def test_no_driver_is_said_once_and_gives_nothing() -> None:
    rows, problem, again = run(
        None, "print(json.dumps([told(look()), source.problem, told(look())]))"
    )

    assert (rows, again) == ([], [])
    assert problem.startswith("NVIDIA's driver cannot be asked")


def test_figures_of_a_device_are_in_base_units(nvml_folder: Path) -> None:
    rows, problem, is_profiled = run(nvml_folder, TWO_LOOKS)

    found = as_told(rows)
    assert problem == ""
    assert is_profiled
    expected = {
        "up": 1,
        "utilization_ratio": 0.87,
        "memory_utilization_ratio": 0.31,
        "memory_used_bytes": 20 << 30,
        "memory_total_bytes": 80 << 30,
        "power_watts": 412.5,
        "power_limit_watts": 700,
        "energy_joules_total": 5000000.123,
        "sm_clock_hertz": 1.755e9,
        "sm_clock_max_hertz": 1.98e9,
        "memory_clock_hertz": 2.619e9,
        "temperature_celsius": 61,
        "memory_temperature_celsius": 74,
        "row_remap_pending": 1,
        "row_remap_failed": 0,
        "xid_errors_total": 0,
        "mig_enabled": 0,
        "processes": 1,
        "process_memory_bytes": 5 << 30,
    }
    for name, value in expected.items():
        assert found[(name, *GPU_0)] == pytest.approx(value), name
    assert found[("throttled", *GPU_0, "power_cap")] == 1
    assert found[("throttled", *GPU_0, "hw_thermal")] == 1
    assert found[("throttled", *GPU_0, "sw_thermal")] == 0
    assert found[("ecc_errors_total", *GPU_0, "corrected")] == 12
    assert found[("ecc_errors_total", *GPU_0, "uncorrected")] == 1
    assert found[("remapped_rows", *GPU_0, "corrected")] == 3
    assert ("last_xid", *GPU_0) not in found


def test_activity_is_read_between_two_looks(nvml_folder: Path) -> None:
    rows, _, _ = run(nvml_folder, TWO_LOOKS)

    found = as_told(rows)
    assert found[("graphics_active_ratio", *GPU_0)] == pytest.approx(0.05)
    assert found[("sm_active_ratio", *GPU_0)] == pytest.approx(0.10)
    assert found[("sm_occupancy_ratio", *GPU_1)] == pytest.approx(0.15)
    assert found[("tensor_active_ratio", *GPU_0)] == pytest.approx(0.25)
    assert found[("dram_active_ratio", *GPU_0)] == pytest.approx(0.50)
    assert found[("fp16_active_ratio", *GPU_0)] == pytest.approx(0.65)
    assert found[("pcie_tx_bytes_per_second", *GPU_0)] == pytest.approx(2000 * 2**20)
    assert found[("nvlink_rx_bytes_per_second", *GPU_0)] == pytest.approx(6000 * 2**20)
    # One that the device has not, and one that is no number
    assert ("fp64_active_ratio", *GPU_0) not in found
    assert ("fp32_active_ratio", *GPU_0) not in found


def test_device_without_gpm_counts_its_links(nvml_folder: Path) -> None:
    # GIVEN a device older than Hopper
    code = """
lib = load()
lib.stand_in_gpm(0)
first = look()
lib.stand_in_links(ctypes.c_ulonglong(9000))
second = look()
print(json.dumps([told(first), told(second), table.is_profiled("GPU-0000")]))
"""
    first, second, is_profiled = run(nvml_folder, code)

    before, found = as_told(first), as_told(second)
    plain = ("0", "GPU-0000", "nvidia", "", "")
    assert not is_profiled
    assert ("sm_active_ratio", *plain) not in found
    assert ("nvlink_tx_bytes_per_second", *plain) not in before
    assert found[("nvlink_tx_bytes_per_second", *plain)] > 0
    # A measurement of PCIe takes 20 ms: one device a round
    counts = [
        sum(key[0] == "pcie_tx_bytes_per_second" for key in samples) for samples in (before, found)
    ]
    assert counts == [1, 2]
    assert found[("pcie_rx_bytes_per_second", *plain)] == 4096 * 1024


@pytest.mark.parametrize(
    ("function", "missing", "also"),
    [
        ("nvmlDeviceGetUtilizationRates", {"utilization_ratio", "memory_utilization_ratio"}, set()),
        ("nvmlDeviceGetPowerUsage", {"power_watts"}, set()),
        ("nvmlDeviceGetComputeRunningProcesses_v3", set(), {"process_memory_bytes"}),
        ("nvmlDeviceGetFieldValues", {"memory_temperature_celsius"}, set()),
        ("nvmlGpmMetricsGet", {"sm_active_ratio", "dram_active_ratio"}, set()),
    ],
)
def test_an_error_costs_only_its_figure(
    nvml_folder: Path, function: str, missing: set[str], also: set[str]
) -> None:
    code = f"""
lib = load()
look()
lib.stand_in_fail(b"{function}", -1, 3)  # NOT_SUPPORTED
look()
before = lib.stand_in_calls()
samples = look()
calls = lib.stand_in_calls() - before
print(json.dumps([told(samples), source.problem, calls]))
"""
    rows, problem, calls = run(nvml_folder, code)

    names = {labels[0] for labels, _ in rows}
    assert not names & (missing | also)
    assert {"up", "temperature_celsius", "memory_used_bytes"} <= names
    assert problem == ""  # it has not got it: no trouble
    assert calls < 70


def test_no_permission_is_told(nvml_folder: Path) -> None:
    code = """
lib = load()
lib.stand_in_fail(b"nvmlDeviceGetTotalEccErrors", 1, 4)
samples = look()
print(json.dumps([told(samples), source.problem, source.problem == (look(), source.problem)[1]]))
"""
    rows, problem, is_same = run(nvml_folder, code)

    found = as_told(rows)
    assert problem == (
        "we may not read corrected errors of GPU 1; we may not read uncorrected errors of GPU 1"
    )
    assert is_same
    assert ("ecc_errors_total", *GPU_1, "corrected") not in found
    assert any(key[0] == "ecc_errors_total" and key[1] == "0" for key in found)


def test_lost_device_is_down_and_others_go_on(nvml_folder: Path) -> None:
    code = """
lib = load()
look()
lib.stand_in_fail(b"*", 1, 15)  # GPU_IS_LOST
lost = look()
problem = source.problem
lib.stand_in_mend()
print(json.dumps([told(lost), problem, told(look()), source.problem]))
"""
    lost, problem, after, no_problem = run(nvml_folder, code)

    found = as_told(lost)
    assert found[("up", *GPU_1)] == 0
    assert [key for key in found if key[1] == "1"] == [("up", *GPU_1), ("xid_errors_total", *GPU_1)]
    assert found[("up", "0", "GPU-0000", "nvidia", "", "")] == 1
    assert "GPU 1" in problem
    assert as_told(after)[("up", *GPU_1)] == 1
    assert no_problem == ""


def test_device_that_was_lost_before_we_came_is_down(nvml_folder: Path) -> None:
    code = """
lib = load()
lib.stand_in_fail(b"nvmlDeviceGetHandleByIndex_v2", 1, 15)  # GPU_IS_LOST
print(json.dumps([told(look()), source.problem]))
"""
    rows, problem = run(nvml_folder, code)

    found = as_told(rows)
    assert found[("up", "1", "", "nvidia", "", "")] == 0
    assert found[("up", "0", "GPU-0000", "nvidia", "", "")] == 1
    assert problem == "1 of 2 devices of NVIDIA cannot be reached"


def test_device_that_comes_and_goes_is_followed(nvml_folder: Path) -> None:
    code = """
lib = load()
counts = []
for count in (2, 1, 3):
    lib.stand_in_count(count)
    look()
    counts.append(sorted({key[1] for key in look()}))
print(json.dumps([counts, lib.stand_in_gpm_buffers(), source.problem]))
"""
    counts, buffers, problem = run(nvml_folder, code)

    assert counts == [["0", "1"], ["0"], ["0", "1", "2"]]
    assert buffers == 6  # two a device: those of the one that went were freed
    assert problem == ""


def test_driver_that_is_unloaded_is_told_and_tried_again_later(nvml_folder: Path) -> None:
    code = """
lib = load()
look()
lib.stand_in_fail(b"nvmlDeviceGetCount_v2", -2, 9)  # DRIVER_NOT_LOADED
gone = look()
calls = lib.stand_in_calls()
again = look()
print(json.dumps([told(gone), source.problem, told(again), lib.stand_in_calls() - calls]))
"""
    gone, problem, again, calls = run(nvml_folder, code)

    assert (gone, again, calls) == ([], [], 0)
    assert problem.startswith("NVIDIA's driver has gone")


def test_xids_are_counted_without_waiting(nvml_folder: Path) -> None:
    code = """
lib = load()
look()
lib.stand_in_events(3)
print(json.dumps([told(look()), source.problem]))
"""
    rows, problem = run(nvml_folder, code)

    found = as_told(rows)
    assert found[("xid_errors_total", "0", "GPU-0000", "nvidia", "", "")] == 3
    assert found[("last_xid", "0", "GPU-0000", "nvidia", "", "")] == 79
    assert found[("xid_errors_total", *GPU_1)] == 0
    assert problem == ""


def test_instances_of_a_cut_device_are_told(nvml_folder: Path) -> None:
    code = """
lib = load()
lib.stand_in_mig(1)
look()
print(json.dumps([told(look()), source.problem]))
"""
    rows, problem = run(nvml_folder, code)

    found = as_told(rows)
    instance = ("1.2", "MIG-1002", "nvidia", "", "")
    assert found[("mig_enabled", *GPU_1)] == 1
    assert found[("memory_used_bytes", *instance)] == 3 << 30
    assert found[("sm_active_ratio", *instance)] == pytest.approx(0.1)
    assert {key[1] for key in found} == {"0", "1", "1.0", "1.2"}
    assert problem == ""


def test_all_samples_are_of_known_families(nvml_folder: Path) -> None:
    rows, _, _ = run(nvml_folder, TWO_LOOKS)

    known = {one.name.removeprefix("whystuck_gpu_"): len(one.labels) for one in GPU_FAMILIES}
    assert all(known[labels[0]] == len(labels) - 1 for labels, _ in rows)
    assert len({tuple(labels) for labels, _ in rows}) == len(rows)


def test_pid_of_another_namespace_is_not_taken_for_ours(nvml_folder: Path) -> None:
    # GIVEN a process that has the pid that the driver tells, and no library of the driver
    code = """
import whystuck.agent.metrics.gpu.processes as gpu_processes
gpu_processes._sees_all = lambda: False
lib = load()
lib.stand_in_process(os.getpid(), ctypes.c_ulonglong(5 << 30))
print(json.dumps(told(look())))
"""
    found = as_told(run(nvml_folder, code))

    assert found[("processes", "0", "GPU-0000", "nvidia", "", "")] == 1
    assert not any(key[0] == "process_memory_bytes" for key in found)
