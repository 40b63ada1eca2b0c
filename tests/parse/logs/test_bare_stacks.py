"""Stacks as people paste them: below a heading, without the line of the thread, told of several."""

from __future__ import annotations

import pytest
from tests.parse.logs.jobs import read_job

WAIT = "    barrier (torch/distributed/distributed_c10d.py:4159)\n    main (run.py:640)\n"
PROMPT = "    readline (codeop.py:0)\n    interaction (pdb.py:357)\n    evaluate (run.py:511)\n"
FAULT = '  File "torch/distributed/distributed_c10d.py", line 2501 in all_reduce\n'
FAULT += '  File "/app/optim.py", line 47 in reduce_grads      # group=dp_group\n'


def read(text: str) -> dict[int, list[str]]:
    """Read the main threads of all ranks, by the names of their calls."""
    return {
        sample.rank: [frame.function for frame in sample.threads[0].frames if frame.file]
        for sample in read_job(paste=text).stacks
    }


@pytest.mark.parametrize(
    "heading", ["== rank {} ==", "== 1201{} RANK={}", "**Rank {}**", "--- rank {} ---", "rank {}:"]
)
@pytest.mark.parametrize("stacks", [(WAIT, PROMPT), (PROMPT, WAIT), (FAULT, FAULT)])
def test_frames_below_a_heading_need_no_thread(heading: str, stacks: tuple[str, str]) -> None:
    text = "".join(heading.format(rank, rank) + f"\n{one}" for rank, one in enumerate(stacks))
    first = "reduce_grads" if stacks[0] is FAULT else "main" if stacks[0] is WAIT else "evaluate"

    found = read(f"why does it hang?\n\n{text}\nthanks\n")
    assert sorted(found) == [0, 1]
    assert found[0][-1] == first


SPY = 'Process {pid}: python t.py\nThread {pid} (active): "MainThread"\n' + WAIT


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("$ py-spy dump --pid 71   # LOCAL_RANK=0, ranks 1 2 are identical to this one", ""),
        ("$ py-spy dump --pid 71   # local rank 0", "ranks 1-2: same as above"),
        ("rank 0 (pid 71)", "same stack on ranks 1 and 2"),
        ("### rank 0", "(ranks 1,2 look the same)"),
    ],
)
def test_ranks_that_are_said_to_have_the_same_have_it(first: str, second: str) -> None:
    last = "$ py-spy dump --pid 73   # LOCAL_RANK=3"
    text = f"{first}\n{SPY.format(pid=71)}\n{second}\n{last}\n{SPY.format(pid=73)}"

    assert sorted(read(text)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "remark", ["ranks 1-2 are not the same", "all but ranks 1-2 look the same", "same error again"]
)
def test_lookalike_is_said_of_nobody(remark: str) -> None:
    assert sorted(read(f"rank 0\n{SPY.format(pid=71)}\n{remark}\n")) == [0]


@pytest.mark.parametrize(
    "chain",
    [
        "py-spy  r{}:  barrier (torch/distributed/distributed_c10d.py:4159) < build (a.py:43)",
        "ranks {}: barrier (torch/distributed/distributed_c10d.py:4159) <- build (a.py:43)",
        "rank {} = build (a.py:43) > barrier (torch/distributed/distributed_c10d.py:4159)",
    ],
)
@pytest.mark.parametrize("ranks", ["4,5,6", "4-6", "4 5 6"])
def test_a_chain_of_calls_is_the_stack_of_all_that_it_names(chain: str, ranks: str) -> None:
    found = read(f"hangs\n{chain.format(ranks)}\n")

    assert found == {rank: ["barrier", "build"] for rank in (4, 5, 6)}


@pytest.mark.parametrize(
    "text",
    [
        "ranks 0-3: loss < 2.0 (see torch/optim) > 1\n",
        "rank 0: moved a (torch/x) tensor\n",
        "[rank0]: UserWarning: barrier (torch/distributed/distributed_c10d.py:4159)\n",
        f"no heading\n\nat all\n{WAIT}",
    ],
)
def test_lookalike_is_no_stack(text: str) -> None:
    assert read(text) == {}


def test_local_ranks_of_several_hosts_name_nobody() -> None:
    ranks = "".join(f"[rank{rank}]: step 3\n" for rank in (0, 11))
    found = read(f"{ranks}\n$ py-spy dump --pid 71  # LOCAL_RANK=3\n{SPY.format(pid=71)}")

    assert all(rank < 0 for rank in found)
