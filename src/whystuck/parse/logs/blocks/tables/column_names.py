"""What the names of columns, and of rows, say that they hold: times, work, sums, hosts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

_MS = {"ms": 1.0, "us": 0.001, "\u00b5s": 0.001, "s": 1000.0}
_UNITS = r"ms|msecs?|millisec(?:ond)?s?|us|usecs?|\u00b5s|microsec(?:ond)?s?|s|secs?|seconds?"
_UNIT = re.compile(rf"(?:^|[\s_(\[,/])({_UNITS})[)\]]?\.?$", re.IGNORECASE)
_ALONE = re.compile(rf"[(\[]?({_UNITS})[)\]]?", re.IGNORECASE)
# What is measured otherwise than in time, though its name may have a word of time.
_NO_TIME = re.compile(
    r"%|/ ?s(?:ec)?\b|per[ _]s|(?:^|[\W_])(?:util\w*|[kmgt]i?b|bytes?|mhz|watts?|pwr|power|temp\w*"
    r"|loss|norm|grad|[tg]?flops?|mfu|hfu|bw|busbw|algbw|lr|mem\w*|count|calls|share|size|pctg?|percent\w*|ratio)(?![a-z])",
    re.IGNORECASE,
)
_TIMES = re.compile(
    r"data|input|h2d|d2h|fwd|forward|bwd|backward|comput|opt|step|total|iter|wait|comm|nccl|rccl"
    r"|reduce|gather|scatter|sync|barrier|idle|time|host|prep|collat|kernel|gemm|attn|attention|mlp"
    r"|batch|loader|fetch|augment|decode|token|a2a|all2all|send|recv|save|ckpt|checkpoint|eval|other"
    r"|cpu|gpu|busy|exposed|(?<![a-z])(?:rs|ag|ar|p2p)(?![a-z])",
    re.IGNORECASE,
)
# Counters that go on; with a fraction, they are times.
_STEPS = re.compile(r"(?:global[ _]?)?(?:step|iter|iteration|it|epoch|batch)s?", re.IGNORECASE)
_WORK = re.compile(
    r"(?:(?:num|n|mean|avg|total)[ _])?(?:n?tok(?:en)?s?|samples?|seqs?|sequences?|frames?|nodes"
    r"|edges?|atoms?|points?|boxes|images?|imgs?|pixels?|patches|items?|docs?|chars?|rows"
    r"|seq[ _]?len(?:gth)?|layers?|(?:micro[ _]?)?batch(?:es|[ _]size)|m?bs)",
    re.IGNORECASE,
)
_OF_WEIGHTS = r"(?:param\w{0,20}|weights?|model|state(?:[ _]?dict)?|theta|\u03b8)"
_HASHES = r"(?:hash|checksum|crc(?:32)?|md5|sha\d{0,3}|digest|fingerprint)"
# Of a hash, people show some digits: `sha1[:8]`, `md5(8)`, `hash[0:12]`.
_DIGITS = r"(?: ?\[\d{0,2}:\d{0,2}\]| ?\(\d{1,2}\))?"
_SUM = re.compile(
    rf"{_OF_WEIGHTS}[ _-]?(?:{_HASHES}|sum|(?:l[12][ _-]?)?norm|l[12]){_DIGITS}"
    # `|param|_2`, `||w||`, `sum(|w|)`, `sha1(params)`, `norm(weights)`, `L2 of params`
    rf"|\|{{1,2}}(?:{_OF_WEIGHTS}|[wp])\|{{1,2}}_?\d?|\u2016(?:{_OF_WEIGHTS}|[wp])\u2016_?\d?"
    rf"|(?:{_HASHES}{_DIGITS}|sum|norm|l[12](?:[ _]norm)?)(?:\(| of | )(?:abs\()?\|?"
    rf"(?:{_OF_WEIGHTS}|[wp])\|?\)?\)?{_DIGITS}",
    re.IGNORECASE,
)
# So people call them where the lines above say that the table has sums.
_BARE_SUM = re.compile(
    rf"{_HASHES}{_DIGITS}|(?:abs[ _]?)?sum(?:[ _]?abs)?|value|norm|l[12]",
    re.IGNORECASE,
)
_BARE_HASH = re.compile(rf"{_HASHES}{_DIGITS}", re.IGNORECASE)
# What ranks have of their own, in a table of sums.
_OWN = re.compile(r"loss|grad|tok|acc|lr\b|time|seed|data|batch", re.IGNORECASE)
# `500`, `step 500`, `@500`
_AT_STEP = re.compile(r"(?:(?:step|iter(?:ation)?|it|epoch)[ _=]?|@ ?)?(\d{1,9})", re.IGNORECASE)
_STAGES = re.compile(
    r"(?:pp|pipe(?:line)?|stage|role|tp|ep|expert)(?:[ _](?:rank|stage|id|idx))?", re.IGNORECASE
)
_MANY = re.compile(
    r"\b(?:[2-9]|\d{2,5}) ?(?:x ?)?(?:nodes?|hosts?|machines?|pods?|servers?|boxes)\b"
    r"|\b(?:nodes|hosts|machines|pods|servers)\b.{0,12}\b(?:[2-9]|\d{2,5})\b",
    re.IGNORECASE,
)
_HOSTS = re.compile(r"(?:host|node|pod|server|machine|container)(?:[ _]?name)?s?", re.IGNORECASE)
# `all in ms`, `phases (s)`, `times in seconds`
_SAID_UNIT = re.compile(
    rf"\b(?:in|unit:?|units:?|are) ({_UNITS})\b(?!\w)|[(\[]({_UNITS})[)\],;]"
    rf"|[,:;] ({_UNITS})[:.)\s]{{0,3}}$",
    re.IGNORECASE,
)
# So other languages call weights and parameters.
_WEIGHTS = (
    r"(?:\b(?:par(?:am|\u00e1m|am\u00e8)\w*|weights?|pesos|poids|gewichte?)\b|\u6743\u91cd"
    r"|\u53c2\u6570|\u91cd\u307f|\uac00\uc911\uce58)"
)
_SAID_SUM = re.compile(
    rf"\bcheck ?sums?\b|(?:{_WEIGHTS}|\b(?:model|state)\b).{{0,60}}?\b(?:hash(?:es)?|fingerprints?"
    r"|digests?|crc(?:32)?|md5|sha(?:1|256))\b|\b(?:hash(?:es)?|fingerprints?|digests?|crc(?:32)?"
    rf"|md5|sha(?:1|256)|sums?|norma?s?)\b.{{0,40}}?(?:{_WEIGHTS}|\bmodel state\b)"
    r"|\bsum (?:of |over )?\(?\|\w{1,12}\|",
    re.IGNORECASE,
)
# `sum layers.3.fc.weight`, `layers.3.fc.bias abs mean`
_OF_ONE = re.compile(
    r"\b(?:sum|mean|norm|std|l[12]|hash|crc)\b.{0,80}?\.(?:weight|bias)\b"
    r"|\.(?:weight|bias)\b.{0,20}?\b(?:sum|mean|norm|std|l[12]|hash|crc)\b",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.;!?]) ")
# A sum of what each rank has of its own, and of files.
_NO_SUM = re.compile(
    r"\b(?:shard\w*|grad\w*|local (?:loss|grad)\w*|file\w*|wheel|image|tar\w*|download\w*|batch"
    r"|data(?:set)?|inputs?)\b",
    re.IGNORECASE,
)
_SAID_PHASE = re.compile(
    r"\b(compute|forward|fwd|backward|bwd|data(?:loader|loading)?)\b[^.]{0,40}?\b(?:times?|ms"
    r"|milliseconds|seconds|durations?)\b|\b(?:times?|ms|seconds) (?:of|in|for) (?:the )?"
    r"(compute|forward|fwd|backward|bwd|data(?:loader|loading)?)\b",
    re.IGNORECASE,
)


_KINDS = (("host", _HOSTS), ("stage", _STAGES), ("sum", _SUM), ("step", _STEPS), ("work", _WORK))


# The first step compiles and fills caches, on one rank more than on others.
_FIRST = re.compile(
    r"\b(?:first|1st|initial|warm-?up|start-?up)\b.{0,20}?\b(?:iter\w*|steps?|batch\w*|timings?|epoch)\b"
    r"|\bincl(?:udes|uding|\.)?\b.{0,20}?\bcompil",
    re.IGNORECASE,
)
_SIZES = re.compile(r"\b[KMGT]i?B\b|\b(?:memory|vram|bytes)\b", re.IGNORECASE)
_TIMED = re.compile(r"\b(?:ms|s|secs?|seconds?|millis\w+|tim(?:es?|ings?|ers?))\b", re.IGNORECASE)
_NEAR = 2


class Name(NamedTuple):
    """What cells below or beside a name hold.

    The kind is ``time``, ``work``, ``sum``, ``host``, ``step`` or ``stage``, empty where it is none
    of these; ``scale`` is how many ms its unit is, 0 where the name has no unit.
    """

    text: str
    kind: str
    scale: float = 0.0


def find_scale(unit: str) -> float:
    """Return how many ms a unit is, 0 where it is none of time."""
    match = _ALONE.fullmatch(unit.strip())
    if match is None:
        return 0.0
    small = match[1].lower()
    if small.startswith(("ms", "milli")):
        return _MS["ms"]
    return _MS["us"] if small.startswith(("us", "micro", "\u00b5")) else _MS["s"]


@lru_cache(maxsize=256)
def read_name(text: str) -> Name:
    """Read the name of a column or a row."""
    text = text.strip(" :")
    unit = _UNIT.search(text)
    name = text[: unit.start()].rstrip(" _(,[/") if unit else text
    scale = find_scale(unit[1]) if unit else 0.0
    kind = next((kind for kind, pattern in _KINDS if pattern.fullmatch(text)), "")
    if kind or _NO_TIME.search(text):
        return Name(text, kind)
    is_time = scale or _TIMES.search(text)
    return Name(name, "time" if is_time else "", scale)


def find_said_scale(above: Iterable[str]) -> float:
    """Return the unit that the lines above a table tell for all of it, 0 where they do not."""
    for text in above:
        if match := _SAID_UNIT.search(text):
            return find_scale(match[1] or match[2] or match[3])
    return 0.0


def tells_sums(above: Iterable[str]) -> bool:
    """Whether the lines above a table say that it has sums over what all ranks have alike.

    A sentence beside that one may speak of gradients or data.
    """
    return any(
        _SAID_SUM.search(text) is not None and _NO_SUM.search(text) is None
        for line in above
        for text in _SENTENCE.split(line)
    )


def names_sum(text: str) -> bool:
    """Whether a text names a sum over weights, or over a parameter, that ranks have alike."""
    is_named = _SUM.search(text) or _OF_ONE.search(text) or _SAID_SUM.search(text)
    return is_named is not None and _NO_SUM.search(text) is None


def find_said_phase(above: Iterable[str]) -> str:
    """Return the phase of which the lines above a table say that its times are."""
    for text in above:
        if match := _SAID_PHASE.search(text):
            return match[1] or match[2]
    return ""


def is_hash(name: Name) -> bool:
    """Whether a name is one of hashes, of which it does not say of what they are."""
    return _BARE_HASH.fullmatch(name.text) is not None


def is_sum(name: Name) -> bool:
    """Whether a name is one of sums, in a table of which the lines above say that it has them."""
    return name.kind == "sum" or _BARE_SUM.fullmatch(name.text) is not None


def is_own(name: Name) -> bool:
    """Whether a name is of what ranks have of their own, in a table of sums."""
    return bool(name.scale) or name.kind == "work" or _OWN.search(name.text) is not None


def find_step(text: str) -> str:
    """Return the step that heads a column or a row, empty where it is none."""
    match = _AT_STEP.fullmatch(text.strip(" :"))
    return match[1] if match else ""


def tells_many_hosts(above: Iterable[str]) -> bool:
    """Whether the lines above a table say that a job has several hosts."""
    return any(_MANY.search(text) is not None for text in above)


def tells_no_times(above: Iterable[str]) -> bool:
    """Whether the lines above a table say that it has no times of usual steps."""
    for number, text in enumerate(above):
        if _FIRST.search(text):
            return True
        if number < _NEAR and _SIZES.search(text) and not _TIMED.search(text):
            return True
    return False
