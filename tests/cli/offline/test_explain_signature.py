"""`whystuck explain` of known log lines and of Xids."""

from collections.abc import Callable

import pytest
from tests.each import each

from whystuck.cli import main
from whystuck.cli.offline.explain_signature import find_log_page
from whystuck.parse.logs.signatures import Signature, Xid, load_signatures, load_xids

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    def run_command(*arguments: str) -> tuple[int, str, str]:
        code = main(arguments)
        shown = capfd.readouterr()
        return code, shown.out, shown.err

    return run_command


@pytest.mark.parametrize(
    "words", [["xid.79"], ["xid", "79"], ["Xid", "79"], ["xid:79"], ["XID79"], ["xid 79"]]
)
def test_xid_with_a_signature_of_its_own(run: Run, words: list[str]) -> None:
    code, out, err = run("explain", *words)

    assert (code, err) == (0, "")
    assert out.startswith("# xid.79 gpu_lost (fatal)\n\nThe device no longer answers on PCIe.\n")
    assert "It can be the cause of what went wrong. It is about the machine." in out
    assert "- At once: Restart the machine. (RESTART_BM)" in out
    assert "Reschedule: drain node" in out
    assert "docs.nvidia.com/deploy/xid-errors" in out


def test_xid_without_a_signature_of_its_own_is_judged_by_the_catalogue(run: Run) -> None:
    code, out, _ = run("explain", "xid", "106")

    assert code == 0
    assert out.startswith("# xid.106 SMBPBI_TEST_MESSAGE (see below)\n\nSMBPBI Test Message.\n")
    assert "cause" not in out
    assert "## What to do\n\nNothing needs to be done. (IGNORE)\n" in out


def test_xid_that_shares_a_signature(run: Run) -> None:
    _, out, _ = run("explain", "xid", "94")

    assert "Lines with this number are told as `xid.94_contained` (gpu_ecc)." in out


def test_page_of_a_log_line(run: Run) -> None:
    code, out, _ = run("explain", "oom.kernel")

    assert code == 0
    assert out.startswith(
        "# oom.kernel host_oom (fatal)\n\nThe kernel killed a process as memory ran out.\n"
    )
    assert "    Memory cgroup out of memory: Killed process 12345 (python)" in out
    assert "## What to do\n\nFix host memory" in out


def test_cascade_sends_the_reader_to_the_cause(run: Run) -> None:
    assert "look for the cause in earlier lines" in run("explain", "gloo.peer_closed")[1]


def test_list_of_log_lines(run: Run) -> None:
    code, out, _ = run("explain", "signatures")

    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == sorted(
        signature.id for signature in load_signatures()
    )


def test_unknown_xid_is_told(run: Run) -> None:
    assert run("explain", "xid", "999") == (
        2,
        "",
        "error: NVIDIA's catalogue has no Xid 999\nhint: it has 1 to 172\n",
    )


def test_misspelt_log_line_names_the_nearest(run: Run) -> None:
    code, _, err = run("explain", "oom.kernell")

    assert code == 2
    assert "did you mean `whystuck explain oom.kernel`?" in err


@each("signature", load_signatures(), lambda signature: signature.id)
def test_every_log_line_has_a_page(signature: Signature) -> None:
    page = find_log_page(signature.id)

    assert page is not None
    assert (page.code, page.name) == (signature.id, signature.kind)
    assert page.first_sentence == signature.meaning


@each("xid", load_xids().values(), lambda xid: str(xid.xid))
def test_every_xid_has_a_page(xid: Xid) -> None:
    page = find_log_page(f"xid {xid.xid}")

    assert page is not None
    assert f"NVIDIA calls Xid {xid.xid} {xid.mnemonic}" in page.text
    assert "## What to do" in page.text
