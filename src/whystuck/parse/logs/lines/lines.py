"""One line of a log: its text, and what stands before it: when, who, where.

Launchers, log collectors and libraries each put something before a line, one outside the other:
``2026-04-02T05:44:10.1Z stderr F 3: [default3]:[rank3]: text``. They are taken off one by one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.evidence.ranks import MAX_RANK
from whystuck.parse.logs.lines.json_lines import MAX_PID, read_json
from whystuck.parse.logs.lines.label_forms import (
    FILE_RANK,
    LABEL,
    NUMBERED,
    find_name,
    name_label,
    read_number,
)
from whystuck.parse.logs.lines.line_forms import cut_bar, match_prefix, strip_quote
from whystuck.parse.logs.lines.own_prefixes import OwnPrefix
from whystuck.parse.logs.lines.times import ISO, Stamp, read_stamp
from whystuck.parse.logs.owners.names import is_hostlike, read_log_name

MAX_TEXT = 2000
# Prefixes inside each other; nobody has more.
_MAX_PREFIXES = 10
FAR = 64

_NAMED_AT = re.compile(rf"({ISO})")
# `(Worker_TP5 pid=88106)`, `(VllmWorker TP5 pid=88106)`: engines that serve models name ranks so,
# where they split nothing else.
_TENSOR_PARALLEL = re.compile(r"^(?:[A-Za-z]+[_ ]?)?TP(\d{1,4})$")
_NAMED_RANK = re.compile(r"^[Rr]ank_?(\d{1,6})$")  # `(rank6 pid=5126)`
_REPORT = re.compile(r"E[A-Z]\d{4}: \[PID: (\d{1,7})\] ")  # `EI0002: [PID: 5120] 2026-02-03-`
_ERROR_LEVEL = re.compile(r"ERROR|CRITICAL|FATAL")
_LETTERED = re.compile(r"(?:node|host|gpu|server|machine|worker|box)[-_.]?[a-z]$")
_COUNTED = re.compile(r"(?:[Rr](?:k|ank)?(?P<rank>\d{1,6})|(?:gpu|cuda)(?P<local>\d{1,3}))")
_RANKS = ("rank_number", "rank_word", "rank_said", "rank_field", "rank_mark")
_SEATED = ("seat_host", "kernel_host", "led_host", "card_host")


@dataclass(slots=True)
class LogLine:
    """A line without what stands before it.

    Attributes:
        text: The line without stamps, prefixes and colours.
        owner: The prefixes that name a writer, as they stand there: lines of one writer in a
            merged log have the same.
        rank: The global rank that a prefix names.
        member: The rank that torch names itself by, which counts inside a group of ranks.
        task: The number that srun or a like launcher puts before a line; mostly a rank.
        local: The local rank that a prefix names, -1 when none does.
        node: The host that a prefix names.
        pid: The process that a prefix names.
        device: The number of the device that a prefix names, -1 when none does.
        stamp: The first time in it.
        is_nccl: Whether it has the header of NCCL.
        is_kernel: Whether the kernel wrote it.
        is_agent: Whether torch's launcher wrote it.
        is_glog: Whether C++ of torch wrote it.
        is_error: Whether a logger says that it is an error.
        is_hooked: Whether it has the prefix that torch's hook gives to uncaught exceptions.
        is_described: Whether it is a row of the description of a pod, and so of no other writer.
        is_previous: Whether it is of a container that was started again since.
    """

    text: str
    owner: str = ""
    rank: int = UNKNOWN_RANK
    member: int = UNKNOWN_RANK
    task: int = UNKNOWN_RANK
    local: int = -1
    node: str = ""
    pid: int = 0
    stamp: Stamp | None = None
    is_nccl: bool = False
    is_kernel: bool = False
    is_agent: bool = False
    is_glog: bool = False
    is_hooked: bool = False
    is_error: bool = False
    is_described: bool = False
    is_previous: bool = False
    device: int = -1

    @property
    def writer(self) -> int:
        """The rank that a prefix names, or else the number that a launcher puts there."""
        return self.rank if self.rank != UNKNOWN_RANK else self.task

    @property
    def seat(self) -> int:
        """The same; a number of its own below -1 where only a local rank is known."""
        return -2 - self.local if self.writer == UNKNOWN_RANK and self.local >= 0 else self.writer


def parse_line(
    data: bytes, labels: frozenset[str] = frozenset(), own: Sequence[OwnPrefix] = ()
) -> LogLine:
    """Read a line.

    Args:
        data: The line, without its end and without colours.
        labels: Words that stand before lines of this log with a colon or a bar: hosts and
            containers.
        own: Prefixes of this log in forms that are not known.
    """
    raw = cut_bar(data).decode("utf-8", errors="replace").lstrip("\0").rstrip("\r")
    line = LogLine(strip_quote(raw) if raw[:1] == ">" else raw)
    if raw[:1] == "{" and (fields := read_json(line.text)):
        line = LogLine(**fields)
    for _ in range(_MAX_PREFIXES):
        if labels and _take_label(line, labels):
            continue
        match = match_prefix(line.text)
        if match is None:
            if own and _take_own(line, own):
                own = ()
                continue
            break
        line.text = line.text[match.end() :]
        _TAKERS[str(match.lastgroup)](line, match)
    if line.pid == 0 and line.text[:1] == "E" and (match := _REPORT.match(line.text)):
        line.pid = int(match[1])
    if line.stamp is None and line.text.find("-", 0, FAR) >= 0:
        found = _NAMED_AT.search(line.text, 0, FAR)
        line.stamp = read_stamp("iso", found[1]) if found else None
    return line


def _take_label(line: LogLine, labels: frozenset[str]) -> bool:
    match = NUMBERED.match(line.text)
    if match is not None and match[0] in labels:
        line.task = read_number(match)
        line.owner += match[0]
        line.text = line.text[match.end() :]
        return True
    match = LABEL.match(line.text)
    if match is None or name_label(match) not in labels:
        return False
    label = find_name(match)
    line.owner += match[0].strip()
    # A service without a number is no host; `node-b` is, and `R3` and `gpu3` are no hosts either.
    if counted := _COUNTED.fullmatch(label):
        line.task = int(counted["rank"] or line.task)
        line.local = int(counted["local"] or line.local)
    elif any(char.isdigit() for char in label) or _LETTERED.match(label):
        line.node = line.node or label
    line.text = line.text[match.end() :]
    return True


def _take_own(line: LogLine, own: Sequence[OwnPrefix]) -> bool:
    for prefix in own:
        if taken := prefix.read(line.text):
            line.task = taken.task if line.task == UNKNOWN_RANK else line.task
            line.local = taken.local if line.local < 0 else line.local
            line.node = line.node or taken.node
            line.owner += taken.owner
            line.text = line.text[taken.end :]
            return True
    return False


def _note_time(line: LogLine, style: str, text: str) -> None:
    if line.stamp is None or (line.stamp.lack == "boot" and style != "uptime"):
        line.stamp = read_stamp(style, text)


def _take_captured(line: LogLine, match: re.Match[str]) -> None:
    _note_time(line, "iso", match["captured_at"])
    if line.stamp is not None:
        line.stamp = replace(line.stamp, is_capture=True)


def _take_found(line: LogLine, match: re.Match[str]) -> None:
    file = match["found_file"] or ""
    take_file(line, file)
    line.owner += file


def take_file(line: LogLine, file: str) -> None:
    """Take what the path of the file tells in which a line was found."""
    told = FILE_RANK.search(file)
    if told and int(told[1]) <= MAX_RANK:
        line.task = int(told[1])
    elif (name := read_log_name(file)).local is not None and name.rank is None:
        line.local = name.local
        line.node = line.node or next((one for one in name.hosts if is_hostlike(one)), "")


def _take_time(line: LogLine, match: re.Match[str]) -> None:
    """Take off what is a time and nothing else."""
    form = str(match.lastgroup)
    _note_time(line, "iso" if form == "cri" else form, match[f"{form}_at"])


def _take_served(line: LogLine, match: re.Match[str]) -> None:
    _note_time(line, "iso", match["served_at"])
    line.task = int(match["served_rank"])
    line.owner += f"TP{line.task}"


def _take_system(line: LogLine, match: re.Match[str]) -> None:
    form = str(match.lastgroup)
    _note_time(line, "iso" if form == "journal" else form, match[f"{form}_at"])
    line.node = match[f"{form}_host"]
    line.is_kernel = " kernel:" in match[form]
    line.pid = int(match[f"{form}_pid"] or 0)


def _take_console(line: LogLine, match: re.Match[str]) -> None:
    _note_time(line, "uptime", match["console_at"])
    line.node = line.node or match["console_host"]
    line.is_kernel = True


def _take_gathered(line: LogLine, match: re.Match[str]) -> None:
    line.node = line.node or match["gathered_host"]


def _take_ctime(line: LogLine, match: re.Match[str]) -> None:
    _note_time(line, "ctime", match["ctime_at"])
    # What `dmesg -T` prints.
    line.is_kernel = match["ctime"].startswith("[")


def _take_uptime(line: LogLine, match: re.Match[str]) -> None:
    _note_time(line, "uptime", match["uptime_at"])
    line.is_kernel = True


def _take_facility(line: LogLine, _match: re.Match[str]) -> None:
    line.is_kernel = True


def _take_kmsg(line: LogLine, match: re.Match[str]) -> None:
    micros = int(match["kmsg_us"])
    line.stamp = line.stamp or Stamp(micros * 1000, 1000, "boot")
    line.is_kernel = True


def _take_glog(line: LogLine, match: re.Match[str]) -> None:
    _note_time(line, "glog", match["glog_at"])
    pid = int(match["glog_pid"] or "0")
    line.pid = line.pid or (pid if pid < MAX_PID else 0)
    line.is_agent = "torch/distributed/" in match[0]
    line.is_glog = True


def _take_bare_glog(line: LogLine, _match: re.Match[str]) -> None:
    line.is_glog = True


def _take_rank(line: LogLine, match: re.Match[str]) -> None:
    line.owner += match[0].strip()
    rank = int(next((match[name] for name in _RANKS if match[name]), MAX_RANK + 1))
    is_member = match[0].startswith("[Rank ") and (
        line.is_glog or match.string.startswith("Watchdog caught", match.end())
    )
    if rank > MAX_RANK:
        pass
    elif is_member:
        line.member = rank
    elif line.rank == UNKNOWN_RANK:
        line.rank = rank
    is_word = match["rank_field"] is None and match["rank_mark"] is None
    line.is_hooked = match[0].endswith(" ") and is_word
    line.pid = line.pid or int(match["rank_pid"] or 0)


def _take_mpi(line: LogLine, match: re.Match[str]) -> None:
    line.task = int(match["mpi_rank"])
    line.node = line.node or match["mpi_host"] or ""
    line.owner += match[0].strip()


def _take_seat(line: LogLine, match: re.Match[str]) -> None:
    host = next(match[name] for name in _SEATED if match[name])
    line.node = line.node or ("" if _COUNTED.fullmatch(host) else host)
    rank = match["seat_rank"] or match["led_rank"]
    if rank and line.rank == UNKNOWN_RANK:
        line.rank = int(rank)
    line.device, line.local = int(match["card"] or -1), int(match["card_local"] or line.local)
    line.owner += match[0].strip()


def _take_local(line: LogLine, match: re.Match[str]) -> None:
    line.local = int(match["local_number"])
    line.owner += match[0].strip()


def _take_task(line: LogLine, match: re.Match[str]) -> None:
    line.task = int(match["task_number"])
    line.owner += match[0].strip()


def _take_stream(line: LogLine, match: re.Match[str]) -> None:
    line.owner += match[0].strip()


def _take_worker(line: LogLine, match: re.Match[str]) -> None:
    pid = int(match["worker_pid"])
    line.pid = pid if pid < MAX_PID else line.pid
    line.owner += match[0].strip()


def _take_pod(line: LogLine, match: re.Match[str]) -> None:
    line.node = match["pod_name"]
    line.owner += match[0].strip()


def _take_ray(line: LogLine, match: re.Match[str]) -> None:
    pid = int(match["ray_pid"] or 0)
    line.pid = pid if 0 < pid < MAX_PID else line.pid
    line.node = line.node or match["ray_ip"] or match["raylet_ip"] or ""
    if name := _TENSOR_PARALLEL.search(match["ray_name"] or ""):
        line.task = int(name[1])
    elif (named := _NAMED_RANK.search(match["ray_name"] or "")) and line.rank == UNKNOWN_RANK:
        line.rank = int(named[1])
    elif match["ray_rank"]:
        line.task = int(match["ray_rank"])
    line.owner += match[0].strip()


def _take_nccl(line: LogLine, match: re.Match[str]) -> None:
    line.node = match["nccl_host"]
    pid = int(match["nccl_pid"])
    line.pid = pid if pid < MAX_PID else line.pid
    line.device = int(match["nccl_dev"][:4])
    line.is_nccl = True


def _take_ascend(line: LogLine, match: re.Match[str]) -> None:
    pid = int(match["ascend_pid"] or match["plog_pid"])
    line.pid = pid if pid < MAX_PID else line.pid
    # -1 stands for a process that has not joined yet.
    rank = int(match["ascend_rank"] or -1)
    if line.rank == UNKNOWN_RANK and 0 <= rank <= MAX_RANK:
        line.rank = rank
        line.device = int(match["ascend_dev"] or -1)
        line.owner += f"RankID:{rank}"


def _take_level(line: LogLine, match: re.Match[str]) -> None:
    line.is_error = line.is_error or _ERROR_LEVEL.search(match[0]) is not None


def _take_nothing(_line: LogLine, _match: re.Match[str]) -> None:
    """Take off what tells nothing of its writer."""


_TAKERS = {
    "found": _take_found,
    "captured": _take_captured,
    "cri": _take_time,
    "journal": _take_system,
    "served": _take_served,
    "iso": _take_time,
    "syslog": _take_system,
    "ctime": _take_ctime,
    "fabric": _take_time,
    "slashed": _take_time,
    "uptime": _take_uptime,
    "facility": _take_facility,
    "kmsg": _take_kmsg,
    "glog": _take_glog,
    "bare_glog": _take_bare_glog,
    "console": _take_console,
    "gathered": _take_gathered,
    "level_field": _take_level,
    "rank": _take_rank,
    "stream": _take_stream,
    "here": _take_stream,
    "worker": _take_worker,
    "mpi": _take_mpi,
    "seat": _take_seat,
    "local": _take_local,
    "task": _take_task,
    "pod": _take_pod,
    "ray": _take_ray,
    "nccl": _take_nccl,
    "ascend": _take_ascend,
    "level": _take_level,
    "place": _take_nothing,
    "hour": _take_nothing,
}
