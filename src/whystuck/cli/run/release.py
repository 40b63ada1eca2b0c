"""``whystuck release``: let a scene go that ``whystuck run --hold`` keeps."""

from __future__ import annotations

from pathlib import Path

import click

from whystuck.launch.hold_files import release_scene
from whystuck.launch.running import choose_running_job, find_job_of


@click.command()
@click.argument("job", required=False, metavar="[JOB]")
def release(*, job: str | None) -> int:
    """Let a job go on to its end whose scene is kept.

    JOB is its id, the pid of `whystuck run`, or its evidence folder; the only job of this node when
    left out. `touch release` in the evidence folder does the same.

    whystuck release
    """
    is_folder = job is not None and Path(job).is_dir()
    found = find_job_of(Path(job)) if job is not None and is_folder else choose_running_job(job)
    record = release_scene(found)
    click.echo(f"released: {record.what or found.title}", err=True)
    return 0
