"""What an incident of many ranks costs a shared file system, and that it keeps no job waiting.

    python bench/shared_files.py            # 1,024 simulated ranks, each request takes 20 ms
    python bench/shared_files.py --quick    # 32 of them
    python bench/shared_files.py --before 8 # also as plain files, for so many ranks

The ranks are forks that speak as a probe does (`tests/launch/simulated.py`); the evidence lies on a
file system that a program serves, counts and slows down (`tests/shared_disk.py`, needs root and
/dev/fuse). The process that started the ranks prints lines all the time: what it says at its end is
for how long a line was held up. Fails when an incident asks more than LIMIT times on names and
attributes, when a rank asks anything, or when the job ends with another code or hears no signal.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.launch.simulated import simulated_job, wait_for
from tests.shared_disk import SharedDisk, shared_disk

# Some 50, and what is asked again while much is written slowly.
LIMIT = 100
WAIT_S = 3600.0


def measure(disk: SharedDisk, place: Path, ranks: int, form: str) -> str:
    """Let a job of so many ranks stall; print what that asked; return what is wrong."""
    backing = disk.path.with_name("backing") / "ev"
    variables = {"WHYSTUCK_EVIDENCE_FORM": form}
    with simulated_job(place, disk.path / "ev", ranks, **variables) as job:
        wait_for((backing / "job.json").exists)
        wait_for((place / "started").exists, WAIT_S)
        time.sleep(5)
        own = job.list_pids()
        disk.counts.clear()
        began_s = time.monotonic()
        job.stall()
        wait_for(lambda: list(backing.glob("incidents/000/report.html")), WAIT_S)
        wait_for(lambda: list(backing.glob("incidents/000/incident.json")), WAIT_S)
        said_s = time.monotonic() - began_s
        time.sleep(1)
        of_incident, kinds = disk.count_metadata(), Counter[str]()
        of_ranks = sum(count for (pid, _), count in list(disk.counts.items()) if pid in own)
        for (_, kind), number in list(disk.counts.items()):
            kinds[kind] += number
        lines = job.count_lines()
        job.signal()
        wait_for(lambda: "GOT SIGUSR1" in job.output)
        wait_for(lambda: job.count_lines() > lines)
        disk.counts.clear()
        code = job.end(WAIT_S)
    longest_ms = job.read_longest_ms()
    size = sum(path.stat().st_size for path in backing.rglob("*") if path.is_file())
    print(
        f"{form:8} {ranks:5} ranks  incident: {of_incident:6} requests on names and attributes "
        f"({of_incident / ranks:.2f} a rank), {of_ranks} by ranks; end: {disk.count_metadata()}; "
        f"{size / 1e6:.1f} MB; report after {said_s:.0f} s; job held up {longest_ms:.1f} ms at most"
    )
    print(f"         {dict(kinds.most_common())}", flush=True)
    if code != 7:
        return f"the job ended with {code}"
    if of_ranks:
        return "ranks asked the server"
    return f"more than {LIMIT} requests" if form == "archive" and of_incident > LIMIT else ""


def main() -> int:
    """Measure, and return 1 when something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--delay-ms", type=float, default=20.0)
    parser.add_argument("--before", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    ranks = 32 if options.quick else options.ranks
    wanted = [(options.before, "files")] if options.before else []
    problems = []
    for count, form in [*wanted, (ranks, "archive")]:
        with (
            tempfile.TemporaryDirectory() as one,
            tempfile.TemporaryDirectory() as place,
            shared_disk(Path(one), options.delay_ms / 1000) as disk,
        ):
            problems.append(measure(disk, Path(place), count, form))
    for problem in filter(None, problems):
        print(f"FAILED: {problem}")
    return int(any(problems))


if __name__ == "__main__":
    sys.exit(main())
