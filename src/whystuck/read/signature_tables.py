"""A user's table of known log lines, laid over ours."""

from __future__ import annotations

from pathlib import Path

from whystuck.evidence.errors import UsageError
from whystuck.guarded.evidence_files import settle
from whystuck.parse.errors import ParseError
from whystuck.parse.logs.search.patterns import find_literals
from whystuck.parse.logs.signatures import Signature, load_signatures, parse_signatures
from whystuck.read.content import read_content

__all__ = ["Signature", "prepare_signatures", "read_signatures"]


def read_signatures(path: Path) -> tuple[Signature, ...]:
    """Read a user's table of known log lines, and lay it over ours.

    Args:
        path: CSV, or TOML when its name ends so.

    Returns:
        All signatures, the user's new ones first.

    Raises:
        UsageError: The file cannot be read, or a row of it cannot be used; the row is named.
    """
    try:
        data = read_content(settle(path))
        is_toml = path.suffix.lower() == ".toml"
        return parse_signatures(data, base=load_signatures(), toml=is_toml)
    except ParseError as error:
        raise UsageError(
            f"`{path}`: {error.message}", hint="the guide about known log lines has an example"
        ) from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"cannot read `{path}`: {reason}", hint="give a CSV or TOML file of known log lines"
        ) from error


def prepare_signatures() -> None:
    """Compile the patterns of our own table, for who reads logs later and does not want to wait."""
    for signature in load_signatures():
        find_literals(signature.regex)
