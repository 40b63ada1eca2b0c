"""Names that warnings of torch tell of, and that a tool does not find either."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.logs.test_told import first_of, say

WARNING = (
    "[W socket.cpp:663] [c10d] The IPv6 network addresses of ({0}, 23456) cannot be retrieved "
    "(gai error: -2 - Name or service not known)."
)
HEAD = "llm-pretrain-master-0"
TOOLS = [
    ["$ kubectl get svc {0}", 'Error from server (NotFound): services "{0}" not found'],
    ["$ nslookup {0}", "** server can't find {0}: NXDOMAIN"],
    ["$ nslookup {0}", "** server can't find {0}.ml.svc.cluster.local: NXDOMAIN"],
    ["$ host {0}", "Host {0} not found: 3(NXDOMAIN)"],
]


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("prefix", ["", "llm-pretrain-worker-0: "])
def test_name_that_nobody_knows_is_the_cause(tmp_path: Path, tool: list[str], prefix: str) -> None:
    warnings = [prefix + WARNING.format(HEAD)] * 2
    finding = first_of(say(tmp_path, *warnings, *(line.format(HEAD) for line in tool)))

    assert (finding.code, finding.details["host"]) == ("H121", HEAD)
    assert len(finding.because) == 2


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param([WARNING.format(HEAD)], id="warning alone"),
        pytest.param([WARNING.format(HEAD), TOOLS[0][1].format("other-svc")], id="other name"),
        pytest.param([TOOLS[0][1].format(HEAD)], id="tool alone"),
        pytest.param(
            [WARNING.format(HEAD), TOOLS[0][1].format(HEAD).replace("services", "pods")],
            id="other thing",
        ),
        pytest.param(
            [
                WARNING.format(HEAD),
                *(f"step {step} loss {3 - step / 64}" for step in range(30)),
                TOOLS[0][1].format(HEAD),
            ],
            id="it trains",
        ),
    ],
)
def test_name_that_may_be_known_is_no_cause(tmp_path: Path, lines: list[str]) -> None:
    assert all(one.code != "H121" for one in say(tmp_path, *lines).findings)
