"""Whom a rank sends to or receives from: as the probe's thread knows it."""

from __future__ import annotations

from pathlib import Path

from whystuck.collect.recorder import RecorderError, ask_probe
from whystuck.collect.target import Target
from whystuck.evidence import records


def collect_peers(target: Target, folder: Path, *, probe_answers: bool) -> None:
    """Write ``peers.json`` of a rank; what cannot be known is left out.

    Args:
        target: The rank.
        folder: Where the file goes.
        probe_answers: Whether the probe's thread has just answered; it is not asked otherwise.
    """
    probe = target.artifact("probe")
    if probe is None or not probe_answers:
        return
    try:
        ask_probe(probe, "peers", folder / records.PEERS_FILE)
    except RecorderError:
        return
