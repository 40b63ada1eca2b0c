"""The page on security names the limits that the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from whystuck.agent.connections import ConnectionLimits
from whystuck.agent.metrics.sinks import http_requests
from whystuck.agent.rpc import server
from whystuck.cli.offline import pack
from whystuck.collect import stores
from whystuck.collect.node import devices, ras
from whystuck.diagnose.logs import story, view
from whystuck.evidence import archive
from whystuck.guarded import url_stores, user_process
from whystuck.launch import front
from whystuck.launch.incidents import copies, late, staging
from whystuck.launch.output import logfile
from whystuck.launch.processes import sentinel
from whystuck.launch.switch import switching
from whystuck.parse.logs import reader
from whystuck.probe import breaker, descriptors
from whystuck.read import budget, content, log_files, run_listing, tree

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs/security.md").read_text().split())
MIB = 1 << 20

# What the page says, with the number in braces, and what the code has.
LIMITS: list[tuple[str, float]] = [
    ("command up to {} s after it has stopped `whystuck run`", sentinel._FRONT_LOOK_S),
    ("exit code never waits longer than {} s for a sign of life", front.SILENT_S),
    ("and {} s for a report in all", front._LONGEST_S),
    ("ends of the logs that are kept in memory ({} KiB each)", logfile.TAIL_BYTES >> 10),
    ("number of its own for the incident, which is asked for for {} s", late._ANSWER_S),
    ("A sentinel that is stopped is done without after {} s", sentinel._SILENT_S),
    ("copied when the server answers within {} minutes", copies.FINISH_TIMEOUT_S / 60),
    ("Budget of a probe: {} % of a core", breaker.MAX_CPU_SHARE * 100),
    ("% of a core and {} MB a rank", breaker.MAX_BYTES / MIB),
    ("{} s, which is what a minute may use", breaker.MAX_EXCESS_S),
    ("first looks up to {} times less often", breaker._MAX_FACTOR),
    ("the probe keeps open lie at {} and above", descriptors.HIGH),
    ("may open less than {} files has no probe", descriptors.MIN_LIMIT),
    ("where a rank listens for it: for at most {} s", ras.DEADLINE_S),
    ("for at most 5 s and {} MiB, in a thread", ras.MAX_BYTES / MIB),
    ("the state of the devices, for at most {} s", devices.DEADLINE_S),
    ("beyond the end and more than {} members", archive.MAX_MEMBERS),
    ("packed files are unpacked to {} MiB or", content.FREE_BYTES / MIB),
    ("MiB or {} times their size, and", content._MOST_RATIO),
    ("nothing but errors the first {} lines", reader.MAX_LOOKS),
    ("in logs the earliest {} of a kind", story.MAX_CASES),
    ("compared, no more than {} pairs", view._MOST_COMPARED),
    ("the newest {} rounds and incidents", run_listing.MAX_RECORDS),
    ("incidents are looked at, {} MiB of sources are kept", tree.MAX_SOURCE_BYTES / MIB),
    ("(`read/budget.py`): {} files of each kind", budget.MAX_FILES),
    ("times their size, {} MiB come out of all packed logs", log_files._ALL_FREE_BYTES / MIB),
    ("packed logs, and {} GiB out of all dumps", content._ALL_FREE_BYTES >> 30),
    ("no new file is begun after {} s of CPU", budget._BASE_S),
    ("s of CPU and {} s more for each MB", budget._S_PER_MB),
    ("A server of HTTP may list {} folders", url_stores._MAX_FOLDERS),
    ("folders, {} levels deep", url_stores._MAX_DEPTH),
    ("levels deep, in {} s", url_stores._MAX_LIST_S),
    ("on pages of {} MiB", url_stores._MAX_PAGE_BYTES / MIB),
    ("one that sends less than {} kB/s", stores._LEAST_BYTES_PER_S / 1000),
    ("kB/s for {} s is left", stores._PATIENCE_S),
    ("`whystuck pack` takes {} MiB of each file", pack._MAX_FILE_BYTES / MIB),
    ("of each file and {} MiB in all", pack._MAX_BYTES / MIB),
    ("A file of `--switch-file` may have {} KiB", switching.MAX_BYTES >> 10),
    ("may come in has {} s from the accept", ConnectionLimits(1, 1).stranger_s),
    ("may come in has {} s from the accept", server.RpcLimits().read_s),
    ("large ones (above {} KiB)", server._LARGE_BYTES >> 10),
    ("not read is dropped after {} s (metrics)", http_requests.ANSWER_S),
    ("(metrics) or {} s. 250", server.RpcLimits().write_s),
    ("file system of the user's, is killed after {} s", user_process.TIMEOUT_S),
]
NUMBER = r"(a million|[\d.,]*\d)"


@pytest.mark.parametrize(("sentence", "value"), LIMITS, ids=[one for one, _ in LIMITS])
def test_limit_is_that_of_the_code(sentence: str, value: float) -> None:
    before, after = map(re.escape, sentence.split("{}"))

    found = re.findall(f"{before}{NUMBER}{after}", PAGE)

    assert found, "the page says it in other words"
    told = {1e6 if one == "a million" else float(one.replace(",", "")) for one in found}
    assert told == {value}


def test_folder_of_the_stage_has_the_name_that_is_told() -> None:
    assert f"`{staging.PREFIX}UID-…`" in PAGE


@pytest.mark.parametrize("name", ["SECURITY.md", "docs/security.md"])
def test_files_that_are_named_are_there(name: str) -> None:
    text = (ROOT / name).read_text()

    for path in re.findall(r"`((?:tests|packaging|read|agent)/[\w/.]*)`", text):
        places = (ROOT / path, ROOT / "src/whystuck" / path)
        assert any(place.exists() for place in places), path
