"""Reports built by hand, one for each kind of answer, and one full of hostile text."""

from __future__ import annotations

import msgspec

from whystuck.evidence.finding import (
    Citation,
    Confidence,
    Coverage,
    Culprits,
    Finding,
    Gap,
    Place,
    Report,
    Severity,
    Verdict,
    Victims,
)
from whystuck.evidence.logs.report import ClockOffset, FirstLine, LogSummary, UnknownLine
from whystuck.evidence.sections import RankClass, Site, StackNode, Timeline, TimelineOp

TRAIN = "/home/ann/jobs/train.py"
C10D = "/opt/venv/lib/torch/distributed/distributed_c10d.py"
HOSTILE = (
    "</script><script>alert(1)</script>\x1b[31m\u202e\u009b2J\nnext\udce9<img src=x onerror=a()>"
)


def node(
    function: str, place: tuple[str, int], ranks: str, *children: StackNode, user: bool = True
) -> StackNode:
    """One node of a stack tree."""
    return StackNode(function, *place, ranks, user, list(children))


def stacks() -> list[StackNode]:
    """Rank 0 in a barrier of its own, ranks 1-3 in an all_reduce."""
    barrier = node("barrier", (C10D, 4000), "0", user=False)
    all_reduce = node("all_reduce", (C10D, 2800), "1-3", user=False)
    return [
        node(
            "main",
            (TRAIN, 22),
            "0-3",
            node("save_checkpoint", (TRAIN, 5), "0", barrier),
            node("train_step", (TRAIN, 12), "1-3", all_reduce),
        )
    ]


def extra_collective() -> Finding:
    return Finding(
        code="H102",
        name="extra-collective",
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        summary="rank 0 made an extra barrier in save_checkpoint; "
        "every later op of group 0 is off by one",
        culprits=Culprits([0], ["n3"], ["0"]),
        victims=Victims("1-3"),
        where=[Place(0, TRAIN, 5, "save_checkpoint")],
        because=[
            Citation("rank 0 issued barrier 41, no other rank did", "n3/rank-0/fr.pickle", 812),
            Citation("ranks 1-3 wait in all_reduce 41", "n3/rank-1/fr.pickle", 811),
        ],
        details={"code": {f"{TRAIN}:5": "        dist.barrier()\n"}, "op": "barrier"},
        ruled_out=["dead process", "shape mismatch"],
        remedies=["call the barrier on every rank, or on none"],
        measures={"lost_ms": 41.0},
    )


def timeline(text: str = "", file: str = TRAIN) -> Timeline:
    """Rank 0 makes a barrier where ranks 1-3 reduce; ``text`` is added to every name."""

    def told(ranks: str, state: str, op: str, line: int) -> RankClass:
        sites = [Site(file, line, f"train_step{text}")]
        return RankClass(ranks=ranks, state=state, op=f"{op}{text}", sizes=[[41]],
                         dtypes=[f"Float{text}"], sites=sites)  # fmt: skip

    return Timeline(
        group=f"0{text}",
        desc=f"default_pg{text}",
        members="0-3",
        recorded=41,
        columns=["1-3", "0"],
        ops=[
            TimelineOp(
                sequence=40, op="all_reduce", classes=[told("0-3", "done", "all_reduce", 12)]
            ),
            TimelineOp(
                sequence=41,
                op="all_reduce",
                mark="divergence",
                classes=[
                    told("1-3", "started", "all_reduce", 12),
                    told("0", "pending", "barrier", 5),
                ],
            ),
        ],
        alike=[f"7{text}"],
        alike_ranks="4-7",
        mismatches=1,
        first_mismatches=[41],
    )


def stuck() -> Report:
    return Report(
        verdict=Verdict.STUCK,
        findings=[extra_collective()],
        gaps=[
            Gap(rank, "kernel log", "permission denied") for rank in (2, 3)
        ],
        coverage=Coverage(4, 4, ["flight recorder", "stacks", "logs"]),
        stacks=stacks(),
        timeline=[timeline()],
        context={"stalled_s": 43.2, "nodes": ["n3"]},
    )  # fmt: skip


def waiting() -> Report:
    return Report(
        verdict=Verdict.WAITING,
        findings=[
            Finding(
                code="H117",
                name="setup-slow",
                severity=Severity.NOTE,
                confidence=Confidence.LIKELY,
                summary="rank 0 tokenises, and the others wait for it",
                culprits=Culprits([0]),
                victims=Victims("1"),
            )
        ],
        coverage=Coverage(2, 2, ["stacks"]),
        context={"closed_after_s": 95},
    )


def healthy() -> Report:
    return Report(verdict=Verdict.HEALTHY, coverage=Coverage(4, 4, ["flight recorder", "stacks"]))


def inconclusive() -> Report:
    return Report(
        verdict=Verdict.INCONCLUSIVE,
        gaps=[
            *(Gap(rank, "flight recorder dump", "no answer in 5 s") for rank in (1, 2, 3)),
            Gap(None, "stacks", "none in the folder"),
        ],
        coverage=Coverage(4, 1, ["flight recorder"]),
    )


def logs(text: str = "", node: str = "n3") -> LogSummary:
    """A line of the cause, one of the others, one that nobody knows, and clocks that are off."""
    return LogSummary(
        files=4,
        bytes=4096,
        attempts=2,
        records=9,
        first=[
            FirstLine(
                ranks="0", node=node, time="2026-01-31T10:00:00.250", row=8,
                artifact=f"{node}/0.log{text}", signature="cuda.oom", role="cause",
                text=f"OutOfMemoryError{text}", is_cause=True,
            ),
            FirstLine(
                ranks="1-3", node="", time="2026-01-31T10:00:01", artifact=f"1.log{text}", row=3,
                signature="", role="cascade", text=f"Connection closed by {node}{text}",
            ),
        ],
        unknown=[
            UnknownLine(
                template=f"ERROR <*>{text}", sample=f"ERROR 1{text}", artifact="1.log", row=2,
                count=7, ranks="1",
            )
        ],
        clocks=[ClockOffset(clock=f"{node}{text}", reference="n9", ahead_s=31.0, error_s=2.0)],
        unmatched_clocks=[f"n8{text}"],
    )  # fmt: skip


def crashed() -> Report:
    return Report(
        verdict=Verdict.CRASHED,
        findings=[msgspec.structs.replace(extra_collective(), code="C206", name="device-memory")],
        coverage=Coverage(4, 4, ["logs", "exceptions"]),
        logs=logs(),
    )


def many() -> Report:
    """Five findings, the first an error."""
    first = extra_collective()
    others = [
        msgspec.structs.replace(first, code=f"S30{n}", name=f"other-{n}", severity=Severity.WARNING)
        for n in range(4)
    ]
    return msgspec.structs.replace(stuck(), findings=[first, *others], stacks=[], gaps=[])


def hostile() -> Report:
    """Every string that can come from a job holds the worst."""
    finding = msgspec.structs.replace(
        extra_collective(),
        summary=f"rank 0 raised {HOSTILE}",
        culprits=Culprits([0], [HOSTILE], [HOSTILE]),
        where=[Place(0, f"/tmp/{HOSTILE}.py", 5, HOSTILE)],
        because=[Citation(HOSTILE, HOSTILE, 1)],
        details={
            "code": {f"/tmp/{HOSTILE}.py:5": HOSTILE},
            HOSTILE: [HOSTILE],
            "nan": float("nan"),
        },
        ruled_out=[HOSTILE],
        remedies=[HOSTILE],
        measures={"bad_ms": float("inf"), "lost_ms": 1.5},
    )
    return msgspec.structs.replace(
        stuck(),
        findings=[finding],
        gaps=[Gap(1, HOSTILE, HOSTILE)],
        stacks=[node(HOSTILE, (HOSTILE, 1), "0", node(HOSTILE, (HOSTILE, 2), "0", user=False))],
        timeline=[timeline(HOSTILE, HOSTILE)],
        logs=logs(HOSTILE, HOSTILE),
        coverage=Coverage(4, 4, [HOSTILE]),
        context={"nodes": [HOSTILE], HOSTILE: HOSTILE},
    )


ALL = {
    "stuck": stuck,
    "crashed": crashed,
    "waiting": waiting,
    "healthy": healthy,
    "inconclusive": inconclusive,
    "many": many,
    "hostile": hostile,
}
