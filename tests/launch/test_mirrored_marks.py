"""Marks of a real job, shown to a collector of ITT such as profilers have."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from tests.launch.running import END, run_whystuck, torchrun

# What libittnotify looks for in the library that it is led to.
COLLECTOR = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef struct { unsigned long long parts[3]; } identity;
static void tell(const char *what, const char *text) {
    char path[4096];
    snprintf(path, sizeof path, "%s-%d", getenv("LISTENED"), getpid());
    FILE *file = fopen(path, "a");
    if (file) { fprintf(file, "%s|%s\n", what, text); fclose(file); }
}
const char *__itt_api_version(void) { return "test"; }
void *__itt_domain_create(const char *name) {
    static struct { int flags; const char *name; void *more[8]; } domain = {1};
    domain.name = name;
    return &domain;
}
void *__itt_string_handle_create(const char *name) {
    const char **handle = calloc(8, sizeof *handle);
    if (handle) *handle = strdup(name);
    return handle;
}
void __itt_task_begin(void *domain, identity a, identity b, const char **handle) {
    tell("begin", *handle);
}
void __itt_task_end(void *domain) { tell("end", ""); }
"""

TRAIN = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(torch.ones(20, 4), batch_size=2):
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def collector(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("itt")
    source, library = folder / "collector.c", folder / "collector.so"
    source.write_text(COLLECTOR)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def listen(folder: Path, collector: Path, *options: str) -> list[Counter[str]]:
    """Run a job of two ranks; return how often each range was begun and ended, rank by rank."""
    script = folder / "train.py"
    script.write_text(TRAIN + END)
    done = run_whystuck(
        "run", "--no-agent", "--evidence", "ev", *options, "--", *torchrun(2, script),
        cwd=folder,
        environment={
            "INTEL_LIBITTNOTIFY64": str(collector),
            "INTEL_ITTNOTIFY_GROUPS": "all",
            "LISTENED": str(folder / "heard"),
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    return [Counter(path.read_text().splitlines()) for path in sorted(folder.glob("heard-*"))]


def test_marks_are_shown_to_itt_where_that_is_asked_for(tmp_path: Path, collector: Path) -> None:
    heard = listen(tmp_path, collector, "--marks", "--mirror-marks", "itt")

    assert len(heard) == 2
    for one in heard:
        ended = one.pop("end|")
        assert one.pop("begin|dataloader: iter") == 1
        assert one.pop("begin|dataloader: next") >= 10
        assert dict(one) == {
            "begin|forward: DistributedDataParallel": 10,
            "begin|backward: backward": 10,
            "begin|optimizer: SGD": 10,
            "begin|step": 10,
        }
        # All ranges are over, but for the step that would be next.
        assert ended == 1 + 11 + 4 * 10


def test_marks_are_shown_to_nobody_where_that_is_not_asked_for(
    tmp_path: Path, collector: Path
) -> None:
    assert listen(tmp_path, collector, "--marks") == []


def test_what_nobody_shows_is_an_error_of_the_command(tmp_path: Path) -> None:
    done = run_whystuck("run", "--mirror-marks", "perfetto", "--", "true", cwd=tmp_path)

    assert done.returncode == 2
    assert b"'perfetto' is not one of 'nvtx', 'itt', 'mstx'" in done.stderr
