"""Ways in which people draw tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Row = list[str]
Draw = Callable[[Row, Sequence[Row]], list[str]]


def draw_markdown(head: Row, rows: Sequence[Row]) -> list[str]:
    ruler = "|" + "|".join("---:" for _ in head) + "|"
    return [f"| {' | '.join(head)} |", ruler, *(f"| {' | '.join(row)} |" for row in rows)]


def draw_bars(head: Row, rows: Sequence[Row]) -> list[str]:
    lines = [" | ".join(f"{cell:>8}" for cell in row) for row in (head, *rows)]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def draw_box(head: Row, rows: Sequence[Row]) -> list[str]:
    bar = "\u2502"
    lines = [f"{bar} {f' {bar} '.join(f'{one:9}' for one in row)} {bar}" for row in (head, *rows)]
    border = "\u2500" * (len(lines[0]) - 2)
    top, middle, end = f"\u250c{border}\u2510", f"\u251c{border}\u2524", f"\u2514{border}\u2518"
    return [top, lines[0], middle, *lines[1:], end]


def draw_grid(head: Row, rows: Sequence[Row]) -> list[str]:
    border = "+" + "+".join("-" * 12 for _ in head) + "+"
    lines = [f"| {' | '.join(f'{cell:10}' for cell in row)} |" for row in (head, *rows)]
    return [border, lines[0], border.replace("-", "="), *lines[1:], border]


def draw_blanks(head: Row, rows: Sequence[Row]) -> list[str]:
    return ["   ".join(f"{cell:>9}" for cell in row) for row in (head, *rows)]


def draw_csv(head: Row, rows: Sequence[Row]) -> list[str]:
    return [",".join(row) for row in (head, *rows)]


def draw_tabs(head: Row, rows: Sequence[Row]) -> list[str]:
    return ["\t".join(row) for row in (head, *rows)]


DRAWN: list[Draw] = [
    *(draw_markdown, draw_bars, draw_box, draw_grid),
    *(draw_blanks, draw_csv, draw_tabs),
]
