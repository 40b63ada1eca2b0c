"""From a path on disk to one `Evidence`: finds the files, hands their bytes to parsers.

Files that are no evidence are passed over. Files that are, but cannot be read, become gaps.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from whystuck.evidence import records
from whystuck.evidence.finding import Gap
from whystuck.evidence.live import StackSample
from whystuck.evidence.model import Evidence
from whystuck.evidence.nodes.records import NODE_FILES
from whystuck.evidence.records import IncidentRecord
from whystuck.guarded.evidence_files import forget_archives, is_there, look_at
from whystuck.parse import records as parse_records
from whystuck.parse.boot_check import is_boot_check
from whystuck.parse.errors import ParseError
from whystuck.parse.logs.compiled import LogTables
from whystuck.parse.ras import is_whole_answer
from whystuck.parse.stacks import python_stacks
from whystuck.read import log_files, naming, op_log_files
from whystuck.read.assembly import assemble
from whystuck.read.budget import Budget, Deadline
from whystuck.read.collected import (
    FOREIGN_READERS,
    OWN_READERS,
    Choice,
    Collected,
)
from whystuck.read.content import read_content, read_head, share_free, strip_packed_suffix
from whystuck.read.dump_files import (
    FREE_BYTES,
    WHAT,
    DumpFile,
    RankFiles,
    read_dump_files,
)
from whystuck.read.pool import Progress
from whystuck.read.sniffing import LOG_KINDS, STACK_KINDS, Kind, sniff
from whystuck.read.traces.detection import WHAT as TRACE_WHAT
from whystuck.read.traces.detection import find_trace
from whystuck.read.walking import Origin, Origins, explain_odd, is_link_to_file, list_files

_WHAT = {
    Kind.FLIGHT_RECORDER: WHAT,
    Kind.SPY_JSON: "stacks",
    Kind.SPY_TEXT: "stacks",
    Kind.FAULTHANDLER: "stacks",
    Kind.FATAL: "fatal stack",
    Kind.OP_LOG: op_log_files.WHAT,
    Kind.MARKS: op_log_files.MARKS_WHAT,
    Kind.LOG: log_files.WHAT,
    Kind.TRACE: TRACE_WHAT,
    Kind.RAS: "answer of NCCL RAS",
    Kind.NCCL_LOG: "log of NCCL's inspector",
    Kind.BOOT_CHECK: "boot check",
}
# Sources of all ranks: a few files of each are kept.
MAX_SOURCE_BYTES = 64 << 20


def read_tree(
    roots: list[Path],
    base: Path,
    incident: IncidentRecord | None,
    progress: Progress | None = None,
    choice: Choice | None = None,
    replaced: Collection[Path] = (),
) -> Evidence | None:
    """Read all evidence below some files and folders.

    Args:
        roots: Files and folders to read.
        base: What citations are relative to.
        incident: Why the evidence was taken, when known.
        progress: Called while dumps, and then logs, are read, with what is done and all of it.
        choice: What is read; everything when left out.
        replaced: Files that are passed over, as others tell the same and more.

    Returns:
        The evidence, or None when nothing below the roots is readable evidence.
    """
    forget_archives()
    found = Collected(choice or Choice())
    prefix = found.choice.prefix
    odd: list[Path] = []
    listed = (path for root in roots for path in list_files(root, found.gaps, odd))
    paths = [path for path in listed if path not in replaced]
    found.budget = Budget(Deadline(paths))
    ranks = naming.find_ranks([*paths, *odd])
    if prefix:
        ranks = {path: naming.find_prefixed_rank(path.name, prefix) for path in [*paths, *odd]}
        paths = [path for path in paths if ranks[path] is not None]
    old = naming.find_old_attempts(paths)
    origins = Origins(base, found.choice.home)
    for folder in sorted(set(old.values())):
        found.gaps.append(Gap(None, folder.name, "an attempt before the last one is passed over"))
    found.gaps += _list_odd(odd, ranks, origins)
    for path in paths:
        if path not in old:
            origin = origins.find(path, ranks[path])
            _read_in_time(path, replace(origin, rank=ranks[path]) if prefix else origin, found)
    _read_dumps(found, progress)
    _read_logs(found, progress)
    _read_traces(found, progress)
    _read_op_logs(found)
    found.gaps += found.budget.list_gaps()
    if not found.files:
        return None
    return assemble(found, incident)


def _list_odd(
    paths: Iterable[Path], ranks: Mapping[Path, int | None], origins: Origins
) -> Iterator[Gap]:
    """Tell of what is named as that of a rank, and no file: to open a pipe may take for ever."""
    for path in paths:
        if (rank := ranks.get(path)) is not None or is_link_to_file(path):
            name = origins.find(path, rank).artifact
            yield Gap(rank, path.name, f"{name}: {explain_odd(path)}")


def _read_in_time(path: Path, origin: Origin, found: Collected) -> None:
    if found.budget.deadline.is_over:
        found.budget.leave_out("file")
    else:
        _read_file(path, origin, found)


def _read_file(path: Path, origin: Origin, found: Collected) -> None:
    if found.choice.only_logs:
        _read_log_file(path, origin, found)
        return
    if path.name == records.SOURCES_INDEX_FILE and path.parent.name == records.SOURCES_DIR:
        if found.budget.admit("sources"):
            _read_sources(path, found)
        return
    reader = OWN_READERS.get(path.name)
    what = path.name
    file = found.choice.targets.get(path, path)
    budget = found.budget
    try:
        if reader is not None:
            is_whose = origin.rank is not None or path.name in {records.GAPS_FILE, *NODE_FILES}
            if is_whose and budget.admit(what):
                reader(read_content(file, free=budget.free), origin, found)
                _count(origin, found)
            return
        head = read_head(file)
        kind = sniff(strip_packed_suffix(path.name), head) or find_trace(file, budget.free)
        if kind is None:
            return
        what = _WHAT[kind]
        if budget.admit(what):
            _read_kind(kind, file, head, origin, found)
            _count(origin, found)
    except ParseError as error:
        found.gaps.append(Gap(origin.rank, what, f"{origin.artifact}: {error.message}"))
    except OSError as error:
        reason = error.strerror or str(error)
        found.gaps.append(Gap(origin.rank, what, f"{origin.artifact}: {reason}"))


def _read_log_file(path: Path, origin: Origin, found: Collected) -> None:
    """Read a log, or an answer of RAS that was pasted, and pass over anything else."""
    if path.name in OWN_READERS or path.name == records.SOURCES_INDEX_FILE:
        return
    file, budget = found.choice.targets.get(path, path), found.budget
    try:
        head = read_head(file)
        kind = sniff(strip_packed_suffix(path.name), head)
        kind = Kind.LOG if kind in LOG_KINDS else kind
        if kind in {Kind.LOG, Kind.RAS, Kind.BOOT_CHECK} and budget.admit(_WHAT[kind]):
            _read_kind(kind, file, head, origin, found)
            _count(origin, found)
    except (ParseError, OSError) as error:
        reason = error.message if isinstance(error, ParseError) else error.strerror or str(error)
        found.gaps.append(Gap(origin.rank, _WHAT[Kind.LOG], f"{origin.artifact}: {reason}"))


def _count(origin: Origin, found: Collected) -> None:
    found.files += 1
    if origin.rank is not None and origin.node:
        found.node_by_rank[origin.rank] = origin.node


def _read_text(path: Path, found: Collected) -> str:
    return read_content(path, free=found.budget.free).decode("utf-8", errors="replace")


def _read_kind(kind: Kind, path: Path, head: bytes, origin: Origin, found: Collected) -> None:
    rank = origin.rank
    if kind is Kind.RAS and not is_whole_answer(read_content(path, free=found.budget.free)):
        # Part of an answer, or one with other things around it, is read as logs are.
        kind = Kind.LOG
    if kind is Kind.BOOT_CHECK and not is_boot_check(read_content(path, free=found.budget.free)):
        kind = Kind.LOG  # a job was started behind it, and wrote there, too
    is_of_one = bool(origin.node) or origin.worker is not None or naming.says_rank(path)
    if kind is Kind.LOG or (kind in STACK_KINDS and not (is_of_one and rank is not None)):
        # A number in the name of a log may be anything; what is in it tells more.
        own = rank if origin.node else None
        status = look_at(path)
        data = found.keep_log(head, status.size)
        log = log_files.LogPath(path, origin.artifact, own, origin.node, status, data)
        found.pending_logs.append(log)
        return
    if kind in (Kind.OP_LOG, Kind.MARKS):
        # A number in the name of a log is that of a process.
        own = rank if origin.node else None
        pending = found.pending_ops if kind is Kind.OP_LOG else found.pending_marks
        pending.append(op_log_files.OpLogFile(path, origin.artifact, own))
        return
    if kind is Kind.TRACE:
        found.pending_traces.append((path, origin))
        return
    if kind in FOREIGN_READERS:
        FOREIGN_READERS[kind](read_content(path, free=found.budget.free), origin, found)
        return
    if rank is None:
        raise ParseError("which rank it belongs to cannot be told: no number in the file name")
    if kind is Kind.FLIGHT_RECORDER:
        found.pending_dumps.append((path, origin))
    elif kind is Kind.FATAL:
        found.fatals.append(
            python_stacks.parse_fatal(_read_text(path, found), rank=rank, artifact=origin.artifact)
        )
    else:
        found.stacks.append(_read_stacks(kind, path, origin, rank, found))


def _read_stacks(
    kind: Kind, path: Path, origin: Origin, rank: int, found: Collected
) -> StackSample:
    worker, artifact = origin.worker is not None, origin.artifact
    number = re.search(r"stacks-(\d+)", path.name)
    index = int(number[1]) if number else 0
    if kind is Kind.SPY_JSON:
        data = read_content(path, free=found.budget.free)
        return python_stacks.parse_spy_json(
            data, rank=rank, worker=worker, index=index, artifact=artifact
        )
    text = _read_text(path, found)
    if kind is Kind.SPY_TEXT:
        return python_stacks.parse_spy_text(text, rank=rank, index=index, artifact=artifact)
    return python_stacks.parse_faulthandler(text, rank=rank, worker=worker, artifact=artifact)


def _read_dumps(found: Collected, progress: Progress | None) -> None:
    """Read flight-recorder dumps last: the members of groups come from the beats."""
    members = {beat.rank: dict(beat.groups) for beat in found.beats}
    free = share_free(len(found.pending_dumps), FREE_BYTES)
    files: dict[int, list[DumpFile]] = {}
    others: dict[int, list[DumpFile]] = {}
    # The pickle of a rank holds frames, its JSON does not: the pickle comes first.
    for path, origin in sorted(found.pending_dumps, key=lambda item: _is_json(item[0])):
        rank = -1 if origin.rank is None else origin.rank
        file = DumpFile(path, origin.artifact, members.get(rank), free)
        kind = others if path.name == records.FR_GLOO_FILE else files
        kind.setdefault(rank, []).append(file)
    ranks = [
        RankFiles(rank, tuple(files.get(rank, ())), tuple(others.get(rank, ())))
        for rank in files.keys() | others.keys()
    ]
    result = read_dump_files(ranks, progress=progress, deadline=found.budget.deadline)
    found.tables = result.tables
    found.gaps += result.gaps
    found.budget.leave_out(WHAT, result.late)


def _read_logs(found: Collected, progress: Progress | None) -> None:
    if not found.pending_logs:
        return
    signatures = found.choice.signatures
    tables = LogTables(signatures) if signatures else None
    read = log_files.read_logs(
        found.pending_logs, tables, progress=progress, deadline=found.budget.deadline
    )
    found.budget.leave_out(log_files.WHAT, read.late)
    table = read.table
    found.logs, found.world_of_logs = table.logs, table.world_size
    found.exceptions += table.exceptions
    found.exits += table.exits
    found.fatals += table.fatals
    found.ras += table.ras
    found.checks += table.checks
    found.stacks += table.stacks
    found.sources = {**table.sources, **found.sources}
    found.node_by_rank |= {**table.node_of_process, **found.node_by_rank}
    found.gaps += read.gaps
    for file in table.logs.files:
        for rank, node in file.node_by_rank.items():
            found.node_by_rank.setdefault(rank, node)


def _read_op_logs(found: Collected) -> None:
    if not (found.pending_ops or found.pending_marks):
        return
    found.ops, found.marks, gaps = op_log_files.read_op_logs(
        found.pending_ops,
        found.pending_marks,
        found.budget,
        only_used=found.choice.only_used,
    )
    found.gaps += gaps


def _read_traces(found: Collected, progress: Progress | None) -> None:
    """Read Kineto traces, in processes of their own where there are many."""
    if not found.pending_traces:
        return
    from whystuck.read.traces.inputs import TraceInput, guess_ranks
    from whystuck.read.traces.local import LocalEngine
    from whystuck.read.traces.plan import ReadPlan
    from whystuck.read.traces.reading import read_traces

    named = guess_ranks([path for path, _ in found.pending_traces])
    inputs = []
    for path, origin in found.pending_traces:
        # A number in the name of a trace is often that of a process.
        rank = origin.rank if origin.node and origin.rank is not None else named.get(path, -1)
        size = look_at(path).size if is_there(path) else 0
        inputs.append(TraceInput(str(path), origin.artifact, size, rank, origin.node, is_sure=True))
    plan = ReadPlan(engine=LocalEngine(deadline=found.budget.deadline))
    read = read_traces(inputs, plan, progress=progress)
    found.budget.is_spent |= read.is_partial
    found.traces = read.summary
    found.gaps += read.gaps


def _is_json(path: Path) -> bool:
    return strip_packed_suffix(path.name).endswith(".json")


def _read_sources(index: Path, found: Collected) -> None:
    try:
        files = parse_records.parse_source_index(read_content(index))
        for path, name in files.items():
            # A name that leads out of the folder is not followed.
            if Path(name).name == name and is_there(index.parent / name):
                found.source_size -= len(found.sources.pop(path, ""))
                left = MAX_SOURCE_BYTES - found.source_size
                data = read_content(index.parent / name, left, free=found.budget.free)
                found.sources[path] = data.decode("utf-8", errors="replace")
                found.source_size += len(found.sources[path])
    except (ParseError, OSError) as error:
        found.gaps.append(Gap(None, "sources", str(error)))
