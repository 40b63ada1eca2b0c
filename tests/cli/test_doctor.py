from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.disks import small_disk
from tests.safe_text.baits import BAITS
from tests.safe_text.test_escaping import is_visible
from tests.shared_disk import shared_disk

from whystuck.cli import doctor as module
from whystuck.cli import main
from whystuck.cli.doctor import Answer


def test_doctor_prints_one_line_a_check_and_exits_by_the_worst(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    good, bad = [Answer("ok", "fine")], [Answer("fail", "broken", "mend it")]
    monkeypatch.setattr(module, "_CHECKS", (lambda: good, lambda: bad))

    code = main(["doctor"])

    assert code == 1
    assert capfd.readouterr().out == "ok    fine\nfail  broken\n\nhint: mend it\n"


def test_doctor_exits_with_0_when_nothing_failed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_CHECKS", (lambda: [Answer("note", "limited")],))

    assert main(["doctor"]) == 0
    assert capfd.readouterr().out == "note  limited\n"


def test_every_check_answers_on_this_machine() -> None:
    for check in module._CHECKS:
        for answer in check():
            assert answer.state in {"ok", "note", "fail"}
            assert "\n" not in answer.text


def test_missing_py_spy_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setattr("shutil.which", lambda name: None)

    (answer,) = module.check_py_spy()

    assert (answer.state, answer.text) == ("fail", "py-spy not found")


def test_py_spy_that_may_not_attach_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = subprocess.CompletedProcess([], 1, "", "Error: Permission Denied: try sudo\nmore")
    monkeypatch.setattr(module, "_run", lambda command: refused)

    (answer,) = module.check_py_spy()

    assert answer.text == "py-spy cannot take stacks: Permission Denied: try sudo"
    assert "SYS_PTRACE" in answer.hint


@pytest.mark.parametrize(
    ("seen", "states"),
    [
        (None, ["fail"]),
        ({"python": "3.12.1", "torch": "", "entry": False}, ["note"]),
        ({"python": "3.12.1", "torch": "2.13.0", "entry": False}, ["ok", "note", "ok"]),
        ({"python": "3.12.1", "torch": "2.13.0", "entry": True}, ["ok", "ok", "ok"]),
        ({"python": "3.12.1", "torch": "2.14.1+cu130", "entry": True}, ["ok", "ok", "note"]),
        ({"python": "3.12.1", "torch": "2.14.1", "entry": True, "native": "1"}, ["ok", "ok", "ok"]),
        ({"python": "3.12.1", "torch": "main", "entry": True, "native": "1"}, ["ok", "ok"]),
    ],
)
def test_python_of_the_job_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, seen: dict[str, str] | None, states: list[str]
) -> None:
    monkeypatch.setattr(module, "_ask_python", lambda python: seen)

    assert [answer.state for answer in module.check_job_python()] == states


def test_recorder_of_collectives_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WHYSTUCK_NATIVE", raising=False)
    seen = {"python": "3.12.1", "torch": "2.15.0", "entry": True, "native": "0.1.0"}
    monkeypatch.setattr(module, "_ask_python", lambda python: seen)

    in_c = module.check_job_python()[-1]
    monkeypatch.setenv("WHYSTUCK_NATIVE", "0")
    switched_off = module.check_job_python()[-1]

    assert in_c.text == "collectives are recorded by hooks in C (whystuck-native 0.1.0)"
    assert switched_off.text == "collectives are recorded by hooks in Python"
    assert "whystuck-native" in switched_off.hint


def test_disabled_probe_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTUCK_DISABLE", "1")

    (answer,) = module.check_switch()

    assert answer.state == "note"


@pytest.mark.parametrize(("scope", "state"), [("0", "ok"), ("1", "note"), ("3", "note")])
def test_ptrace_scope_is_explained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scope: str, state: str
) -> None:
    (tmp_path / "scope").write_text(scope + "\n", encoding="ascii")
    monkeypatch.setattr(module, "_PTRACE_SCOPE", tmp_path / "scope")

    (answer,) = module.check_ptrace_scope()

    assert (answer.state, answer.text[:14]) == (state, f"ptrace scope {scope}")


def test_shared_memory_that_cannot_be_written_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "_SHARED_MEMORY", tmp_path / "none")

    (answer,) = module.check_shared_memory()

    assert answer.state == "fail"


def test_engine_that_searches_logs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hyperscan", None)  # as where it is not installed
    monkeypatch.setattr("platform.machine", lambda: "x86_64")

    (slow,) = module.check_log_engine()

    assert (slow.state, slow.text) == ("note", "logs are searched with numpy")
    assert "whystuck[fast]" in slow.hint
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert module.check_log_engine()[0].state == "ok"  # nothing faster can be had


def test_a_recorder_that_is_switched_off_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "0")
    (off,) = module.check_recorder()
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "2000")
    (on,) = module.check_recorder()

    assert (off.state, on.state) == ("note", "ok")
    assert "unset TORCH_FR_BUFFER_SIZE" in off.hint


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("NCCL_DEBUG", "INFO", "prints much"),
        ("NCCL_P2P_DISABLE", "1", "NCCL_P2P_DISABLE is set"),
        ("NCCL_SOCKET_IFNAME", "nosuchnic", "NCCL_SOCKET_IFNAME=nosuchnic"),
    ],
)
def test_variables_of_nccl_that_cost_or_mislead_are_told(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, text: str
) -> None:
    for other in ("NCCL_DEBUG", "NCCL_P2P_DISABLE", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        monkeypatch.delenv(other, raising=False)
    assert [one.state for one in module.check_nccl()] == ["ok"]

    monkeypatch.setenv(name, value)
    (answer,) = module.check_nccl()

    assert answer.state == "note"
    assert text in answer.text


def test_a_folder_that_cannot_be_written_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with small_disk("size=16k", is_full=True) as full:
        monkeypatch.chdir(full)
        (answer,) = module.check_evidence_disk()
        monkeypatch.undo()

    assert answer.state == "fail"
    assert "No space left" in answer.text


def test_a_folder_that_hangs_is_a_failure_and_hangs_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with shared_disk(tmp_path) as disk:
        monkeypatch.chdir(disk.path)
        monkeypatch.setattr(module, "_DISK_S", 1.0)
        disk.is_open.clear()
        (answer,) = module.check_evidence_disk()
        disk.is_open.set()
        monkeypatch.undo()

    assert answer.text == "evidence cannot be written here: no answer in 1 s"


def test_nothing_that_is_quoted_acts_on_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def quote() -> list[Answer]:
        return [Answer("note", f"a{bait}", f"b{bait}") for bait in BAITS]

    monkeypatch.setattr(module, "_CHECKS", (quote,))

    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert all(map(is_visible, shown.split("\n")))
    assert len(shown.split("\n")) == 2 * len(BAITS) + 2
