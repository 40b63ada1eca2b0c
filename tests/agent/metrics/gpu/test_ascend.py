"""Ascend devices: the tool's output of several versions, and a real process that prints it."""

import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agent.metrics.gpu import npu_outputs

from whystuck.agent.metrics.gpu.ascend import AscendSource
from whystuck.collect.node.npu_smi import (
    NpuChip,
    parse_npu_info,
    parse_npu_values,
    run_bounded,
)


def test_table_of_one_chip_each() -> None:
    table = parse_npu_info(npu_outputs.ONE_CHIP.format(pid=4711))

    assert table.version == "23.0.3"
    assert table.unknown_lines == 0
    assert table.chips[0] == NpuChip(
        npu=4,
        chip=0,
        name="910B3",
        health="OK",
        bus_id="0000:C1:00.0",
        power_w=316.4,
        temperature_c=52,
        aicore_percent=87,
        memory_mb=(41697, 65536),
    )
    assert (table.chips[1].npu, table.chips[1].health) == (12, "Warning")
    assert [(p.npu, p.chip, p.pid, p.memory_mb) for p in table.processes] == [(4, 0, 4711, 38342)]


def test_second_die_without_power_is_unknown_and_not_zero() -> None:
    table = parse_npu_info(npu_outputs.TWO_DIES)

    assert [chip.device for chip in table.chips] == [0, 1]
    assert [chip.power_w for chip in table.chips] == [178.9, None]
    assert [chip.temperature_c for chip in table.chips] == [36, 37]
    assert [chip.aicore_percent for chip in table.chips] == [12, None]


def test_table_without_high_bandwidth_memory() -> None:
    (chip,) = parse_npu_info(npu_outputs.WITHOUT_HBM).chips

    assert (chip.device, chip.memory_mb, chip.aicore_percent) == (5, (994, 21534), 0)


def test_values_of_chips_are_told_apart() -> None:
    two = npu_outputs.USAGES + npu_outputs.USAGES.replace(": 46", ": 7").replace(": 0", ": 1")

    chips = parse_npu_values(two)

    assert [chip["Aicube Usage Rate(%)"] for chip in chips] == [46, 7]
    assert [chip["Chip ID"] for chip in chips] == [0, 1]
    assert parse_npu_values(npu_outputs.COMMON)[0]["Aicore curFreq(MHZ)"] == 1650
    assert "Memory Usage Rate(%)" not in parse_npu_values(npu_outputs.COMMON)[0]


def test_unknown_lines_are_counted() -> None:
    text = npu_outputs.TWO_DIES.replace("| 1     1  ", "| ?     ?  ")

    table = parse_npu_info(text)

    assert (len(table.chips), table.unknown_lines) == (1, 1)


@settings(max_examples=200)
@given(st.text(alphabet="| +=-0159/:.AaN\n\tHBM", max_size=400), st.integers(0, 400))
def test_any_text_is_read_without_error(text: str, place: int) -> None:
    whole = npu_outputs.TWO_DIES
    parse_npu_info(whole[:place] + text + whole[place:])
    parse_npu_values(npu_outputs.COMMON[:place] + text)


def install(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an ``npu-smi`` on PATH that prints what the driver's own prints."""
    tool = folder / "npu-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_source_reads_what_the_tool_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whystuck.agent.metrics.gpu.processes._sees_all", lambda: True)
    (tmp_path / "info").write_text(npu_outputs.ONE_CHIP.format(pid=4711))
    (tmp_path / "usages").write_text(npu_outputs.USAGES)
    (tmp_path / "common").write_text(npu_outputs.COMMON)
    install(tmp_path, f'cat "{tmp_path}/${{3:-info}}"', monkeypatch)

    source = AscendSource(lambda pid: ("job", "2") if pid == 4711 else ("", ""))
    found = {(s.family.name, *s.labels): s.value for s in source.collect()}

    assert source.problem == ""
    busy, idle = (
        ("4", "0000:C1:00.0", "ascend", "job", "2"),
        ("12", "0000:C2:00.0", "ascend", "", ""),
    )
    assert found["whystuck_gpu_utilization_ratio", *busy] == pytest.approx(0.87)
    assert found["whystuck_gpu_memory_used_bytes", *busy] == 41697 << 20
    assert found["whystuck_gpu_process_memory_bytes", *busy] == 38342 << 20
    assert found["whystuck_gpu_power_watts", *idle] == 92.9
    assert found["whystuck_gpu_processes", *idle] == 0
    assert found["whystuck_gpu_dram_active_ratio", *busy] == pytest.approx(0.4)
    assert found["whystuck_gpu_tensor_active_ratio", *busy] == pytest.approx(0.46)
    assert found["whystuck_gpu_sm_clock_hertz", *busy] == 1.65e9
    # Of one device a round
    assert ("whystuck_gpu_dram_active_ratio", *idle) not in found
    assert {s.family for s in source.collect()} <= set(AscendSource.families)


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("exit 3", "npu-smi does not answer: it ended with code 3"),
        ("echo dcmi module initialize failed. ret is -8005", "npu-smi shows no device"),
        ("yes '| garbage |' | head -c 3000000", "it prints more than 1 MiB"),
    ],
)
def test_failing_tool_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, problem: str
) -> None:
    install(tmp_path, script, monkeypatch)
    source = AscendSource()

    assert list(source.collect()) == []
    assert problem in source.problem


def test_absent_tool_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    source = AscendSource()

    assert list(source.collect()) == []
    assert source.problem == "npu-smi is not installed"


def test_tool_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    script = f"sh -c 'echo $$ > {mark}; exec sleep 600' & wait"

    with pytest.raises(OSError, match="too long"):
        run_bounded(["/bin/sh", "-c", script], timeout_s=1.0)

    pid = int(mark.read_text())
    end_s = time.monotonic() + 20
    while _is_alive(pid) and time.monotonic() < end_s:
        time.sleep(0.02)
    assert not _is_alive(pid)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
