"""Forms of what stands before a line: times, hosts, ranks, launchers, collectors, loggers."""

from __future__ import annotations

import re
from collections.abc import Iterable

from whystuck.parse.logs.lines.label_forms import FOUND, HOST, NO_COUNT
from whystuck.parse.logs.lines.times import CLOCK, ISO, MONTH

# Ranks and processes in Chinese, Japanese, Korean and Russian.
_ABROAD = "\u8fdb\u7a0b|\u79e9|\u30e9\u30f3\u30af|\ub7ad\ud06c|[\u0420\u0440]\u0430\u043d\u0433"
# The forms, the outer ones of programs that stamp what others write before the others. Each takes
# one blank behind it at most, as the text of a traceback is told by its blanks.
FORMS = {
    "found": FOUND,
    "captured": rf"(?P<captured_at>\d{{4}}-\d\d-\d\dT{CLOCK}\.\d{{6}}Z) (?:out|err) ",
    "cri": rf"(?P<cri_at>{ISO}) (?:stdout|stderr) [FP] ",
    # journalctl and rsyslog
    "journal": rf"(?P<journal_at>{ISO}) (?P<journal_host>{HOST}) "
    r"(?:kernel|[\w./()@-]+\[(?P<journal_pid>\d{1,9})\]): ?(?:\[ *\d+\.\d{3,9}\] ?)?",
    # sglang: `[2026-02-01 10:00:00 DP1 TP3] `
    "served": rf"\[(?P<served_at>{ISO})(?: [DPE]P\d{{1,4}}){{0,2}} TP(?P<served_rank>\d{{1,4}})"
    r"(?: [EP]P\d{1,4}){0,2}\] ?",
    "iso": rf"\[?(?P<iso_at>{ISO})\]?(?:,|:(?= ))? ?",
    "syslog": rf"(?P<syslog_at>(?:{MONTH}) [ \d]\d {CLOCK}(?:\.\d+)?) (?P<syslog_host>{HOST}) "
    r"[\w./()@-]+(?:\[(?P<syslog_pid>\d{1,9})\])?: ?(?:\[ *\d+\.\d{3,9}\] ?)?",
    "ctime": rf"\[?(?P<ctime_at>[A-Z][a-z][a-z] (?:{MONTH}) [ \d]\d {CLOCK} \d{{4}})\]? ?",
    # A journal without its times, as people cut it.
    "console": rf"(?P<console_host>{HOST}) kernel: ?\[ *(?P<console_at>\d{{1,12}}\.\d{{3,9}})\] ?",
    # What pdsh and clush gather from the kernels of hosts.
    "gathered": rf"(?P<gathered_host>{HOST}): (?=\[(?:[A-Z][a-z][a-z] (?:{MONTH}) [ \d]\d {CLOCK}"
    r" \d{4}| *\d{1,12}\.\d{3,9})\] )",
    "fabric": rf"\[(?P<fabric_at>(?:{MONTH}) \d\d \d{{4}} {CLOCK})\] ?",
    "slashed": r"\[?(?P<slashed_at>\d\d/\d\d/\d{4}[ ,-]+\d\d:\d\d:\d\d(?:[.,]\d+)?)\]? ?",
    # The hour without its day: in brackets, or before what names a writer
    "hour": rf"\[{CLOCK}(?:[.,]\d{{1,9}})?\]:? ?|{CLOCK}(?:[.,]\d{{1,9}})? {{1,2}}"
    r"(?=[\[(<](?:[Rr](?:k|ank)?[ _:=]?)?\d{1,6}[\])>]|rank[ _]?\d{1,6}:)",
    "uptime": r"\[ *(?P<uptime_at>\d{1,12}\.\d{3,9})\] ?",
    "facility": r"(?:kern|user|daemon|auth|syslog|local\d) *:\w+ *: ",
    "kmsg": r"\d{1,3},\d+,(?P<kmsg_us>\d{1,18}),[-c+][^;]{0,40};",
    "glog": rf"\[?(?P<glog_at>[VIWEF]\d{{3,4}} {CLOCK}\.\d{{6,9}}) +(?:(?P<glog_pid>\d{{1,18}}) )?"
    r"[^\]\s]{1,200}:\d+\] ?",
    "bare_glog": r"\[[IWEF] [\w./]{1,80}:\d+\] ?",
    # Numbers may be padded with blanks.
    "rank": r"\[[Rr]ank[:=]? {0,6}(?P<rank_number>\d{1,7})\]:? ?|"
    r"rank(?P<rank_word>\d{1,7})(?:\[(?P<rank_pid>\d{1,9})\]\[[\w.-]{1,60}\])?: ?|"
    r"(?:rank|RANK|rango?) {1,6}(?P<rank_said>\d{1,7})(?:: ?(?=.)| \| (?=[A-Za-z]))|"
    # Loggers of Python with fields between bars; a service of Compose that is named by its rank.
    r"(?:\| *rank[=:] ?|rank[=:]?)(?P<rank_field>\d{1,7}) *\| ?|"
    # `[r3]`, `(rank 3)`, `<RANK=3>`, as programs name themselves, and in other languages
    rf"[\[(<](?:rk?|rank|RANK|[Rr]ango?|{_ABROAD})[=:_-]? {{0,6}}"
    r"(?P<rank_mark>\d{1,6})[\])>]:? ?|"
    # `[3]:[rank3]:`, as accelerate puts it
    r"\[\d{1,6}\]:(?=\[rank\d)",
    "level_field": r"\| *(?:DEBUG|INFO|SUCCESS|WARN|WARNING|ERROR|CRITICAL|FATAL|TRACE) *(?=\| )",
    # `job.D0 [stderr] text`, and `[177/train/578 (pid 91)] text`
    "stream": r"[\w./-]{1,60} \[std(?:out|err)\]:? ?",
    "worker": r"\[[\w.-]{1,40}(?:/[\w.-]{1,40}){1,4} \(pid (?P<worker_pid>\d{1,9})\)\] ?",
    # `[1,3]<stderr>:`, and as Horovod (`[3]`) and SageMaker (`[1,mpirank:3,algo-1]`) write it
    "mpi": r"\[(?:prterun-[^\]@]{1,80}@)?(?:\d+,)?(?:mpirank:)?(?P<mpi_rank>\d{1,7})"
    r"(?:,(?P<mpi_host>[\w.-]{1,63}))?\](?:\[[^\]]{1,80}\])?<std(?:out|err|diag)>: ?",
    # `[node3:r12] text`, as people label what they gather of several hosts; `[node3 dmesg] text`
    "seat": rf"\[(?P<seat_host>{HOST})[:/ ,|]r(?:ank)?[ _:=]?(?P<seat_rank>\d{{1,6}})\]:? ?"
    rf"|\[(?P<kernel_host>{HOST})[:/ ](?:dmesg|kern(?:el|\.log)?|syslog)\]:? ?"
    # `[pod train-1 gpu5] text`, `[node3 local_rank 5] text`
    rf"|\[(?:(?:pod|node|host)[ :=/])?{NO_COUNT}"
    r"(?P<card_host>(?=[\w.]*[\d-])[A-Za-z][\w.-]{0,62})(?:,? |[:/|])"
    r"(?:(?:gpu|cuda|npu|device|dev)[ :=_#]?(?P<card>\d{1,4})"
    r"|(?:local[ _-]?rank|lr)[ :=_#]?(?P<card_local>\d{1,4}))\]:? ?"
    # `node3 [rank12]: text`
    rf"|(?P<led_host>{NO_COUNT}[A-Za-z][\w.-]{{0,40}}\d[\w.-]{{0,20}}):? "
    r"\[[Rr]ank:? ?(?P<led_rank>\d{1,6})\]:? ?",
    "local": r"\[(?=(?:gpu|GPU|cuda)\d{1,3}\] |[\w-]{1,35}\]:)"
    r"[A-Za-z_][\w-]{0,30}?(?P<local_number>\d{1,4})\]:? ?",
    "task": r" {0,5}(?P<task_number>\d{1,6}): ",
    # DeepSpeed's launcher, before lines of this host
    "here": r"localhost: (?=\[)",
    "pod": r"\[pod/(?P<pod_name>[\w.-]+)/[\w.-]+\] ?",
    "ray": r"\((?:(?P<ray_name>[A-Za-z]\w*(?: [A-Z]P\d{1,4}){0,4}),? )?"
    r"(?:rank[=:] ?(?P<ray_rank>\d{1,7}),? )?(?:pid=(?P<ray_pid>\d{1,18})"
    r"(?:, ip=(?P<ray_ip>[\d.a-fA-F:]+))?|ip=(?P<raylet_ip>[\d.a-fA-F:]+))\) ?",
    "nccl": rf"(?P<nccl_host>{HOST}):(?P<nccl_pid>\d{{1,18}}):\d+ \[(?P<nccl_dev>\d+)\] ?",
    # torch_npu, and CANN in its own log
    "ascend": r"(?:[A-Z]{2,12}\((?P<plog_pid>\d{1,9}),[^)]{1,40}\):|\(PID:(?P<ascend_pid>\d{1,9}), "
    r"Device:-?(?P<ascend_dev>\d{1,4}), RankID:(?P<ascend_rank>-?\d{1,7})\)) ?",
    "level": r"\[(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)\] ?"
    # and without brackets before the rank: `ERROR [rank4] text`
    r"|(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL):? {1,3}"
    r"(?=[\[(<][Rr](?:k|ank)?[ :=_-]?\d{1,6}[\])>])",
    "place": r"\[[\w./-]+\.(?:py|cpp|cc|cu|h|hpp):\d+(?::\w+)?\] ?",
}
# How each form may begin: with a bracket, a brace, a bar, a digit, a letter, or a part of a path.
STARTS = {
    "[": (
        "served iso ctime fabric slashed hour uptime glog bare_glog rank worker mpi seat local pod "
        "level place"
    ),
    "(": "ray ascend rank",
    "<": "rank",
    "|": "rank level_field",
    "0": "found captured cri journal iso console gathered slashed hour kmsg stream task nccl",
    "r": "found console gathered rank stream nccl ascend level",
    "a": "found syslog ctime console gathered facility glog stream here nccl ascend level",
    "/": "found stream",
}
_PATHS = "./~@+=-"


def _compile(names: Iterable[str]) -> re.Pattern[str]:
    # The outermost named group tells which form it is.
    forms = "|".join(f"(?P<{name}>{FORMS[name]})" for name in FORMS if name in names)
    return re.compile(rf"\s{{0,2}}(?:{forms})")


# All forms, and those that may begin with a character: most lines are tried with few.
PREFIX = _compile(FORMS)
_BY_START = {start: _compile(names.split()) for start, names in STARTS.items()}
# A host before the bracket of a rank is looked for only where there is one so far from the start.
_LED_BY_START = {start: _compile(f"seat {STARTS[start]}".split()) for start in "ra"}
_LED_FAR = 72
# What may stand before a form, and one character more.
_HEAD = 8


# What somebody quotes of a letter or an issue; `>>> ` is the prompt of Python.
_QUOTED = re.compile(r"(?!>>>)(?:> ?){1,4}(?=[\s\S])")


def strip_quote(text: str) -> str:
    """Return a line without the marks that stand before what is quoted."""
    quote = _QUOTED.match(text)
    return text[quote.end() :] if quote else text


# A bar of tqdm, which ends no line, and the line that another process began behind it.
_BAR = re.compile(
    rb"%\|[^\[\]]{0,600}\[[\d:]{1,12}<[^\[\]]{1,300}\]"
    rb"(?=\[(?:[Rr]ank ?|default)?\d|\[[EWIF] |\[[EWIF]?\d{3,4} |[EWIF]\d{4} \d"
    rb"|Traceback |\d{4}-\d\d-)"
)


def cut_bar(data: bytes) -> bytes:
    """Return a line without a bar of progress that stands before it: the bar is another's."""
    bar = _BAR.search(data) if b"%|" in data else None
    return data[bar.end() :] if bar else data


def match_prefix(text: str) -> re.Match[str] | None:
    """Match what stands before a line: the same as all forms would, only sooner."""
    start = text[:_HEAD].lstrip()[:1]
    if start.isalnum() or start == "_":
        start = "0" if start.isdecimal() else "r" if start in "rR" else "a"
        place = text.find(" [", 0, _LED_FAR)
        if place > 0 and start != "0" and text.startswith("ank", place + 3):
            return _LED_BY_START[start].match(text)
    elif start in _PATHS and start:
        start = "/"
    pattern = _BY_START.get(start)
    return pattern.match(text) if pattern is not None else None
