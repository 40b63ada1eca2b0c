"""What to inspect: the text of ``--inspect``, taken apart and checked.

The command line reads this file too, so that a mistake is told before the job starts: it needs
nothing but the standard library.
"""

from __future__ import annotations

import math
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

MAX_ITEMS = 32
_FILTER = ("rate", "seed", "ops", "min", "max")
# The options of each item; a flag stands alone, without a value.
_OPTIONS = {
    "stats": _FILTER,
    "finite": _FILTER,
    "results": _FILTER,
    "weights": ("every", "grads"),
    "amp": (),
    "print": ("rank", "ops"),
    "sync": (),
    "call": ("on", "action", "ops"),
}
_FLAGS = ("grads",)
_ACTIONS = ("log", "raise", "break")
# What the op log calls an op, and the endings that make its variants.
_OPS = (
    "all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "reduce_scatter",
    "all_to_all", "barrier", "monitored_barrier", "send", "recv",
)  # fmt: skip
_ENDINGS = ("", "_base", "_coalesced", "_base_coalesced", "_any")
_SUFFIXES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_MAX_NUMBER = 2**62


class SpecError(ValueError):
    """One sentence about what cannot be understood."""


class Filter:
    """Which ops an item is about: names, bytes of their tensors, and a share of them."""

    def __init__(self, options: dict[str, str]) -> None:
        self.ops = _read_ops(options.get("ops", ""))
        self.rate = _read_rate(options.get("rate", "1"))
        self.seed = _read_number("seed", options.get("seed", "0"))
        self.min_bytes = _read_bytes("min", options.get("min", "0"))
        self.max_bytes = _read_bytes("max", options.get("max", "")) if "max" in options else None
        if self.max_bytes is not None and self.max_bytes < self.min_bytes:
            raise SpecError("`max` is less than `min`")

    def takes(self, name: str, group: str, seq: int) -> bool:
        """Tell whether an op is chosen: the same op on all ranks, as only its number decides."""
        if self.ops and name not in self.ops:
            return False
        if self.rate >= 1:
            return True
        key = f"{self.seed}:{group}:{seq}".encode()
        return zlib.crc32(key) < self.rate * 2**32

    def takes_bytes(self, size: int) -> bool:
        """Tell whether a tensor of so many bytes is looked at."""
        return self.min_bytes <= size and (self.max_bytes is None or size <= self.max_bytes)


class Weights:
    """Checksums at every so many optimizer steps; of the gradients too, when asked for."""

    def __init__(self, options: dict[str, str]) -> None:
        self.every = _read_number("every", options.get("every", "1"), least=1)
        self.grads = "grads" in options


class Print:
    """A line for each op; ``ranks`` is None for all."""

    def __init__(self, options: dict[str, str]) -> None:
        self.ranks = _read_ranks(options.get("rank", "all"))
        self.ops = _read_ops(options.get("ops", ""))


class Call:
    """A check of the user: where it is, on which ranks, and what follows from what it says."""

    def __init__(self, target: str, options: dict[str, str]) -> None:
        self.target = target
        self.ranks = _read_ranks(options.get("on", "all"))
        self.action = options.get("action", "log")
        if self.action not in _ACTIONS:
            raise SpecError(f"`action` is one of {', '.join(_ACTIONS)}, not {self.action!r}")
        self.ops = _read_ops(options.get("ops", ""))


class Spec:
    """All that is asked for."""

    def __init__(self) -> None:
        self.stats: Filter | None = None
        self.finite: Filter | None = None
        self.results: Filter | None = None
        self.weights: Weights | None = None
        self.prints: list[Print] = []
        self.calls: list[Call] = []
        self.amp = False
        self.sync = False

    @property
    def needs_ops(self) -> bool:
        """Whether anything is about single ops, which only the op log sees."""
        about_tensors = self.stats or self.finite or self.results
        return bool(about_tensors or self.prints or self.calls or self.sync)

    @property
    def counts_updates(self) -> bool:
        """Whether updates of the parameters are counted, and those that are skipped."""
        return bool(self.amp or self.weights or self.stats or self.finite or self.results)


def parse_spec(text: str) -> Spec:
    """Take a SPEC apart.

    Args:
        text: Items with commas between them, each ``name[:key=value]...``.

    Returns:
        What it asks for.

    Raises:
        SpecError: It cannot be understood.
    """
    items = text.split(",")
    if len(items) > MAX_ITEMS:
        raise SpecError(f"it has more than {MAX_ITEMS} items")
    spec = Spec()
    seen: set[str] = set()
    for item in items:
        name, _, rest = item.strip().partition(":")
        if name not in _OPTIONS:
            raise SpecError(f"{name!r} is no item; there are {', '.join(_OPTIONS)}")
        if name in seen and name not in ("print", "call"):
            raise SpecError(f"`{name}` is there twice")
        seen.add(name)
        _ADD[name](spec, rest)
    # Who asks for all figures gets these, too.
    spec.results = spec.results or spec.stats
    return spec


def check_spec(text: str) -> str:
    """Return what is wrong with a SPEC, an empty text when nothing is."""
    try:
        parse_spec(text)
    except SpecError as error:
        return str(error)
    return ""


def _add_call(spec: Spec, rest: str) -> None:
    parts = rest.split(":")
    if len(parts) < 2 or not all(_is_dotted(part) for part in parts[:2]):  # noqa: PLR2004 - two
        raise SpecError("`call` needs a module and a name: `call:my_checks:Check`")
    options = _read_options("call", parts[2:])
    spec.calls.append(Call(f"{parts[0]}:{parts[1]}", options))


def _add_filter(name: str) -> Callable[[Spec, str], None]:
    def add(spec: Spec, rest: str) -> None:
        setattr(spec, name, Filter(_read_options(name, _split(rest))))

    return add


def _add_weights(spec: Spec, rest: str) -> None:
    spec.weights = Weights(_read_options("weights", _split(rest)))


def _add_print(spec: Spec, rest: str) -> None:
    spec.prints.append(Print(_read_options("print", _split(rest))))


def _add_flag(name: str) -> Callable[[Spec, str], None]:
    def add(spec: Spec, rest: str) -> None:
        _read_options(name, _split(rest))
        setattr(spec, name, True)

    return add


_ADD = {
    "stats": _add_filter("stats"),
    "finite": _add_filter("finite"),
    "results": _add_filter("results"),
    "weights": _add_weights,
    "amp": _add_flag("amp"),
    "print": _add_print,
    "sync": _add_flag("sync"),
    "call": _add_call,
}


def _split(rest: str) -> list[str]:
    return rest.split(":") if rest else []


def _read_options(name: str, parts: list[str]) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in parts:
        key, has_value, value = part.partition("=")
        if key not in _OPTIONS[name]:
            known = ", ".join(_OPTIONS[name]) or "none"
            raise SpecError(f"`{name}` has no option {key!r}; it has {known}")
        if bool(has_value) is (key in _FLAGS):
            form = f"`{key}`" if key in _FLAGS else f"`{key}=VALUE`"
            raise SpecError(f"the option of `{name}` is written {form}")
        if key in options:
            raise SpecError(f"`{key}` of `{name}` is there twice")
        options[key] = value
    return options


def _read_ops(text: str) -> frozenset[str]:
    """Return the ops that some names stand for: each with its variants."""
    found: set[str] = set()
    for name in text.split("+") if text else ():
        every = {known + ending for known in _OPS for ending in _ENDINGS}
        if name not in every:
            raise SpecError(f"{name!r} is no op; there are {', '.join(_OPS)}")
        found |= {name + ending for ending in _ENDINGS} if name in _OPS else {name}
    return frozenset(found)


def _read_rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate <= 1:
        raise SpecError(f"`rate` is a number above 0 and up to 1, not {text!r}")
    return rate


def _read_number(key: str, text: str, least: int = 0) -> int:
    if not (text.isascii() and text.isdigit()) or not least <= int(text[:20]) <= _MAX_NUMBER:
        raise SpecError(f"`{key}` is a whole number from {least}, not {text[:40]!r}")
    return int(text[:20])


def _read_bytes(key: str, text: str) -> int:
    factor = _SUFFIXES.get(text[-1:].lower(), 0)
    return _read_number(key, text[:-1] if factor else text) * (factor or 1)


def _read_ranks(text: str) -> frozenset[int] | None:
    if text == "all":
        return None
    return frozenset(
        _read_number("rank", part[4:].strip() if part.startswith("rank") else part)
        for part in text.split("+")
    )


def _is_dotted(name: str) -> bool:
    return bool(name) and all(part.isidentifier() for part in name.split("."))
