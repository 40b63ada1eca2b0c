"""``whystuck schema``: the JSON schema of the report, for ``docs/report.schema.json``."""

from __future__ import annotations

import click

from whystuck.cli.stdout import write_stdout


@click.command(hidden=True)
def schema() -> int:
    """Print the JSON schema.

    It is published as docs/report.schema.json; a test fails when that file differs.
    """
    import json

    from whystuck.report.json import report_schema

    write_stdout(json.dumps(report_schema(), indent=2).encode() + b"\n")
    return 0
