"""``whystuck switch``: what a running job records, shown and changed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from whystuck.cli.form_options import format_option
from whystuck.cli.group import nearest
from whystuck.cli.number_range import NumberRange
from whystuck.cli.stdout import encode_for_stdout, write_stdout
from whystuck.evidence.decoding import convert
from whystuck.evidence.errors import UsageError
from whystuck.safe_text.escaping import show_line
from whystuck.safe_text.values import encode_json

if TYPE_CHECKING:
    from whystuck.evidence.records import SwitchRecord
    from whystuck.launch.running import FoundJob
    from whystuck.launch.switch.ranks import RankSwitch
    from whystuck.launch.switch.switching import SwitchState

NOT_ACKNOWLEDGED = 3
_POLL_S = 0.1
_SHOWN_RANKS = 8
_KEYS = ("comm", "marks", "step", "forward", "checkpoint", "dataloader", "inspect")
_MARK_KEYS = _KEYS[2:-1]
_COLUMNS = ("comm", "marks", "inspect")
_ON_OFF = ("on", "off")


@click.command()
@click.argument("action", metavar="get|set", type=click.Choice(["get", "set"]))
@click.argument("settings", nargs=-1, metavar="[KEY=on|off]... [inspect=SPEC|off]")
@click.option(
    "--job",
    "job_name",
    metavar="ID",
    help="The job: the id that Slurm or its launcher gave it, the pid of its `whystuck run`, or "
    "the beginning of one.  [default: the only one of this node]",
)
@click.option(
    "--timeout",
    "timeout_s",
    metavar="S",
    type=NumberRange(min=0),
    default=30.0,
    show_default=True,
    help="With `set`, how many seconds to wait until all ranks have applied it.",
)
@click.option("--no-wait", is_flag=True, help="With `set`, do not wait for the ranks.")
@format_option("The form of the output.")
def switch(
    *,
    action: str,
    settings: tuple[str, ...],
    job_name: str | None,
    timeout_s: float,
    no_wait: bool,
    output_format: str,
) -> int:
    """Change what a running job records, or show it.

    All ranks of this node apply a change between the same two optimizer steps, without a restart.
    The job must run under `whystuck run`. `comm` records collectives, sends and receives, `marks`
    the phases of a step, and `inspect` looks into tensors. Of the phases, `step`, `forward` (and
    backward), `checkpoint` and `dataloader` can be switched alone.

    whystuck switch set comm=off
    """
    from whystuck.launch.running import choose_running_job
    from whystuck.launch.switch.switching import change_state, read_state

    if action == "get" and settings:
        raise UsageError(
            "`switch get` takes no settings", hint=f"use `whystuck switch set {settings[0]}`"
        )
    if action == "set" and not settings:
        raise UsageError("there is nothing to set", hint="e.g. `whystuck switch set comm=on`")
    wanted = _parse_settings(settings)
    job = choose_running_job(job_name)
    if action == "get":
        _emit(job, read_state(job.folder), output_format)
        return 0
    try:
        state = change_state(job.folder, wanted)
    except OSError as error:
        raise UsageError(
            f"job {job.title} cannot be told: {error.strerror or error}",
            hint="it may have ended just now; `fuser` tells which process holds a file",
        ) from error
    if not no_wait:
        _wait(job, state, timeout_s)
    is_done = _emit(job, state, output_format)
    _tell_other_nodes(job)
    return 0 if no_wait or is_done else NOT_ACKNOWLEDGED


def _parse_settings(settings: tuple[str, ...]) -> SwitchState:

    from whystuck.launch.options import MAX_SPEC_CHARS
    from whystuck.launch.switch.inspect_spec import check_inspect_spec
    from whystuck.launch.switch.switching import SwitchState

    values: dict[str, str] = {}
    for one in settings:
        key, has_value, value = one.partition("=")
        if key not in _KEYS:
            near = nearest(key, _KEYS) or "comm"
            raise UsageError(f"`{key}` cannot be switched", hint=f"did you mean `{near}=...`?")
        if key in values:
            raise UsageError(f"`{key}` is given twice", hint="give it once")
        if key == "inspect":
            if not 0 < len(value) <= MAX_SPEC_CHARS:
                raise UsageError(
                    f"`inspect` needs a text of at most {MAX_SPEC_CHARS} characters",
                    hint="`inspect=off` ends it",
                )
            check_inspect_spec(value)
        elif not has_value or value not in _ON_OFF:
            raise UsageError(f"`{one}` is not understood", hint=f"use `{key}=on` or `{key}=off`")
        values[key] = value
    return convert(values, SwitchState)


def _wait(job: FoundJob, state: SwitchState, timeout_s: float) -> None:
    """Wait until all live ranks have answered; those that come meanwhile are asked too."""
    from whystuck.launch.switch.ranks import live_ranks

    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s and job.folder.is_dir():
        ranks = live_ranks(job.folder)
        if ranks and all(_has_answered(rank, state) for rank in ranks):
            return
        time.sleep(_POLL_S)


def _has_answered(rank: RankSwitch, state: SwitchState) -> bool:
    # A newer answer is to a word that came after ours.
    return rank.answer is not None and rank.answer.generation >= (state.generation or 0)


def _emit(job: FoundJob, state: SwitchState, output_format: str) -> bool:
    """Print how all ranks are; return whether all have applied it without an error."""
    from whystuck.launch.switch.ranks import live_ranks

    ranks = live_ranks(job.folder)
    if output_format == "json":
        write_stdout(encode_json(_as_json(job, state, ranks)))
    else:
        write_stdout(encode_for_stdout("\n".join(_as_text(job, state, ranks)) + "\n"))
    return _tell_missing(ranks, state)


def _tell_missing(ranks: list[RankSwitch], state: SwitchState) -> bool:
    """Say on stderr who has not applied a state; return whether all have."""
    waiting = [rank.beat.rank for rank in ranks if not _has_answered(rank, state)]
    failed = [rank.beat.rank for rank in ranks if rank.answer and rank.answer.error]
    if not ranks:
        click.echo("no rank of this job runs on this node yet, or all have ended", err=True)
    elif waiting:
        click.echo(f"not applied yet by {_count(waiting)} of {len(ranks)}", err=True)
        due = f"it is due after optimizer step {state.at_step}; " if state.at_step else ""
        click.echo(f"hint: {due}`whystuck switch get` shows when it is applied", err=True)
    elif failed:
        click.echo(f"could not be applied as a whole by {_count(failed)} of {len(ranks)}", err=True)
    return bool(ranks) and not waiting and not failed


def _tell_other_nodes(job: FoundJob) -> None:
    """Say that ranks of other nodes were not asked."""
    from whystuck.launch.switch.ranks import live_ranks

    ranks = live_ranks(job.folder)
    others = max((rank.beat.world_size for rank in ranks), default=0) - len(ranks)
    if others > 0:
        click.echo(f"{others} ranks of this job run elsewhere, and were not asked", err=True)
        click.echo("hint: `whystuck run --switch-file FILE` switches all nodes at once", err=True)


def _count(ranks: list[int]) -> str:
    """Put some ranks into words: ``rank 3``, ``2 ranks (0, 1)``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = ", ..." if len(ranks) > _SHOWN_RANKS else ""
    return f"{len(ranks)} ranks ({', '.join(map(str, ranks[:_SHOWN_RANKS]))}{more})"


def _as_json(job: FoundJob, state: SwitchState, ranks: list[RankSwitch]) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "job": {
            "id": job.names[0],
            "pid": job.job.pid,
            "node": job.job.node,
            "command": job.job.command,
            "evidence": job.job.evidence,
            "started_ns": job.job.started_ns,
        },
        "wanted": {
            "generation": state.generation,
            "at_step": state.at_step,
            **_as_values({key: getattr(state, key) for key in _KEYS}),
        },
        "ranks": [
            {
                "rank": one.beat.rank,
                "pid": one.pid,
                "steps": one.beat.optimizer_steps,
                "beat_age_s": round(one.beat.age_s, 3),
                "acknowledged": _has_answered(one, state),
                "applied": None
                if one.answer is None
                else {
                    "generation": one.answer.generation,
                    "step": one.answer.step,
                    **_as_values(_read_answer(one.answer)),
                    "error": one.answer.error,
                    "disarmed": one.answer.disarmed,
                },
            }
            for one in ranks
        ],
    }


def _read_answer(answer: SwitchRecord) -> dict[str, Any]:
    kinds = {key: answer.kinds.get(key, "off") for key in _MARK_KEYS}
    return {"comm": answer.comm, **kinds, "inspect": answer.inspect}


def _as_values(values: dict[str, Any]) -> dict[str, Any]:
    """Return what is told of settings: all of them, and marks as one beside that."""
    states = {values[key] for key in _MARK_KEYS}
    return {
        "comm": values["comm"],
        "marks": states.pop() if len(states) == 1 else "mixed",
        "inspect": values["inspect"],
        "settings": {key: values[key] for key in _KEYS if key != "marks"},
    }


def _show_values(values: dict[str, Any]) -> list[str]:
    """Return the columns of a table; kinds of marks by name where not all are alike."""
    marks = _as_values(values)["marks"]
    if marks == "mixed":
        marks = ",".join(key for key in _MARK_KEYS if values[key] == "on")
    return [values["comm"], marks, values["inspect"]]


def _as_text(job: FoundJob, state: SwitchState, ranks: list[RankSwitch]) -> list[str]:

    rows = [["rank", "pid", "generation", "step", *_COLUMNS, ""]]
    for rank in ranks:
        row = [str(rank.beat.rank), str(rank.pid)]
        if rank.answer is None:
            row += ["-"] * 5 + [_explain_silence(rank)]
        else:
            answer = rank.answer
            note = _explain(answer) if _has_answered(rank, state) else _explain_silence(rank)
            row += [str(answer.generation), str(answer.step)]
            row += [*_show_values(_read_answer(answer)), note]
        rows.append(row)
    rows = [[show_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    shown = _show_values({key: getattr(state, key) for key in _KEYS})
    wanted = " ".join(f"{key}={value}" for key, value in zip(_COLUMNS, shown, strict=True))
    title = f"job {job.title}: generation {state.generation}, {wanted}"
    return [
        show_line(title),
        *("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows if ranks),
    ]


def _explain(answer: SwitchRecord) -> str:
    """Return what went wrong, or else what the probe has disarmed."""
    from whystuck.collect.disarmed import explain_disarmed

    return answer.error or explain_disarmed(answer.disarmed)


def _explain_silence(rank: RankSwitch) -> str:
    from whystuck.collect.scene import BEAT_STALE_S

    if rank.beat.age_s > BEAT_STALE_S:
        return f"its last beat is {rank.beat.age_s:.0f} s old"
    return f"at step {rank.beat.optimizer_steps}"
