"""What lines tell of the rank of a process: sentences, comments, environments, rows of ps."""

from __future__ import annotations

import re
from collections.abc import Iterator

_RANK_PID = re.compile(
    r"(?<!local )\brank[ =:]{0,2}(\d{1,7})\b"
    r"[ ,:=>(-]{0,4}(?:is |has |runs as )?(?:process |pid[ =:]{0,3})(\d{1,7})\b",
    re.IGNORECASE,
)
# The same in other words; where one number is called a process, so are those that follow it.
_RANK_NUMBER = re.compile(
    r"\b(local[ _-]?)?rank[ =:_#]{0,2}(\d{1,7})\b(?: is| =| ->|:)? (?:pid ?)?(\d{2,7})\b"
    r"(?! ?(?:MB|GB|ms|s|%|it)\b)",
    re.IGNORECASE,
)
_PID_RANK = re.compile(
    r"\bpid[ =:]{0,2}(\d{2,7})\b[ ,:=>(-]{0,4}(?:is |has )?(?:the )?(local[ _-]?)?"
    r"rank[ =:_#]{0,2}(\d{1,7})\b",
    re.IGNORECASE,
)
# A row that a loop over processes prints.
_LED_RANK = re.compile(
    r"^\s{0,8}(?:pid[ =:]?)?(\d{2,7})[ :,\t]{1,4}(\w{0,20})(?<![^\W_])rank[=:] ?(\d{1,7})(?=\s|$)",
    re.IGNORECASE,
)
# With what else a program tells of itself in between: `rank 0 of 4 host dgx-b pid 5110`.
_BETWEEN = (
    r"(?:[ ,;|()\]]{1,3}(?:(?:on|at|in) )?(?:host(?:name)?|node|local[_ ]?rank|local|gpu|device"
    r"|cuda|world(?:[_ ]size)?|ip|machine|pod|container|on|at)[ :=]{1,2}[\w.:/-]{1,64}){1,5}"
    r"[ ,;|()\]]{1,3}"
)
_OF = r"(?: of \d{1,7}| ?/ ?\d{1,7})"
_RANK_FAR = re.compile(
    rf"(?<!local )\brank[ =:]{{0,2}}(?P<rank>\d{{1,7}})"
    rf"(?:{_OF}(?:{_BETWEEN}|[ ,;|()\]]{{1,3}})|{_BETWEEN})pid[ =:]{{0,3}}(?P<pid>\d{{2,7}})\b",
    re.IGNORECASE,
)
_FAR_RANK = re.compile(
    rf"\bpid[ =:]{{0,3}}(?P<pid>\d{{2,7}}){_BETWEEN}rank[ =:]{{0,2}}(?P<rank>\d{{1,7}})\b",
    re.IGNORECASE,
)
# A command that looks at a process, with a comment that says whose it is.
_LOOKED = re.compile(
    r"(?:--pid[ =]|(?<!\S)-p ?|/proc/|\bpstack |\bdump )(\d{2,7})\b[^#]{0,200}"
    r"#(?![^#]{0,40}\b(?:not|but|except)\b)[^#]{0,40}?(?<!local )(?<!local_)"
    r"(?:(?<!\w)|(?<=global_))rank"
    r"[ =:_#]{0,2}(\d{1,7})\b(?!.{0,40}\brank)",
    re.IGNORECASE,
)
# A row of `ps e`, which prints the environment behind the command.
_PS_ROW = re.compile(
    r"^\s{0,10}(?:[a-z_][\w+-]{0,31}\s{1,20})?(\d{2,7})\s{1,20}(?:\?|pts/\d|tty\d|\d{1,3}\.\d)"
    r".{0,4000}?\sRANK=(\d{1,7})(?!\S)"
)
# A launcher that tells a process and its command, with a variable of its environment.
_STARTED = re.compile(
    r"\b(?:process|pid)[ =:]{0,2}(\d{2,7})\b(?=.{0,40}\b(?:spawned|started|launched|forked|runs)\b"
    r"|.{0,10}(?:->|=>|:) ).{0,1000}?(?<![\w-])RANK=(\d{1,7})(?![\w.])"
)
ENVIRON = re.compile(r"/proc/(\d{2,7})/environ\b")
# A loop of a shell that prints the rank of one process after the other.
_LOOP = re.compile(
    r"\bfor (\w{1,20}) in ((?:\d{2,7} ){1,128}\d{2,7}) ?; ?do .{0,160}/proc/\$\{?\1\}?/environ\b"
    r".{0,80}\bRANK\b"
)
# Processes of a loop or a list, and their ranks, one beside the other: `for p in 101 102; do ...
# # rank 0 1`, `pids 101,102 = ranks 0-1`.
_PIDS = re.compile(
    r"(?:\bfor \w{1,20} in|\b(?:pids?|processes)\b[ =:]{0,3}(?:are )?)[ (\['\"]{0,3}"
    r"(?P<pids>\d{2,7}(?:[ ,/]{1,2}\d{2,7}){1,127}|\d{2,7} ?(?:-|\.{2,3}|\u2013) ?\d{2,7})"
    r"(?![\w.])",
    re.IGNORECASE,
)
_RANKS = re.compile(
    r"(?<![a-z_])(?<!local )(?<!local_)(?:global[ _])?ranks?[ =:#(\[]{0,3}"
    r"(?P<ranks>\d{1,7}(?:[ ,/]{1,2}\d{1,7}){1,127}|\d{1,7} ?(?:-|\.{2,3}|\u2013|to) ?\d{1,7})"
    r"(?![\w.])",
    re.IGNORECASE,
)
_DENIED = re.compile(r"\b(?:not|but|except|maybe|n't|reverse\w*|some)\b", re.IGNORECASE)
_RANGE = re.compile(r"^(\d{1,7}) ?(?:-|\.{2,3}|\u2013|to) ?(\d{1,7})$")
_MOST_LISTED = 128
_PRINTED = re.compile(r"^RANK=(\d{1,7})$")


class EnvironLoop:
    """The processes of a loop whose ranks are printed below it, one in each line."""

    def __init__(self) -> None:
        self._pids: list[int] = []
        self._ranks: list[int] = []
        self.last_row = 0

    def read(self, text: str, row: int) -> list[tuple[int, int]]:
        """Take a line; return each process and its rank once the last one is printed.

        Where fewer ranks are printed than there are processes, nothing tells whose they are.
        """
        if "/environ" in text and (loop := _LOOP.search(text)):
            self._pids, self._ranks = [int(pid) for pid in loop[2].split()], []
            self.last_row = row
        elif self._pids and row == self.last_row + 1 and (told := _PRINTED.match(text)):
            self._ranks.append(int(told[1]))
            self.last_row = row
            if len(self._ranks) == len(self._pids) == len(set(self._ranks)):
                return list(zip(self._pids, self._ranks, strict=True))
        return []


def tells_of_processes(small: str) -> bool:
    """Tell whether a line, in small letters, may say which process is which rank."""
    return "rank" in small and any(
        word in small
        for word in ("pid", "process ", " -p", "/proc/", "pstack ", " rank=", "_rank=", "dump ")
    )


def is_row_of_ps(text: str) -> bool:
    """Tell whether a line is of one of the processes that `ps e` lists, with its environment."""
    return _PS_ROW.match(text) is not None


def list_rank_pids(text: str) -> Iterator[tuple[int, int, bool]]:
    """Yield ranks and the numbers of their processes, and whether they are local ranks."""
    if paired := _list_paired(text):
        yield from paired
        return
    known = set[str]()
    # In `pid 10 = rank 0 on n1; pid 11 = rank 1 on n1`, the next process stands behind a rank, too.
    small = text.lower()
    far = _RANK_FAR if small.find("rank") < small.find("pid") else _FAR_RANK
    for match in far.finditer(text):
        known.add(match["pid"])
        yield int(match["rank"]), int(match["pid"]), False
    for rank, number in _RANK_PID.findall(text):
        known.add(number)
        yield int(rank), int(number), False
    for local, rank, number in _RANK_NUMBER.findall(text):
        known.add(number)
        yield int(rank), int(number), bool(local)
    for number, local, rank in _PID_RANK.findall(text):
        # In `rank 0 is pid 10, rank 1 is 11`, a process stands before the next rank, too.
        if number not in known:
            yield int(rank), int(number), bool(local)
    for pattern in (_LOOKED, _PS_ROW, *((_STARTED,) if text.count(" RANK=") == 1 else ())):
        for number, rank in pattern.findall(text):
            yield int(rank), int(number), False
    for number, kind, rank in _LED_RANK.findall(text):
        yield int(rank), int(number), "local" in kind.lower()


def _list_paired(text: str) -> list[tuple[int, int, bool]]:
    """Return the processes that a line lists with as many ranks, in the same order."""
    shown, told = _PIDS.search(text), _RANKS.search(text)
    if shown is None or told is None or _DENIED.search(text):
        return []
    pids, ranks = _read_numbers(shown["pids"]), _read_numbers(told["ranks"])
    is_sound = len(set(pids)) == len(pids) == len(ranks) == len(set(ranks))
    return [(rank, pid, False) for pid, rank in zip(pids, ranks, strict=True)] if is_sound else []


def _read_numbers(text: str) -> list[int]:
    """Read a list of numbers, or a range."""
    if ends := _RANGE.match(text):
        first, last = int(ends[1]), int(ends[2])
        return list(range(first, min(last, first + _MOST_LISTED) + 1))
    return [int(one) for one in re.findall(r"\d+", text)]
