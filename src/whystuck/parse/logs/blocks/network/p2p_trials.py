"""Runs without direct access between devices, by whoever had one that stood still with it.

`$ NCCL_P2P_DISABLE=1 torchrun train.py` and the steps below it, or `with NCCL_P2P_DISABLE=1 it runs
through`: that is the trial which tells whether the way between devices is what holds a job up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from whystuck.parse.logs.blocks.tables.tabled import TabledSeen
from whystuck.parse.logs.lines.lines import LogLine, parse_line

_TRIED = b"NCCL_P2P_DISABLE=1"
_WAY = re.compile(r"\[[0-9a-f]{1,8}\] -> \d{1,7}\[[0-9a-f]{1,8}\] via P2P/")
# NCCL made its communicators, so that what stands still is a transfer.
_IS_UP = re.compile(r"- Init COMPLETE\b|\bConnected all (?:rings|trees)\b")
_STOPPED = re.compile(
    r"\b(?:hangs?|hanging|hung|stuck|froze|freezes|frozen|stands still|deadlocks?)\b"
    r"|\b(?:nothing|no (?:output|progress|step|new lines?)) "
    r"(?:for|after|moves|more|happens|else|comes|since)\b"
)
_NOT = re.compile(
    r"\b(?:no|not|never|without|\w{2,6}n't|neither|nor|used to|if|whether|may|might|would|could"
    r"|should|will)\b|\?",
    re.IGNORECASE,
)
_COMMAND = re.compile(
    r"^(?:\[?[\w.@:~/ -]{0,60}\]?[#$%>] ?)?(?:export |env |[A-Z_]{2,40}=\S{1,60} )*"
    r"NCCL_P2P_DISABLE=1(?:\s|;|&|$)(?P<rest>.{0,300})"
)
_PROMPT = re.compile(r"^\S{0,60}[$%>] ")
_STARTED = re.compile(r"\b(?:torchrun|accelerate|deepspeed|python[\d.]{0,5}|mpirun|srun)\b")
_WENT = re.compile(
    r"\b(?:runs|works|trains|goes|went|ran|worked|completes?|finishes|passes)\b"
    r"|\bno (?:more )?hangs?\b|\b(?:fixes|fixed|solves|solved|cures) (?:it|this|that|the hang)\b",
)
# Words of a trial that shows nothing, or of which nobody says that it went well.
_OPEN = re.compile(
    r"\b(?:not|\w{2,6}n't|never|still|also|too|as well|same|neither|nor|no difference|even|only"
    r"|until|but|try|tried|maybe|perhaps|if|whether|should|would|could|will|may|might|slower"
    r"|slow|wrong|crash\w*|fails?|failed|both|again|dies|died|OOM|errors?|with and without|then"
    r"|without NCCL\w*|unset|remov\w{1,4}|says?|said|docs?|told|heard|read|someone|people|others?"
    r"|another|last|before|yesterday|used to|used|around|workaround|expected)\b|\?",
    re.IGNORECASE,
)
# What is said behind a trial that ends as the run before it did.
_AGAIN = re.compile(
    r"\b(?:stops|stopped|stalls|stalled|as before|again|same (?:thing|here|hang|problem)|no help"
    r"|(?:does|did)(?:n't| not) help|timed? ?out|timeout)\b"
)
_STEP = re.compile(
    r"\b(?:epoch|step|iter|iteration)[ :=/]{0,3}(?P<step>\d{1,9})\b.{0,80}\bloss\b"
    r"|(?P<bar>\d{1,9})/\d{1,9} \[\d{1,4}:\d\d",
    re.IGNORECASE,
)


def find_p2p_trials(data: bytes, row: int) -> Iterator[TabledSeen]:
    """Find runs without direct access that went well, or ended after all.

    Args:
        data: The text.
        row: The number of its first line.
    """
    if _TRIED not in data:
        return
    reader = _TrialReader()
    for at, raw in enumerate(data.split(b"\n")):
        yield from reader.read(parse_line(raw), row + at)


class _TrialReader:
    """Follows a job that stood still, and another run of it without direct access."""

    def __init__(self) -> None:
        self._has_way = self._is_up = self._has_moved = False
        self._has_stopped = self._is_tried = False
        self._trial: TabledSeen | None = None
        self._steps: list[int] = []

    def read(self, line: LogLine, row: int) -> Iterator[TabledSeen]:
        """Take a line; yield that a run without direct access went well, or ended after all."""
        text = line.text
        if _WAY.search(text):
            # A run that takes this way all the same is no trial.
            self._has_way, self._is_tried = True, False
        elif _IS_UP.search(text):
            self._is_up = True
        elif _TRIED.decode() in text:
            yield from self._try(line, row)
        elif (step := _STEP.search(text)) is not None:
            yield from self._step(int(step["step"] or step["bar"]))
        elif self._is_tried and _AGAIN.search(text):
            yield from self._take_back(line, row)
        elif _has_stopped(text):
            yield from self._take_back(line, row)
            self._has_stopped = True

    def _try(self, line: LogLine, row: int) -> Iterator[TabledSeen]:
        if _has_stopped(line.text):
            yield from self._take_back(line, row)
            return
        if not (self._has_way and self._is_up) or self._has_moved:
            return
        command = _COMMAND.match(line.text)
        rest, _, note = command["rest"].partition("#") if command is not None else ("", "", "")
        if _OPEN.search(note):
            return
        if command is not None and (not rest.strip() or _STARTED.search(rest)):
            self._is_tried, self._steps = self._has_stopped, []
            self._trial = TabledSeen("table.p2p_trial", row, line, {"went": "1"})
        elif self._has_stopped and _goes_well(line.text):
            self._is_tried = True
            yield TabledSeen("table.p2p_trial", row, line, {"went": "1"})

    def _take_back(self, line: LogLine, row: int) -> Iterator[TabledSeen]:
        if self._is_tried:
            self._is_tried, self._trial = False, None
            yield TabledSeen("table.p2p_trial", row, line, {"went": ""})

    def _step(self, step: int) -> Iterator[TabledSeen]:
        if not self._is_tried:
            self._has_moved = True
            return
        self._steps = [*self._steps[-1:], step]
        if self._trial is not None and len(self._steps) > 1 and self._steps[0] < self._steps[1]:
            yield self._trial
            self._trial = None


def _goes_well(text: str) -> bool:
    is_said = _WENT.search(text) is not None and _PROMPT.match(text) is None
    return is_said and _OPEN.search(text) is None


def _has_stopped(text: str) -> bool:
    found = _STOPPED.search(text)
    return found is not None and (found[0].startswith("no") or _NOT.search(text) is None)
