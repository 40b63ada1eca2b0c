"""A click group whose commands are imported only when they are used."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click


@dataclass(frozen=True)
class CommandEntry:
    """A command: its name, ``module:attribute`` and the line that the overview shows."""

    name: str
    target: str
    help: str
    hidden: bool = False

    def load(self) -> click.Command:
        """Import the command."""
        module, _, attribute = self.target.partition(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{self.target} is not a command")
        return command


@dataclass
class Settings:
    """What the options of the group say; commands find it in ``context.obj``."""

    color: str = "auto"


class LazyGroup(click.Group):
    """Lists its commands without importing them, and suggests names for a mistyped one."""

    def __init__(self, *args: Any, entries: Sequence[CommandEntry], **kwargs: Any) -> None:  # noqa: ANN401 - passed on to click as they are
        super().__init__(*args, **kwargs)
        self._entries = {entry.name: entry for entry in entries}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names in the order of the help."""
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import one command."""
        entry = self._entries.get(cmd_name)
        return entry.load() if entry else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that ``args`` name, or say which ones are near."""
        if args and args[0] not in self._entries and not args[0].startswith("-"):
            near = nearest(args[0], self._entries)
            raise UnknownCommandError(args[0], near, ctx.command_path)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the overview from the table, so that nothing is imported for it."""
        rows = [(entry.name, entry.help) for entry in self._entries.values() if not entry.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class UnknownCommandError(click.UsageError):
    """A command that does not exist, and the names near to it."""

    def __init__(self, name: str, near: str, group: str = "whystuck") -> None:
        super().__init__(f"no command `{name}`")
        self.hint = (
            f"did you mean `{group} {near}`?" if near else f"`{group} --help` lists all commands"
        )


def nearest(word: str, known: Sequence[str] | dict[str, Any]) -> str:
    """Return the known word nearest to ``word``, or an empty string."""
    by_lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.5)
    return by_lower[found[0]] if found else ""
