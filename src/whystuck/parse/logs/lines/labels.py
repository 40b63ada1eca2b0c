"""Words that stand before the lines of one log: of hosts and containers, and numbers of writers."""

from __future__ import annotations

import re

from whystuck.evidence.logs.lines import UNKNOWN_RANK
from whystuck.parse.logs.lines.label_forms import LABEL, NUMBERED, name_label, read_number
from whystuck.parse.logs.lines.lines import FAR, LogLine, parse_line
from whystuck.parse.logs.lines.own_prefixes import (
    OwnPrefix,
    find_head,
    find_own_prefixes,
    list_heads,
)
from whystuck.parse.logs.search.raw_lines import list_forms

# Of the lines, the share that has a label where there are labels.
_SHARE = 0.7
_DIGITS = re.compile(r"\d+")
_FAR = 200
_FRAME = b'  File "'
# The time that a logger puts before all else.
_CLOCK = re.compile(r"^\[?\d[\d:.,/ T+-]{6,34}Z?\]?[ ,:-]{0,3}(?=[a-z\[])")


def find_labels(lines: list[bytes], parsed: dict[bytes, LogLine] | None = None) -> frozenset[str]:
    """Find the words before lines that are hosts or containers: most lines have one of a few.

    Args:
        lines: Some lines of the log.
        parsed: Takes those that were parsed, without such words: no more than tell.
    """
    parsed = {} if parsed is None else parsed
    shown = _find_around_tracebacks(lines, parsed)
    counts: dict[str, int] = {}
    written = bare = 0
    # Of lines that differ in numbers alone, all have a label or none has.
    bare_forms = set[bytes]()
    forms = list_forms(lines)
    for data, form in zip(lines, forms, strict=True):
        if form not in bare_forms:
            line = parsed.get(data) or parsed.setdefault(data, parse_line(data))
            if not line.text.strip() or line.is_kernel:
                continue
            if match := LABEL.match(line.text):
                label = name_label(match)
                counts[label] = counts.get(label, 0) + 1
                written += 1
                continue
            bare_forms.add(form)
        written += 1
        bare += 1
        if bare > (1 - _SHARE) * len(lines) + 1:
            # Too many have none, whatever comes behind.
            return _find_numbers(lines, forms) | shown
    often = {label for label, count in counts.items() if count > 1}
    # One line of a pod or host is one too, where others of its kind have more.
    kinds = {_DIGITS.sub("0", label) for label in often}
    often |= {label for label in counts if _DIGITS.sub("0", label) in kinds}
    labelled = sum(counts[label] for label in often)
    few = len(kinds) <= max(1, written // 2)
    is_labelled = few and written > 1 and labelled > _SHARE * written
    return _find_numbers(lines, forms) | shown | (often if is_labelled else frozenset())


def learn_labels(
    lines: list[bytes], parsed: dict[bytes, LogLine]
) -> tuple[frozenset[str], list[OwnPrefix]]:
    """Find what stands before some lines of a log: words, as `find_labels`, and other prefixes."""
    labels = find_labels(lines, parsed)
    return labels, find_own(lines, labels, parsed)


def find_own(
    lines: list[bytes], labels: frozenset[str], parsed: dict[bytes, LogLine]
) -> list[OwnPrefix]:
    """Find prefixes in forms that are not known, behind those that are.

    Args:
        lines: Some lines of the log.
        labels: The words before them, as `find_labels` returns them.
        parsed: Lines that were parsed without such words.
    """
    heads = list_heads(lines)
    bare_forms, texts = set[bytes](), list[str]()
    for data, form in zip(heads, list_forms(heads), strict=True):
        if form in bare_forms:
            continue
        line = (parsed.get(data) if not labels else None) or parse_line(data, labels)
        if find_head(line.text):
            texts.append(line.text)
        else:
            bare_forms.add(form)
    return find_own_prefixes(texts, _read_rank)


def _read_rank(text: str) -> int:
    line = parse_line(text[:_FAR].encode())
    return line.rank if line.rank != UNKNOWN_RANK else line.member


def _find_around_tracebacks(lines: list[bytes], parsed: dict[bytes, LogLine]) -> frozenset[str]:
    """Find the words that stand before all lines of a traceback, and their likes of other writers.

    People paste such lines beside others without a label, which then are most of a text.
    """
    if not any(_FRAME in data for data in lines):
        return frozenset()
    begins, frames, counts = set[str](), set[str](), set[str]()
    for data in lines:
        line = parsed.get(data) or parsed.setdefault(data, parse_line(data))
        if (match := LABEL.match(line.text)) is None:
            continue
        rest, label = line.text[match.end() :], name_label(match)
        counts.add(label)
        if rest.startswith("Traceback (most recent call last)"):
            begins.add(label)
        elif rest.startswith('  File "'):
            frames.add(label)
    kinds = {_DIGITS.sub("0", label) for label in begins & frames}
    return frozenset(label for label in counts if _DIGITS.sub("0", label) in kinds)


def _find_numbers(lines: list[bytes], forms: list[bytes]) -> frozenset[str]:
    """Find numbers before lines that are writers, counted from 0, rather than epochs or steps."""
    bare_forms, found = set[bytes](), list[re.Match[str]]()
    for data, form in zip(lines, forms, strict=True):
        if form in bare_forms:
            continue
        text = _CLOCK.sub("", data[:FAR].decode("utf-8", errors="replace"))
        if match := NUMBERED.match(text):
            found.append(match)
        else:
            bare_forms.add(form)
    numbers = [read_number(match) for match in found]
    known = set(numbers)
    # What is called a rank needs no others beside it to be one.
    is_dense = 0 in known and max(known) < 2 * len(known)
    are_ranks = all(match["rank"] for match in found)
    if len(known) < 2 or not (is_dense or are_ranks):  # noqa: PLR2004
        return frozenset()
    if len(numbers) == len(known) and any(match["barred"] for match in found):
        return frozenset()  # rows of a table have each number once
    # Epochs only go up, and no traceback has their number.
    is_traceback = any("Traceback (most" in match.string for match in found)
    is_mixed = numbers != sorted(numbers) or is_traceback or are_ranks
    return frozenset(match[0] for match in found) if is_mixed else frozenset()
