"""The start script for Slurm and the list of bad nodes: a scheduler that stands in for Slurm's.

It does what Slurm does to a job that is put back into the queue: it ends the script by a signal,
changes no job that runs, and starts the script once more, on nodes that are not excluded.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.cli.run.test_init import PASS_ON
from tests.disks import small_disk
from tests.launch.running import WHYSTUCK

from whystuck.cli.run.init import make_script
from whystuck.launch.restarts.exclude import ExcludedNode, write_excluded

JOB_ID = "77"
# The state of the job is in files of the folder $SLURM.
SCONTROL = """#!/bin/bash
echo "$*" >> "$SLURM/calls"
case "$1 $2" in
    "show hostnames") tr , '\\n' <<<"$3" ;;
    "show job") echo "JobId=77 ExcNodeList=$(cat "$SLURM/excluded") Features=(null)" ;;
    "requeue 77")
        [ -e "$SLURM/refuses" ] && { echo "Requested operation is disabled" >&2; exit 1; }
        echo waits > "$SLURM/state"
        kill -TERM "$PPID" ;;
    "update JobId=77")
        [ "$(cat "$SLURM/state")" = runs ] && { echo "Job is no longer pending" >&2; exit 1; }
        # A controller that is busy with the end of the job.
        [ -e "$SLURM/once" ] || { touch "$SLURM/once"; exit 1; }
        echo "${3#ExcNodeList=}" > "$SLURM/excluded" ;;
esac
"""
SRUN = """#!/bin/bash
while [ "$1" != bash ]; do shift; done
exec "$@"
"""


class Slurm:
    """A cluster, and one job of it."""

    def __init__(self, folder: Path, job: str, nodes: tuple[str, ...] = ("n1", "n2", "n3")) -> None:
        self.folder, self.nodes = folder, nodes
        self.logs, self.state = folder / "logs", folder / "slurm"
        (folder / "bin").mkdir()
        self.state.mkdir()
        (self.state / "excluded").write_text("(null)\n")
        for name, text in (("scontrol", SCONTROL), ("srun", SRUN), ("whystuck", PASS_ON)):
            path = folder / "bin" / name
            path.write_text(text)
            path.chmod(0o755)
        self.script = folder / "job.sh"
        self.script.write_text(make_script("slurm", ("bash", "-c", job)))
        self.starts: list[str] = []

    def list_excluded(self) -> list[str]:
        """The nodes that the job does not want."""
        text = (self.state / "excluded").read_text().strip()
        return [] if text == "(null)" else text.split(",")

    def start(self, **variables: str) -> subprocess.Popen[str]:
        """Start the script on the first node that is not excluded."""
        node = next(one for one in self.nodes if one not in self.list_excluded())
        (self.state / "state").write_text("runs")
        environment = {
            "PATH": f"{self.folder}/bin{os.pathsep}{os.environ['PATH']}", "SLURM": str(self.state),
            "SLURM_JOB_ID": JOB_ID, "SLURM_NNODES": "1", "SLURM_JOB_NODELIST": node,
            "SLURM_RESTART_COUNT": str(len(self.starts)), "SLURMD_NODENAME": node,
            "HOSTNAME": node, "LOG_DIR": str(self.logs), **variables,
        }  # fmt: skip
        self.starts.append(node)
        return subprocess.Popen(
            ["bash", str(self.script)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
        )  # fmt: skip

    def run(self, **variables: str) -> tuple[int, str]:
        """Start the job, and again for as long as it is in the queue; return code and output."""
        said = ""
        while True:
            process = self.start(**variables)
            said += process.communicate(timeout=60)[0]
            if (self.state / "state").read_text() != "waits\n":
                return process.returncode, said

    def find_bad(self, node: str) -> str:
        """Return shell that puts a node on the list, as ``whystuck run --check`` on it does."""
        entry = ExcludedNode(node=node, code="N401", reason="", slurm=node)
        root = self.folder / "made" / node
        write_excluded(root, entry)
        return f"mkdir -p {self.logs}/whystuck; cp -r {root}/exclude {self.logs}/whystuck"


BAD_FIRST = 'if [ "$HOSTNAME" = n1 ]; then {bad}; exit 120; fi; echo "trains on $HOSTNAME"'


def test_a_job_with_a_bad_node_goes_back_into_the_queue_without_it(tmp_path: Path) -> None:
    slurm = Slurm(tmp_path, "true")
    job = BAD_FIRST.format(bad=slurm.find_bad("n1"))
    slurm.script.write_text(make_script("slurm", ("bash", "-c", job)))
    code, said = slurm.run()

    assert code == 0, said
    assert slurm.starts == ["n1", "n2"]
    assert slurm.list_excluded() == ["n1"]
    assert "back in the queue, without n1\n" in said
    assert "trains on n2\n" in said
    assert {path.name for path in slurm.logs.glob("start-*.sh")} == {"start-0.sh", "start-1.sh"}


def test_nodes_that_the_user_leaves_out_stay_out(tmp_path: Path) -> None:
    slurm = Slurm(tmp_path, "true", ("n7", "n1", "n2"))
    (slurm.state / "excluded").write_text("n7,n8\n")
    job = BAD_FIRST.format(bad=slurm.find_bad("n1"))
    slurm.script.write_text(make_script("slurm", ("bash", "-c", job)))
    slurm.run()

    assert slurm.list_excluded() == ["n7", "n8", "n1"]
    assert slurm.starts == ["n1", "n2"]


@pytest.mark.parametrize(("most", "starts"), [("0", 1), ("1", 2)])
def test_a_job_goes_back_a_limited_number_of_times(tmp_path: Path, most: str, starts: int) -> None:
    # GIVEN a job that finds each of its nodes bad
    slurm = Slurm(tmp_path, "true")
    bad = slurm.find_bad("n1").replace("n1", "$HOSTNAME")
    slurm.find_bad("n2")
    job = f"{bad}; exit 120"
    slurm.script.write_text(make_script("slurm", ("bash", "-c", job)))
    code, said = slurm.run(MAX_REQUEUES=most)

    assert code == 120
    assert len(slurm.starts) == starts
    assert f"next time: sbatch --exclude={slurm.starts[-1]} ..." in said


def test_a_failure_without_a_bad_node_stays_one(tmp_path: Path) -> None:
    slurm = Slurm(tmp_path, "exit 7")
    code, _ = slurm.run()

    assert (code, slurm.starts) == (7, ["n1"])
    assert "requeue" not in (slurm.state / "calls").read_text()


def test_nodes_that_were_bad_before_are_no_reason_to_start_again(tmp_path: Path) -> None:
    # GIVEN a list of a start before, and a job that fails by itself on another node
    slurm = Slurm(tmp_path, "exit 7", ("n2",))
    subprocess.run(["sh", "-c", slurm.find_bad("n1")], check=True)
    code, _ = slurm.run()

    assert (code, slurm.starts) == (7, ["n2"])


def test_a_job_that_was_told_to_end_does_not_come_back(tmp_path: Path) -> None:
    slurm = Slurm(tmp_path, "true")
    job = f"trap '{slurm.find_bad('n1')}; exit 9' TERM; echo up; sleep 60 & wait"
    slurm.script.write_text(make_script("slurm", ("bash", "-c", job)))
    process = slurm.start()
    assert process.stdout is not None
    for line in process.stdout:
        if line == "up\n":
            break
    process.terminate()
    process.communicate(timeout=50)

    assert process.returncode == 9
    assert (slurm.state / "state").read_text() == "runs"


def test_where_slurm_refuses_the_list_is_told_and_the_code_stays(tmp_path: Path) -> None:
    slurm = Slurm(tmp_path, "true")
    (slurm.state / "refuses").touch()
    job = BAD_FIRST.format(bad=slurm.find_bad("n1"))
    slurm.script.write_text(make_script("slurm", ("bash", "-c", job)))
    code, said = slurm.run()

    assert (code, slurm.starts) == (120, ["n1"])
    assert "next time: sbatch --exclude=n1 ..." in said


POLICY = """
checks = ["disk"]
[disk]
test_mb = 1
min_free_mb = 0
min_free_share = 0.0
min_read_mb_per_s = 0
min_write_mb_per_s = 0
max_sync_ms = 1e9
min_files_per_s = 0
"""


@pytest.mark.slow
def test_whystuck_itself_finds_the_bad_node_and_the_job_runs_on_another(tmp_path: Path) -> None:
    # GIVEN the script as it is made, with the checks that whystuck makes, and a disk that is full
    slurm = Slurm(tmp_path, "echo trains on $HOSTNAME")
    (tmp_path / "bin/whystuck").write_text(f'#!/bin/sh\nexec {" ".join(WHYSTUCK)} "$@"\n')
    text = slurm.script.read_text()
    checked = f'run --check --check-policy "{tmp_path}/$HOST.toml" '
    slurm.script.write_text(text.replace("run --check ", checked))
    with small_disk("size=64k", is_full=True) as disk:
        (tmp_path / "n1.toml").write_text(f'{POLICY}paths = ["{disk}"]\n')
        (tmp_path / "n2.toml").write_text(POLICY)
        code, said = slurm.run()

    assert code == 0, said
    assert slurm.starts == ["n1", "n2"]
    assert slurm.list_excluded() == ["n1"]
    assert "N401" in said
    assert "trains on n2\n" in said


def test_the_list_names_nodes_as_slurm_does(tmp_path: Path) -> None:
    entry = ExcludedNode(node="host-1.example", code="N401", reason="", slurm="n1")
    write_excluded(tmp_path, entry)
    write_excluded(tmp_path, ExcludedNode(node="n2.example", code="C208", reason=""))

    assert (tmp_path / "exclude/slurm.txt").read_text() == "--exclude=n1,n2\n"
    assert json.loads((tmp_path / "exclude/n2.example.json").read_text())["code"] == "C208"
