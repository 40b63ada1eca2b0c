"""Hides what a report should not carry out of the house: hosts, users, folders, values.

Kept are ranks, groups, function names, the base name of each file and its line: what is needed to
understand the finding. Source lines are left out, because nobody knows what they hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from whystuck.evidence.decoding import convert
from whystuck.evidence.finding import Report
from whystuck.evidence.logs.report import LogRecord
from whystuck.safe_text.escaping import escape_line
from whystuck.safe_text.secrets import drop_logins, hide_secrets
from whystuck.safe_text.values import hide_values

HIDDEN = "<hidden>"
# Free text of the job: its command line, its folder, its environment, its source.
_FREE_TEXT_KEYS = frozenset({"command", "cwd", "env", "environment", "code", "argv"})
# Words of ours, which a host of the same name must not change.
_OUR_KEYS = ("code", "name", "severity", "confidence")
_NODE_KEYS = ("node", "nodes", "host", "hosts", "hostname")

_WORD = re.compile(r"[\w-]+")
# Names of hosts and users with a dot or another odd character, such as `n1.cluster`.
_MAX_ODD = 256
_RANK_FOLDER = re.compile(r"(?<![^/\s])([^/\s]+)/rank-\d+(?=/|$)")
_PATH = re.compile(r"(?<![\w.…~])~?(?:/[^/\s'\"`:,;()<>\[\]]+)+/?")
_HOME = re.compile(r"/(?:home|Users|users)/([^/\s'\"`:,;]+)")
_ENVIRONMENT = re.compile(r"\b([A-Z][A-Z0-9_]{2,})=(\"[^\"]*\"|'[^']*'|[^\s,;)]+)")
# One that stands right behind another is part of the same match: no match begins inside a word.
_DOMAIN_OF_MAIL = r"@[\w-]++(?:\.[\w-]++)*+"
_MAIL = re.compile(rf"(?<![\w.+-])[\w.+-]+{_DOMAIN_OF_MAIL}(?:(?:[.+][\w.+-]*)?{_DOMAIN_OF_MAIL})*")
_IPV4 = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b")
_IPV6 = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{0,4}:){3,7}[0-9a-fA-F]{1,4}(?![\w:])")
# `name:29500`, as connections and NCCL's log prefix write it; file:line has an extension.
_HOST_PORT = re.compile(r"(?<![\w./-])(?!localhost\b)([A-Za-z](?=[\w-]*\d)[\w-]*+)(?=:\d{4,}\b)")
_DOMAIN = re.compile(
    r"(?<![\w-])(?<![\w-]\.)[\w-]+(?:\.[\w-]+)*\.(?:local|internal|lan|corp|cluster|com|net|org|io|cloud|edu|dev)\b"
)


def redact_report(report: Report) -> Report:
    """Return ``report`` without host names, user names, folders, source and environment values."""
    plain = msgspec.to_builtins(report, str_keys=True)
    redactor = _Redactor(_node_names(plain), _user_names(plain))
    plain["context"] = _without_free_text(plain["context"])
    for finding in plain["findings"]:
        finding["details"] = _without_free_text(finding["details"])
    for one in [plain["job"], *plain["job"]["other_runs"]] if plain["job"] else ():
        one.update(dict.fromkeys(_FREE_TEXT_KEYS & one.keys(), ""))
    shown = redactor.value(plain)
    shown["verdict"] = plain["verdict"]
    for finding, original in zip(shown["findings"], plain["findings"], strict=True):
        finding |= {key: original[key] for key in _OUR_KEYS}
        # Advice such as `set NCCL_DEBUG=INFO` is useless without the value.
        finding["remedies"] = [redactor.names(text) for text in original["remedies"]]
    return convert(shown, Report)


def redact_records(records: Sequence[LogRecord]) -> list[LogRecord]:
    """Return errors of logs without host names, user names, folders and environment values."""
    plain = [msgspec.to_builtins(record) for record in records]
    nodes = dict.fromkeys(record.node for record in records if record.node)
    for record in records:
        nodes |= dict.fromkeys(_RANK_FOLDER.findall(record.artifact))
    redactor = _Redactor(_keep_names(nodes), _user_names(plain))
    free = ("node", "artifact", "text")
    return [
        msgspec.structs.replace(record, **{name: redactor.text(shown[name]) for name in free})
        for record, shown in zip(records, plain, strict=True)
    ]


class FileRedactor:
    """Redacts files of evidence beside a report, with the same stand-ins in all of them."""

    def __init__(self, report: Report, nodes: Iterable[str], texts: Iterable[str]) -> None:
        """Take names from a report, from nodes that are known, and from folders in texts."""
        plain = msgspec.to_builtins(report, str_keys=True)
        names = dict.fromkeys([*_node_names(plain), *_keep_names(nodes)])
        users = dict.fromkeys(_user_names(plain))
        for text in texts:
            users |= dict.fromkeys(_HOME.findall(text))
        self._redactor = _Redactor(names, users)

    def text(self, text: str) -> str:
        """Redact a text with many lines."""
        return "\n".join(self._redactor.text(hide_secrets(line)) for line in text.split("\n"))

    def json(self, value: object) -> object:
        """Redact a value of JSON, and leave out commands, folders and variables."""
        return self._redactor.value(_drop_free_text(hide_values(value)))

    def path(self, path: str) -> str:
        """Redact the names of nodes in a path inside the evidence, and make it visible."""
        return "/".join(escape_line(self._redactor.names(part)) for part in path.split("/"))


def _drop_free_text(value: Any) -> Any:  # noqa: ANN401 - any JSON value in, the same shape out
    if isinstance(value, dict):
        return {key: _drop_free_text(item) for key, item in _without_free_text(value).items()}
    return [_drop_free_text(item) for item in value] if isinstance(value, list) else value


class _Redactor:
    """Replaces names by numbered stand-ins, the same name always by the same one."""

    def __init__(self, nodes: Iterable[str], users: Iterable[str]) -> None:
        known = {name: f"node-{number}" for number, name in enumerate(nodes, 1)}
        known |= {name: f"user-{number}" for number, name in enumerate(users, 1)}
        self._stand_ins = known
        # Of one word each, which there may be any number of; the others are compared one by one.
        odd = [name for name in known if not _WORD.fullmatch(name)][:_MAX_ODD]
        longest_first = sorted(odd, key=len, reverse=True)
        self._odd = (
            re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w-])")
            if odd
            else None
        )

    def value(self, value: Any) -> Any:  # noqa: ANN401 - any JSON value in, the same shape out
        """Redact every string of a JSON value."""
        if isinstance(value, dict):
            return {
                self.text(key): self._file(item) if key == "file" else self.value(item)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self.value(item) for item in value]
        return self.text(value) if isinstance(value, str) else value

    def text(self, text: str) -> str:
        """Redact names, folders and environment values."""
        return self.names(_ENVIRONMENT.sub(rf"\1={HIDDEN}", text))

    def names(self, text: str) -> str:
        """Redact names and folders."""
        text = drop_logins(text, f"{HIDDEN}@")
        if self._odd:
            text = self._odd.sub(lambda match: self._stand_ins[match[0]], text)
        if self._stand_ins:
            text = _WORD.sub(lambda match: self._stand_ins.get(match[0], match[0]), text)
        text = _MAIL.sub("<user>", text)
        text = _DOMAIN.sub("<host>", text)
        text = _IPV4.sub("<address>", text)
        text = _IPV6.sub("<address>", text)
        text = _HOST_PORT.sub("<host>", text)
        return _PATH.sub(_base_name, text)

    def _file(self, file: str) -> str:
        """Keep the base name, also of a relative path."""
        folder, _, name = file.rstrip("/").rpartition("/")
        return f"…/{self.names(name)}" if folder else self.names(name)


def _without_free_text(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in _FREE_TEXT_KEYS}


def _base_name(match: re.Match[str]) -> str:
    return "…/" + match[0].rstrip("/").rpartition("/")[2]


def _node_names(plain: dict[str, Any]) -> list[str]:
    names: dict[str, None] = {}
    for finding in plain["findings"]:
        names |= dict.fromkeys(finding["culprits"]["nodes"])
    for key in _NODE_KEYS:
        value = plain["context"].get(key)
        names |= dict.fromkeys([value] if isinstance(value, str) else _strings(value))
    for line in plain["logs"]["first"]:
        names |= dict.fromkeys([line["node"]] if line["node"] else [])
    for clock in plain["logs"]["clocks"]:
        names |= dict.fromkeys((clock["clock"], clock["reference"]))
    names |= dict.fromkeys(plain["logs"]["unmatched_clocks"])
    for text in _strings(plain):
        names |= dict.fromkeys(_RANK_FOLDER.findall(text))
    return _keep_names(names)


def _keep_names(names: Iterable[str]) -> list[str]:
    """Keep what is a name of a host, and neither a number nor a path, which is hidden as one."""
    return [
        name
        for name in names
        if name != "localhost" and not name.isdecimal() and "/" not in name and "." not in name[-5:]
    ]


def _user_names(plain: object) -> list[str]:
    return list(dict.fromkeys(name for text in _strings(plain) for name in _HOME.findall(text)))


def _strings(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for item in items for text in _strings(item)]
