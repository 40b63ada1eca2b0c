"""The pages of known log lines and of Xids, for ``whystuck explain``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from whystuck.cli.offline.page import Page
from whystuck.evidence.errors import UsageError
from whystuck.parse.logs.signatures import Signature, Xid, load_signatures, load_xids
from whystuck.safe_text.escaping import show_line

LIST = "signatures"

_XID = re.compile(r"xid[ .:]*(\d{1,9})", re.IGNORECASE)
_ROLES = {
    "cause": "It can be the cause of what went wrong.",
    "cascade": "It follows from something else: look for the cause in earlier lines.",
    "context": "It is no cause. It helps to understand other lines.",
}
_HARDWARE = {
    "yes": "It is about the machine.",
    "maybe": "It may be about the machine.",
    "no": "It is not about the machine.",
}
_SEVERITIES = {"by-code": "see below", "by-severity-word": "the line tells"}
# The recovery actions of NVIDIA's catalogue, in words.
_ACTIONS = {
    "": "The catalogue names no action.",
    "CHECK_APP/CUDA": "Check the program: its kernels and its use of CUDA.",
    "CHECK_MECHANICALS": "Check power cables and how the card sits.",
    "CHECK_UVM": "Check unified memory: look at the other Xids beside it.",
    "CONTACT_SUPPORT": "Ask the vendor of the machine.",
    "IGNORE": "Nothing needs to be done.",
    "INVESTIGATE_SW": "Look into the software: driver, firmware and program.",
    "RESET_GPU": "Reset the device.",
    "RESTART_APP": "Restart the job.",
    "RESTART_BM": "Restart the machine.",
    "RESTART_VM": "Restart the virtual machine.",
    "UPDATE_SWFW": "Update driver and firmware.",
    "XID_154": "Do what the line itself names.",
    "WORKFLOW_NVLINK5_ERR": "Follow NVIDIA's workflow for errors of NVLink 5.",
    "WORKFLOW_NVLINK_ERR": "Follow NVIDIA's workflow for errors of NVLink.",
    "WORKFLOW_XID_13": "Follow NVIDIA's workflow for this Xid.",
    "WORKFLOW_XID_31": "Follow NVIDIA's workflow for this Xid.",
    "WORKFLOW_XID_45": "Follow NVIDIA's workflow for this Xid.",
    "WORKFLOW_XID_48": "Follow NVIDIA's workflow for this Xid.",
}


def find_log_page(wanted: str, signatures: Sequence[Signature] = ()) -> Page | None:
    """Return the page of a signature or of an Xid; none when the word names neither.

    Args:
        wanted: An id such as ``oom.kernel``, or a number such as ``xid.79`` or ``xid 79``.
        signatures: All signatures; ours when left out.

    Raises:
        UsageError: An Xid that NVIDIA's catalogue does not have.
    """
    match = _XID.fullmatch(wanted)
    name = f"xid.{int(match[1])}" if match else wanted.lower()
    xid = load_xids().get(int(match[1])) if match else None
    known = signatures or load_signatures()
    for signature in known:
        if name == signature.id.lower():
            return _page_of_signature(signature, xid)
    return _page_of_xid(int(match[1]), known) if match else None


def list_log_pages(signatures: Sequence[Signature] = ()) -> str:
    """Return a line for each signature; of ours when none are given."""
    known = signatures or load_signatures()
    column = max(len(item.id) for item in known)
    lines = [
        f"{item.id:<{column}}  {item.role:<7}  {item.meaning}"
        for item in sorted(known, key=lambda item: item.id)
    ]
    # The words of a user's own table may hold anything.
    return "\n".join(map(show_line, lines)) + "\n"


def log_words(signatures: Sequence[Signature] = ()) -> list[str]:
    """Return all ids, for a hint at the nearest one."""
    return [signature.id for signature in signatures or load_signatures()]


def _page_of_signature(signature: Signature, xid: Xid | None) -> Page:
    text = "\n".join(map(show_line, _describe(signature, xid)))
    severity = _SEVERITIES.get(signature.severity, signature.severity)
    return Page(signature.id, show_line(signature.kind), severity, text)


def _describe(signature: Signature, xid: Xid | None) -> Iterator[str]:
    yield from (signature.meaning or "A line that your own table knows.", "")
    yield from ("## What it means", "")
    yield f"{_ROLES[signature.role]} {_HARDWARE[signature.is_hardware]}"
    if xid:
        yield from ("", *_facts_of(xid))
    yield from ("", "## How it is found", "")
    if signature.example:
        yield f"In logs of the kind `{signature.log_source}`, by lines such as"
        yield from ("", f"    {signature.example}", "", "that match")
    else:
        yield f"In logs of the kind `{signature.log_source}`, by lines that match"
    yield from ("", f"    {signature.regex}", "")
    if signature.finding:
        yield from (f"Such a line belongs to the finding {signature.finding}.", "")
    if signature.lookalike:
        yield from ("## False alarms", "", "This line looks like it, and does not count:", "")
        yield from (f"    {signature.lookalike}", "")
    if signature.action:
        yield from ("## What to do", "", f"{_sentence(signature.action)}", "")
    yield from _list_sources(signature.origin, *([xid.origin] if xid else []))


def _page_of_xid(number: int, signatures: Sequence[Signature]) -> Page:
    """Return the page of a number that no signature is called after."""
    xid = load_xids().get(number)
    if xid is None:
        raise UsageError(
            f"NVIDIA's catalogue has no Xid {number}",
            hint=f"it has {min(load_xids())} to {max(load_xids())}",
        )
    line = f"NVRM: Xid (PCI:0000:00:00): {number}, Fatal"
    signature = next(item for item in signatures if re.search(item.regex, line))
    return Page(
        code=f"xid.{number}",
        name=xid.mnemonic,
        severity=_SEVERITIES.get(signature.severity, signature.severity),
        text="\n".join(_describe_xid(xid, signature)),
    )


def _describe_xid(xid: Xid, signature: Signature) -> Iterator[str]:
    yield from (_sentence(xid.description), "")
    yield from ("## What it means", "")
    if signature.severity != "by-code":
        yield f"{_ROLES[signature.role]} {_HARDWARE[signature.is_hardware]}"
    yield f"Lines with this number are told as `{signature.id}` ({signature.kind})."
    yield from ("", *_facts_of(xid), "", "## What to do", "")
    if signature.severity == "by-code":
        yield from (_action(xid.action), "")
    else:
        yield from (_sentence(signature.action), "")
    yield from _list_sources(xid.origin, signature.origin)


def _facts_of(xid: Xid) -> Iterator[str]:
    """Yield what NVIDIA's catalogue says."""
    yield f"NVIDIA calls Xid {xid.xid} {xid.mnemonic}: {xid.description}."
    yield ""
    yield f"- At once: {_action(xid.action)}"
    if xid.investigation:
        yield f"- Afterwards: {_action(xid.investigation)}"


def _action(name: str) -> str:
    return f"{_ACTIONS[name]} ({name})" if name and name in _ACTIONS else _ACTIONS.get(name, name)


def _list_sources(*sources: str) -> Iterator[str]:
    told = [source for source in sources if source]
    if told:
        yield from ("## Source", "")
        yield from (f"- {source}" for source in told)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."
