"""Templates: what entries that are alike byte by byte have in common, all but their numbers.

Ops that are issued again and again are written with the same bytes, in which only times, counters
and numbers of the memo differ. One entry of each such layout is a template: it is taken apart
once, and all others are compared with it, and their numbers read, in a few steps of numpy. Numbers
by which they call for something in the memo, such as a shape, tell the kinds of entries apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from whystuck.parse.dumps.fast.entry_keys import Key
from whystuck.parse.dumps.fast.template_builder import EntryTemplate, try_template

_MAX_KNOWN = 4096


@dataclass
class KnownTemplates:
    """Templates of dumps that were read before: those of one job are much alike."""

    by_keys: dict[tuple[Key, ...], dict[int, list[EntryTemplate]]] = field(default_factory=dict)
    count: int = 0

    def choose(self, keys: tuple[Key, ...]) -> dict[int, list[EntryTemplate]]:
        """Return the templates of entries with these keys, by the length of the entry."""
        if self.count > _MAX_KNOWN:
            self.by_keys.clear()
            self.count = 0
        return self.by_keys.setdefault(keys, {})

    def find(
        self, templates: list[EntryTemplate], entry: bytes, keys: Sequence[Key]
    ) -> EntryTemplate | None:
        """Find the template of an entry, or make one.

        Args:
            templates: Those of its length; a new one is added.
            entry: The bytes of the entry.
            keys: Its keys, in their order.

        Returns:
            The template, or None when the entry cannot serve as one.
        """
        value = int.from_bytes(entry, "little")
        template = next(
            (template for template in templates if not (value ^ template.value) & template.mask),
            None,
        )
        if template is None:
            template = try_template(keys, entry)
            if template is not None:
                templates.append(template)
                self.count += 1
        return template
