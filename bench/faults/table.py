"""The results as text."""

from bench.faults.judge import Outcome
from bench.faults.score import Score

HEADER = (
    *("case", "seed", "shape", "expected", "got", "ranks", "true"),
    *("name", "rank", "line", "exit", "stall s", "total s", "notes"),
)
MARKS = {None: "", True: "yes", False: "NO"}


def render_row(outcome: Outcome) -> tuple[str, ...]:
    return (
        outcome.case,
        str(outcome.seed),
        outcome.shape,
        outcome.expected,
        outcome.got if outcome.got != "-" else outcome.verdict,
        _ranks(outcome.ranks),
        _ranks(outcome.true_ranks),
        MARKS[outcome.name_ok],
        MARKS[outcome.rank_ok],
        MARKS[outcome.line_ok],
        f"{outcome.exit_code}{'' if outcome.exit_ok else ' !'}",
        "-" if outcome.stall_to_verdict is None else f"{outcome.stall_to_verdict:.1f}",
        f"{outcome.seconds:.0f}",
        "; ".join(render_notes(outcome)),
    )


def render_notes(outcome: Outcome) -> list[str]:
    notes = list(outcome.notes)
    if outcome.false_alarm:
        notes.append("FALSE ALARM")
    if outcome.wrong_rank:
        notes.append("WRONG RANK")
    if outcome.decoy:
        notes.append(f"decoy {outcome.decoy}")
    if outcome.inconclusive:
        notes.append("inconclusive")
    if outcome.verdict_ok is False:
        notes.append(f"verdict {outcome.verdict}")
    return notes


def render_table(outcomes: list[Outcome]) -> str:
    rows = [HEADER, *(render_row(one) for one in outcomes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def render_scores(scores: list[Score]) -> str:
    return "\n".join(map(str, scores))


def _ranks(ranks: list[int]) -> str:
    return ",".join(map(str, ranks)) or "-"
