"""The files that torch and NCCL write themselves: dumps of recorders, and NCCL's lines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from whystuck.collect.processes.target import Target
from whystuck.launch.environment.coredumps import coredump_environment
from whystuck.launch.environment.nccl_check import list_warnings
from whystuck.launch.incidents.folder import EvidenceFolder
from whystuck.launch.incidents.nccl_logs import NcclLogs, list_ranks
from whystuck.launch.incidents.torch_dumps import TorchDumps
from whystuck.launch.options import RunOptions
from whystuck.launch.processes.rank_table import RankTable


class TorchFiles:
    """Where they go in one round on this node, and keeping them."""

    def __init__(
        self,
        evidence: EvidenceFolder,
        options: RunOptions,
        table: RankTable,
        say: Callable[[str], None],
    ) -> None:
        """Decide on the variables, and make the places; tell what the environment has wrong."""
        self._table = table
        self._dumps = TorchDumps(evidence, options.recorder, say)
        self._nccl = NcclLogs(evidence, options.nccl, os.environ, say)
        self.variables = self._dumps.variables | self._nccl.variables
        if options.gpu_coredump:
            self.variables |= coredump_environment(os.environ, table.job_dir)
        for warning in list_warnings(os.environ, options.nccl):
            say(f"whystuck: warning: {warning}\n")

    def start(self) -> None:
        """Begin to watch them, once the command runs."""
        self._nccl.start()

    def keep(self, incident: Path, before_ns: int | None = None) -> bool:
        """Take the dumps of this round to an incident; see `TorchDumps.keep`."""
        return self._dumps.keep(incident, before_ns)

    def keep_lines(self, incident: Path, targets: Iterable[Target]) -> None:
        """Copy what NCCL said in some processes to an incident, to the folders of their ranks."""
        wanted = {target.pid: target.rank for target in targets}
        self._nccl.keep(incident, wanted, list_ranks(self._table))

    def close(self) -> None:
        """Leave everything where it is looked for after the round."""
        self._dumps.close()
        self._nccl.close(list_ranks(self._table))
