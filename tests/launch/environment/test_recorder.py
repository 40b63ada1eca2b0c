"""What `whystuck run` sets for torch's flight recorder, and what it leaves alone."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from tests.launch.running import clean_environment, run_whystuck, torchrun
from tests.probe.job import PROBE_DIR

from whystuck.launch.environment.recorder import VARIABLES, RecorderSettings, recorder_environment
from whystuck.launch.incidents.folder import EvidenceFolder
from whystuck.launch.incidents.torch_dumps import TorchDumps

SHOW = (
    "import json, os; print(json.dumps({k: v for k, v in os.environ.items()"
    " if k.startswith(('TORCH_', 'NCCL_'))}))"
)


def _decide(values: dict[str, str], environment: dict[str, str]) -> dict[str, str]:
    made = recorder_environment(RecorderSettings(values), environment, "/ev/rank_").variables
    return {name: value for name, value in made.items() if name != "WHYSTUCK_FR"}


def _run_and_show(
    tmp_path: Path, *options: str, **extra: str
) -> tuple[dict[str, str], subprocess.CompletedProcess[bytes]]:
    command = [sys.executable, "-c", SHOW]
    done = run_whystuck(
        "run", "--evidence", "ev", *options, "--", *command, cwd=tmp_path, environment=extra
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout), done


def test_environment_when_nothing_is_asked_for_then_three_are_set() -> None:
    assert _decide({}, {}) == {
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_DUMP_TEMP_FILE": "/ev/rank_",
    }


@pytest.mark.parametrize(
    ("variable", "name"), [(one, name) for one in VARIABLES for name in one.names]
)
def test_environment_when_the_user_has_set_it_by_any_name_then_none_is_set(
    variable: object, name: str
) -> None:
    one = next(v for v in VARIABLES if v is variable)
    made = recorder_environment(RecorderSettings({one.name: "1"}), {name: "7"}, "/ev/rank_")
    assert not set(one.names) & set(made.variables)
    assert made.overruled == (name,)


def test_run_when_nothing_is_asked_for_then_dumps_go_to_the_evidence_folder(
    tmp_path: Path,
) -> None:
    seen, _ = _run_and_show(tmp_path)
    prefix = Path(seen["TORCH_FR_DUMP_TEMP_FILE"])
    assert prefix.is_relative_to(tmp_path / "ev/rounds/0")
    assert seen["TORCH_FR_BUFFER_SIZE"] == "2000"
    assert not prefix.parent.exists()  # nothing was written: the place is gone


def test_run_when_options_are_given_then_the_recorder_gets_them(tmp_path: Path) -> None:
    options = "--fr-buffer-size 7 --no-fr-dump-on-timeout --fr-cpp-stack --fr-symbolize-mode fast"
    seen, _ = _run_and_show(tmp_path, *options.split())
    assert seen["TORCH_FR_BUFFER_SIZE"] == "7"
    assert seen["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "0"
    assert seen["TORCH_FR_CPP_STACK"] == "1"
    assert seen["TORCH_SYMBOLIZE_MODE"] == "fast"


def test_run_when_the_user_has_set_an_alias_then_it_wins_and_is_told(tmp_path: Path) -> None:
    seen, done = _run_and_show(tmp_path, "--fr-buffer-size", "7", TORCH_NCCL_TRACE_BUFFER_SIZE="99")
    assert seen["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "99"
    assert "TORCH_FR_BUFFER_SIZE" not in seen
    assert b"`TORCH_NCCL_TRACE_BUFFER_SIZE` is set" in done.stderr


def test_run_when_disabled_then_sets_nothing(tmp_path: Path) -> None:
    seen, _ = _run_and_show(tmp_path, WHYSTUCK_DISABLE="1")
    assert not seen


def test_dumps_when_they_go_to_a_place_of_the_users_then_new_ones_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rank_0").write_bytes(b"of another job")
    os.utime(tmp_path / "rank_0", (1, 1))
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(tmp_path / "rank_"))
    dumps = TorchDumps(EvidenceFolder(tmp_path / "ev", "n1"), RecorderSettings(), print)
    (tmp_path / "rank_1").write_bytes(b"new")
    (tmp_path / "rank_x").write_bytes(b"something else")
    dumps.keep(tmp_path / "incident")
    dumps.close()
    found = [path for path in (tmp_path / "incident").rglob("*") if path.is_file()]
    assert found == [tmp_path / "incident/n1/rank-1/fr_torch.pickle"]
    assert (tmp_path / "rank_1").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="gives a file to another user, which root can")
def test_dumps_that_others_lay_where_all_may_make_files_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, secret = tmp_path / "shared", tmp_path / "secret"
    place.mkdir()
    place.chmod(0o1777)
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(place / "rank_"))
    dumps = TorchDumps(EvidenceFolder(tmp_path / "ev", "n1"), RecorderSettings(), print)
    secret.write_text("secret")
    (place / "rank_0").symlink_to(secret)
    os.mkfifo(place / "rank_1")
    (place / "rank_2").write_text("theirs")
    os.chown(place / "rank_2", 12345, 12345)
    os.link(secret, place / "rank_3")
    (place / "rank_4").write_text("ours")
    dumps.keep(tmp_path / "incident")
    found = [path for path in (tmp_path / "incident").rglob("*") if path.is_file()]
    assert found == [tmp_path / "incident/n1/rank-4/fr_torch.pickle"]


NAMES = """
import os, sys, types
sys.path.insert(0, sys.argv[1])
package = types.ModuleType("_whystuck_probe")
package.__path__ = [sys.argv[1]]
sys.modules["_whystuck_probe"] = package
sys.modules["torch"] = types.SimpleNamespace(__version__=sys.argv[2])
from _whystuck_probe.recorder import names as recorder_names
recorder_names.use_names_of_this_torch()
if len(sys.argv) > 3:
    os.environ[sys.argv[3]] = "5"
    recorder_names.give_way()
print(sorted(k for k in os.environ if k.startswith("TORCH_")))
"""


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("2.7.1", "NCCL_DEBUG_INFO_TEMP_FILE NCCL_DUMP_ON_TIMEOUT NCCL_TRACE_BUFFER_SIZE"),
        ("2.8.0", "FR_BUFFER_SIZE NCCL_DEBUG_INFO_TEMP_FILE NCCL_DUMP_ON_TIMEOUT"),
        ("2.13.0+cpu", "FR_BUFFER_SIZE FR_DUMP_TEMP_FILE NCCL_DUMP_ON_TIMEOUT"),
        ("2.15.0a0+git1", "FR_BUFFER_SIZE FR_DUMP_ON_TIMEOUT FR_DUMP_TEMP_FILE"),
    ],
)
def test_probe_when_torch_reads_other_names_then_moves_the_values(
    version: str, expected: str
) -> None:
    assert _names_under(version) == [f"TORCH_{name}" for name in expected.split()]


def _names_under(version: str, *script_sets: str) -> list[str]:
    made = recorder_environment(RecorderSettings(), {}, "/ev/rank_").variables
    done = subprocess.run(
        [sys.executable, "-c", NAMES, str(PROBE_DIR), version, *script_sets],
        env=clean_environment(**made),
        capture_output=True,
        check=True,
    )
    found: list[str] = json.loads(done.stdout.decode().replace("'", '"'))
    return found


def test_probe_when_the_script_sets_the_alias_then_ours_is_taken_back() -> None:
    names = _names_under("2.13.0", "TORCH_NCCL_TRACE_BUFFER_SIZE")
    assert "TORCH_NCCL_TRACE_BUFFER_SIZE" in names
    assert "TORCH_FR_BUFFER_SIZE" not in names


# What NCCL's watchdog does at a timeout: write where the recorder's variable says. Without a
# process group: gloo does not find its peers again after a restart.
LIKE_NCCL = """
import os, pickle, time, torch
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
prefix = os.environ["TORCH_FR_DUMP_TEMP_FILE"]
dump = {"version": "2.10", "pg_config": {}, "pg_status": {}, "entries": [], "attempt": attempt}
with open(prefix + rank + ".part", "wb") as file:
    pickle.dump(dump, file)
os.rename(prefix + rank + ".part", prefix + rank)
while rank == "0" and not os.path.exists(prefix + "1"):
    time.sleep(0.05)
if rank == "0":
    os._exit(1)
time.sleep(60)
"""


@pytest.mark.slow
def test_run_when_torch_writes_dumps_then_each_attempt_keeps_its_own(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LIKE_NCCL)
    command = torchrun(2, script)
    command.insert(1, "--max-restarts=1")
    done = run_whystuck("run", "--evidence", "ev", "--", *command, cwd=tmp_path)
    assert done.returncode == 1
    for rank in (0, 1):
        found = sorted((tmp_path / "ev/incidents").glob(f"*/*/rank-{rank}/fr_torch.pickle"))
        assert len(found) == 2
        assert [pickle.loads(path.read_bytes())["attempt"] for path in found] == ["0", "1"]
