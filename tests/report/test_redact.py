from __future__ import annotations

import re

import msgspec
import pytest
from tests.report import samples

from whystuck.evidence.finding import Citation, Culprits, Gap, Report, Verdict
from whystuck.evidence.logs.report import LogRecord
from whystuck.report.json import render_json
from whystuck.report.redact import FileRedactor, redact_records, redact_report
from whystuck.report.text import render_text


def redact(text: str, **context: object) -> str:
    report = Report(verdict=Verdict.STUCK, gaps=[Gap(0, "x", text)], context=dict(context))
    return redact_report(report).gaps[0].reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot open /home/ann/data/a.bin", "cannot open …/a.bin"),
        ("/home/ann/x.py:12 raised for ann", "…/x.py:12 raised for user-1"),
        ("NCCL_SOCKET_IFNAME=eth0 TOKEN='a b'", "NCCL_SOCKET_IFNAME=<hidden> TOKEN=<hidden>"),
        ("connect to 10.0.12.7:29500 failed", "connect to <address>:29500 failed"),
        ("[fe80::1:2:3]:29500", "[<address>]:29500"),
        ("gpu17:4242:4250 NCCL WARN", "<host>:4242:4250 NCCL WARN"),
        ("train.py:1204 in step", "train.py:1204 in step"),
        ("localhost:29500 refused", "localhost:29500 refused"),
        ("node7.prod.example.com is down", "<host> is down"),
        ("get https://ann:secret@s3.example.com/b", "get https://<hidden>@<host>…/b"),
        ("mail ann@example.com", "mail <user>"),
        ("ranks 0-3 wait in all_reduce 41 (2 of 4)", "ranks 0-3 wait in all_reduce 41 (2 of 4)"),
    ],
)
def test_text_is_redacted(text: str, expected: str) -> None:
    assert redact(text) == expected


def test_nodes_get_the_same_stand_in_everywhere() -> None:
    finding = msgspec.structs.replace(
        samples.extra_collective(),
        summary="rank 0 on trainer-a is late, trainer-b waits",
        culprits=Culprits([0], ["trainer-a"]),
        because=[Citation("seen on trainer-b", "trainer-b/rank-1/fr.pickle", 3)],
        remedies=["set `NCCL_DEBUG=INFO` on trainer-a"],
    )

    shown = redact_report(Report(verdict=Verdict.STUCK, findings=[finding])).findings[0]

    assert shown.summary == "rank 0 on node-1 is late, node-2 waits"
    assert shown.culprits.nodes == ["node-1"]
    assert shown.because == [Citation("seen on node-2", "node-2/rank-1/fr.pickle", 3)]
    assert shown.remedies == ["set `NCCL_DEBUG=INFO` on node-1"]


def test_node_with_one_of_our_words_as_its_name_changes_no_word_of_ours() -> None:
    finding = msgspec.structs.replace(samples.extra_collective(), culprits=Culprits([0], ["error"]))

    shown = redact_report(Report(verdict=Verdict.STUCK, findings=[finding]))

    assert shown.findings[0].severity == "error"
    assert shown.findings[0].culprits.nodes == ["node-1"]


def test_source_command_and_folders_are_left_out() -> None:
    report = msgspec.structs.replace(
        samples.stuck(), context={"command": ["train", "--key", "s3cr3t"], "stalled_s": 3.0}
    )

    data = render_json(redact_report(report))

    for word in (b"dist.barrier()", b"s3cr3t", b"/home", b"ann", b"/opt"):
        assert word not in data
    assert b'"stalled_s": 3.0' in data
    assert "…/train.py".encode() in data


def test_hostile_report_can_be_redacted() -> None:
    assert redact_report(samples.hostile()).findings[0].code == "H102"


def test_hosts_that_only_logs_name_are_hidden() -> None:
    shown = redact_report(samples.crashed())

    page = render_json(shown).decode() + render_text(shown, color=False, width=95)
    assert not re.search(r"\bn[389]\b", page)
    assert "Connection closed by node-" in page
    assert "OutOfMemoryError" in page


def test_records_of_logs_hide_hosts_users_and_folders() -> None:
    records = [
        LogRecord(rank=1, node="n3", artifact="n3/1.log", text="n3 lost /home/jo/ckpt/x.pt"),
        LogRecord(rank=2, node="", artifact="/data/jo/2.log", text="HF_HOME=/x PORT=1 of n3"),
    ]
    first, second = redact_records(records)

    assert (first.rank, first.node, first.text) == (1, "node-1", "node-1 lost …/x.pt")
    assert second.artifact == "…/2.log"
    assert second.text == "HF_HOME=<hidden> PORT=<hidden> of node-1"


def test_any_number_of_users_is_hidden_in_the_time_of_one() -> None:
    users = [f"u{number}-x" for number in range(50_000)]
    folders = "\n".join(f"/home/{user}/a.py" for user in users)
    redactor = FileRedactor(Report(verdict=Verdict.HEALTHY), ["n0.cluster-a", "n0"], [folders])

    shown = redactor.text(f"{users[-1]} on n0.cluster-a and n0: {' '.join(users[:1000])} u1 n0-u1")

    assert shown.startswith("user-50000 on node-1 and node-2: user-1 user-2 ")
    assert shown.endswith(" user-1000 u1 n0-u1")
