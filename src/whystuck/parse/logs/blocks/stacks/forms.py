"""Forms of lines of stacks: heads of threads and processes, frames, and what stands between."""

from __future__ import annotations

import re

from whystuck.evidence.live import ThreadStack
from whystuck.evidence.numbers import is_number
from whystuck.evidence.ops.collectives import Frame

# What people and loggers leave before a line of a stack.
BEFORE = re.compile(r"^(?:>\s?|(?:DEBUG|INFO|WARN|WARNING|ERROR):? (?=\s|Thread|Process|File|#))+")
# A command that shows a stack below it.
COMMAND = re.compile(
    r"\b(?:py-spy dump|pystack|gstack|pstack|eu-stack)\b|\bgdb\b.{0,60} (?:-p|--pid)\b"
)
SPY = re.compile(
    r"^\s*Thread (?P<number>0x[0-9A-Fa-f]{1,16}|\d{1,20}) ?"
    r"\((?P<state>(?:active|idle)[a-z+ ]{0,20})\)(?:: \"(?P<name>[^\"]{0,200})\")?"
    r"\s*(?P<note>(?:#|//|<[-=]{1,4}|\u2190|\().{0,200})?$"
)
# The rank before the head of a thread, in one line: `rank0  Thread 0x7F20 (active): "MainThread"`.
_LED_HEAD = re.compile(
    r"^[\W_]{0,12}(?P<rank>(?:local[ _-]?)?rank[ _:=#]{0,2}\d{1,7})\b[\s\W_]{1,12}"
    r"(?=Thread (?:0x[0-9A-Fa-f]{1,16}|\d{1,20}) ?\((?:active|idle))",
    re.IGNORECASE,
)
_FAULT = re.compile(
    r"^\s*(?:(?P<current>Current thread|Thread) 0x(?P<number>[0-9A-Fa-f]{1,16})"
    r"(?: \[(?P<name>.{0,200})\])?|Stack) \(most recent call first\):"
)
_GDB = re.compile(
    r"^\s*Thread (?P<order>\d{1,6}) \(Thread 0x[0-9a-f]{1,16} \(LWP (?P<number>\d{1,10})\)"
    r"(?: \"(?P<name>[^\"]{0,200})\")?"
)
GDB_BARE = re.compile(
    r"^\s*(?:\(gdb\) )?#0\s+(?:0x[0-9a-f]{6,16} in "
    r"|[A-Za-z_][^\s(]{0,300} \([^\n]{0,600}\) at \S{1,300}:\d{1,7}\s*$)"
)
# What the extension of Python prints of its own frames: `py-bt` in gdb.
_PYTHON_FRAME = re.compile(
    r'^\s*(?:#\d{1,3} )?File "(?P<file>[^"]{1,1000})", line (?P<line>\d{1,7}), '
    r"in (?P<function>[\w.<>]{1,300})"
)
# The number of a process may have a word behind it: `Process 4120 (rank 3): python train.py`.
_PROCESS = re.compile(
    r"^\s*Process (?P<pid>\d{1,10})(?: ?[(\[](?P<said>[^()\[\]]{1,80})[)\]])?: ?(?P<run>.{0,2000})$"
)
# People say behind a frame who called it, to have fewer lines.
_CALLER = r"(?:\s{1,8}<- .{1,200})?"
_SPY_FRAME = re.compile(
    rf"^\s{{2,}}(\S.{{0,500}}?) \((.{{1,1000}}?)(?::(\d{{1,9}}))?\)\s*{_CALLER}$"
)
# People say behind a frame what it does.
_FAULT_FRAME = re.compile(
    r'^\s*File "(.{1,1000})", line (\d{1,9}|\?\?\?) in (.{1,500}?)(?:\s{1,40}#.{0,200})?$'
)
_GDB_FRAME = re.compile(
    r"^\s*#\d{1,3}\s+(?:0x[0-9a-f]{1,16} in )?(?P<function>[^\s(].{0,500}?) ?\("
    r"(?:.{0,2000}?\) (?:at (?P<file>\S{1,1000}?):(?P<line>\d{1,9})|from (?P<library>\S{1,1000})))?"
)
# What people write behind a frame, and behind the variables that py-spy shows of it.
_NOTE = re.compile(
    r"[)>\]}\w\"'] {1,60}(?:#|//|<--+|<==+|\u2190|\u21d0|<- (?!\s{0,4}[\w.<>]{1,120}"
    r"(?<!group)(?<!_pg)(?: \(|\s{0,4}(?:<-|$))|\S{1,200}\.py:\d))(?P<note>.{1,300})$"
)
# Behind a whole frame of py-spy, whatever stands there is a note but who called it.
_BEHIND = re.compile(
    r"^\s{1,12}[\w.<>]{1,120} \([^()]{1,400}:\d{1,9}\)(?= {1,60}(?!<- )(?P<note>\S.{0,300})$)"
)
# Between the function and its file, the group of its call: `sync group=tp (moe.py:61)`.
_GROUPED = re.compile(
    r"^(?P<function>\s{1,12}[\w.<>]{1,120}) {1,8}[\[(]?"
    r"(?P<note>(?:process_)?(?:group|pg) ?[=:] ?[\w.-]{1,60})[\])]?"
    r"(?P<place> {1,8}\([^()]{1,400}:\d{1,9}\))\s{0,8}$"
)
# `py-spy dump --locals` shows variables below their frame, further in.
_LOCALS = re.compile(r"^(\s{2,40})(?:Locals|Arguments|Args):")
_VARIABLE = re.compile(r"^\s{4,40}(?:global_)?rank: (\d{1,7})\s*$")
# What is left of colours where the character that begins them is lost.
_FADED = re.compile(r"\[(?:[01]|[39]\d|1;3\d)m")
# What gdb prints before the first frame, a line for each thread among it.
GDB_NOISE = re.compile(
    r"^\s*(?:\[New (?:LWP|Thread)\b|\[Thread debugging|Using host libthread_db|0x[0-9a-f]{6,16} in "
    r"|warning: |Reading symbols|Attaching to |\[Inferior \d)"
)
# A frame that is one without anything above it.
_BARE_SPY = re.compile(
    r"^\s{1,12}[\w.<>]{1,120} \((?:[\w./@+-]{1,400}|<[\w ]{1,40}>)"
    rf"(?::\d{{1,9}}\)\s*{_CALLER}|\.py\)\s{{1,8}}<- .{{1,200}})$"
)


def clean_line(text: str) -> str:
    """Return a line without what people and loggers leave before it, and without lost colours."""
    text = BEFORE.sub("", text)
    return _FADED.sub("", text) if "m" in text and "[" in text and "Process " in text else text


def cut_lead(text: str) -> tuple[str, str]:
    """Return the rank that stands before the head of a thread, and the line without it."""
    match = _LED_HEAD.match(text) if "Thread " in text else None
    return (match["rank"], text[match.end() :]) if match else ("", text)


def cut_note(text: str) -> tuple[str, str]:
    """Return a line of a stack without the comment that stands in it, and that comment.

    A variable that holds a rank counts as a comment, too.
    """
    if (variable := _VARIABLE.match(text)) is not None:
        return text, f"variable rank {variable[1]}"
    if " (" in text and (grouped := _GROUPED.match(text)):
        return grouped["function"] + grouped["place"], grouped["note"]
    has_mark = any(mark in text for mark in (" #", " //", " <-", " <==", " \u2190", " \u21d0"))
    found = _NOTE.search(text) if has_mark else None
    if found:
        return text[: found.start() + 1], found["note"].strip()
    behind = _BEHIND.match(text)
    return (behind[0], behind["note"].strip()) if behind else (text, "")


def find_locals(text: str) -> int:
    """Return how far in the variables of a frame stand that a line begins to show, -1 if none."""
    found = _LOCALS.match(text)
    return len(found[1]) if found else -1


def find_process(text: str) -> tuple[int, str] | None:
    """Find the head of a process: its number, and its command with what is said behind either."""
    match = _PROCESS.match(text)
    if match is None:
        return None
    return int(match["pid"]), match["run"] + (f" ({match['said']})" if match["said"] else "")


def find_head(text: str) -> re.Match[str] | None:
    """Find the head of a thread."""
    for pattern in (SPY, _FAULT, _GDB, GDB_BARE):
        if match := pattern.match(text):
            return match
    return None


def find_bare(text: str) -> str:
    """Tell what printed a frame that people paste without the head of its thread."""
    text, _ = cut_note(text)
    if _BARE_SPY.match(text):
        return "py-spy"
    return "faulthandler" if _FAULT_FRAME.match(text) else ""


def name_source(head: re.Match[str]) -> str:
    """Tell what printed the head of a thread."""
    return {SPY: "py-spy", _FAULT: "faulthandler"}.get(head.re, "gdb")


def read_number(head: re.Match[str]) -> int:
    """Return the number of a thread."""
    number = head.groupdict().get("number") or "0"
    return int(number, 16 if head.re is _FAULT or number.startswith("0x") else 10)


def find_pid(head: re.Match[str]) -> int:
    """Return the process, where the main thread tells it: its number is that of the process."""
    is_main = head.re is SPY and head["name"] == "MainThread" and is_number(head["number"])
    is_main = is_main or (head.re is _GDB and head["order"] == "1")
    return read_number(head) if is_main else 0


def make_thread(head: re.Match[str], pid: int) -> ThreadStack:
    """Make a thread that has no frames yet."""
    told = head.groupdict()
    number, state = read_number(head), told.get("state") or ""
    is_main = told.get("name") == "MainThread" or told.get("order") == "1"
    is_main = is_main or (head.re is SPY and number == pid)
    return ThreadStack(
        number,
        told.get("name") or "",
        (),
        is_main=is_main,
        owns_gil="gil" in state if state else None,
        active="active" in state if state else None,
    )


def read_frame(text: str, source: str) -> Frame | None:
    """Read a frame as one tool prints it."""
    if source == "faulthandler":
        if match := _FAULT_FRAME.match(text):
            number = int(match[2]) if is_number(match[2]) else 0
            return Frame(match[3].strip(), match[1], number)
        return None
    if source == "gdb":
        return _read_gdb_frame(text)
    if match := _SPY_FRAME.match(text):
        return Frame(match[1], match[2], int(match[3] or 0))
    return None


def _read_gdb_frame(text: str) -> Frame | None:
    if match := _PYTHON_FRAME.match(text):
        return Frame(match["function"], match["file"], int(match["line"]))
    if match := _GDB_FRAME.match(text):
        file = match["file"] or match["library"] or "native"
        return Frame(match["function"], file, int(match["line"] or 0))
    return None
