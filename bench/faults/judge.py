"""Compares what whystuck said with what is true."""

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.faults.again import list_changed_answers
from bench.faults.cases import Case, Truth
from bench.faults.execute import Run

ALARMS = ("error", "warning")
QUIET = ("healthy", "waiting")

Json = dict[str, Any]


@dataclass
class Outcome:
    """One row of the table. None: the question does not arise for this case."""

    case: str
    seed: int
    shape: str
    expected: str
    got: str = "-"
    verdict: str = "-"
    ranks: list[int] = field(default_factory=list)
    true_ranks: list[int] = field(default_factory=list)
    name_ok: bool | None = None
    rank_ok: bool | None = None
    line_ok: bool | None = None
    verdict_ok: bool | None = None
    exit_ok: bool = False
    exit_code: int | None = None
    wrong_rank: bool = False
    inconclusive: bool = False
    decoy: str | None = None
    false_alarm: bool = False
    stall_to_verdict: float | None = None
    detection_to_verdict: float | None = None
    seconds: float = 0.0
    leftovers: int = 0
    again_ok: bool | None = None
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> Json:
        return asdict(self)


@dataclass(frozen=True)
class Incident:
    """One incident folder with a readable report."""

    report: Json
    detected_at: float
    told_at: float

    @property
    def findings(self) -> list[Json]:
        return list(self.report.get("findings", ()))

    @property
    def alarms(self) -> list[Json]:
        return [one for one in self.findings if one.get("severity") in ALARMS]


def judge(case: Case, seed: int, truth: Truth, run: Run, folder: Path) -> Outcome:
    """Judge a run; ``folder`` is the one that its evidence folder lies in."""
    outcome = Outcome(
        case=case.name,
        seed=seed,
        shape=truth.plan.shape,
        expected=case.code or "healthy",
        true_ranks=sorted(truth.ranks),
        exit_code=run.exit_code,
        exit_ok=run.exit_code in ((1, 130) if run.was_interrupted else case.exit_codes),
        seconds=round(run.seconds, 1),
        leftovers=run.leftovers,
    )
    incidents = read_incidents(run.evidence, outcome.notes)
    if incidents:
        # After a later run with the same folder, the round itself is asked for.
        places = [run.evidence / "rounds/0"]
        if not run.was_interrupted:
            places += [run.evidence, run.evidence / "incidents", run.evidence / "rounds", folder]
        # A snapshot has no round.
        changed = list_changed_answers(run.evidence, [path for path in places if path.exists()])
        outcome.again_ok = not changed
        outcome.notes += changed
    _note_run(case, run, outcome)
    if case.alarm_is_false:
        outcome.false_alarm = any(one.alarms for one in incidents) or not outcome.exit_ok
    outcome.wrong_rank = any(
        not set(read_ranks(alarm)) <= truth.ranks for one in incidents for alarm in one.alarms
    )
    _judge_top(case, truth, choose_incident(incidents), outcome)
    if case.timed:
        _judge_delays(choose_incident(incidents), run.stalled_at, outcome)
    return outcome


def _note_run(case: Case, run: Run, outcome: Outcome) -> None:
    if run.exit_code is None:
        outcome.notes.append(f"ended by the hard limit of {case.hard_limit:.0f} s")
    if run.seconds < case.min_seconds:
        outcome.notes.append(f"ended after {run.seconds:.1f} s, before {case.min_seconds:.0f} s")
    if run.leftovers:
        outcome.notes.append(f"{run.leftovers} processes were left over")


def _judge_top(case: Case, truth: Truth, incident: Incident | None, outcome: Outcome) -> None:
    top = incident.findings[0] if incident and incident.findings else None
    outcome.verdict = str(incident.report.get("verdict", "-")) if incident else "-"
    if top:
        outcome.got = str(top.get("code", "-"))
        outcome.ranks = read_ranks(top)
    if case.healthy:
        outcome.verdict_ok = outcome.verdict == "-" or outcome.verdict in case.verdicts
        return
    outcome.inconclusive = top is None or outcome.verdict == "inconclusive"
    outcome.verdict_ok = outcome.verdict in case.verdicts
    outcome.name_ok = _is_named(case, top)
    outcome.rank_ok = _are_ranks_right(case, truth, outcome) if case.ranks != "any" else None
    if case.line == "required" or (case.line == "optional" and top and top.get("where")):
        outcome.line_ok = top is not None and _names_line(top, truth)
    outcome.decoy = _find_decoy(case, incident)


def _is_named(case: Case, top: Json | None) -> bool:
    if top is None:
        return False
    if top.get("code") == case.code:
        return bool(top.get("name") == case.finding)
    return top.get("code") in case.also_accepted


def _are_ranks_right(case: Case, truth: Truth, outcome: Outcome) -> bool:
    if case.some_ranks:
        return bool(outcome.ranks) and set(outcome.ranks) <= truth.ranks
    return outcome.got != "-" and set(outcome.ranks) == truth.ranks


def _names_line(top: Json, truth: Truth) -> bool:
    return any(
        (Path(str(place.get("file"))).name, place.get("line")) in truth.lines
        for place in top.get("where", ())
        if not truth.ranks or place.get("rank") in truth.ranks
    )


def _find_decoy(case: Case, incident: Incident | None) -> str | None:
    alarms = incident.alarms if incident else []
    return next((one["code"] for one in alarms if one.get("code") in case.decoys), None)


def _judge_delays(incident: Incident | None, stalled_at: float | None, outcome: Outcome) -> None:
    if incident is None:
        return
    outcome.detection_to_verdict = round(incident.told_at - incident.detected_at, 1)
    if stalled_at is not None:
        outcome.stall_to_verdict = round(incident.told_at - stalled_at, 1)


def choose_incident(incidents: list[Incident]) -> Incident | None:
    """The first one that says something is wrong, else the first one."""
    loud = [one for one in incidents if one.report.get("verdict") not in QUIET]
    return next(iter(loud or incidents), None)


def read_incidents(evidence: Path, notes: list[str]) -> list[Incident]:
    incidents = []
    for path in sorted(evidence.glob("incidents/*/report.json")):
        try:
            report = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            notes.append(f"{path.parent.name}: {error}")
            continue
        told_at = path.stat().st_mtime
        incidents.append(Incident(report, _detected_at(path.parent, told_at), told_at))
    return incidents


def _detected_at(folder: Path, told_at: float) -> float:
    """When the incident was opened; a folder that does not say so counts as told at once."""
    try:
        opened = json.loads((folder / "incident.json").read_bytes())["opened_ns"]
    except (OSError, ValueError, KeyError):
        return told_at
    return float(opened) / 1e9


def read_ranks(finding: Json) -> list[int]:
    """Ranks come as a list, or as text such as `1-3,7`."""
    ranks = finding.get("culprits", {}).get("ranks", [])
    if isinstance(ranks, list):
        return sorted(ranks)
    spans = re.findall(r"(\d+)(?:-(\d+))?", str(ranks))
    return sorted(rank for low, high in spans for rank in range(int(low), int(high or low) + 1))
