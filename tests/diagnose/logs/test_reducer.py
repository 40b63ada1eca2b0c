"""C213: which parameters, on which ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose.logs.config_logs import GLOO_CUT, SITE, first, trace

UNUSED = (
    "RuntimeError: Expected to have finished reduction in the prior iteration before starting a "
    "new one. This error indicates that your module has parameters that were not used in producing "
    "loss. You can enable unused parameter detection by passing `find_unused_parameters=True`, and "
    "by \nmaking sure all `forward` function outputs participate in calculating loss. "
)
FRAMES = f'  File "{SITE}/nn/parallel/distributed.py", line 1775, in _pre_forward\n    if torch:\n'
TWICE = (
    "RuntimeError: Expected to mark a variable ready only once. This error is caused by one of the "
    "following reasons: 1) Use of a module parameter outside the `forward` function.\n"
    "Parameter at index 3 with name b.bias has been marked as ready twice. This means that hooks "
    "have fired for this particular parameter during this iteration."
)


def unused(rank: int, indices: str, names: str = "") -> str:
    error = UNUSED
    if names:
        error += f"\nParameters which did not receive grad for rank {rank}: {names}"
    error += f"\nParameter indices which did not receive grad for rank {rank}: {indices}"
    return trace(error, "train.py:29", rank=rank, inner=FRAMES)


def test_same_parameters_on_all_ranks_blame_none(tmp_path: Path) -> None:
    finding = first(tmp_path, {"train.log": unused(0, "2 3") + unused(1, "2 3")})

    assert (finding.code, finding.culprits.ranks) == ("C213", [])
    assert finding.details["same_everywhere"] is True
    assert finding.details["indices"] == {"0": [2, 3], "1": [2, 3]}
    assert "TORCH_DISTRIBUTED_DEBUG" in " ".join(finding.remedies)
    assert (finding.where[0].file, finding.where[0].line) == ("/app/train.py", 29)


def test_parameters_that_differ_over_ranks_are_told(tmp_path: Path) -> None:
    finding = first(tmp_path, {"train.log": unused(0, "2 3") + unused(1, "4 5")})

    assert (finding.code, finding.culprits.ranks) == ("C213", [])
    assert finding.details["same_everywhere"] is False
    assert "not the same ones on each rank" in finding.summary


def test_one_rank_that_went_another_way_is_named(tmp_path: Path) -> None:
    text = unused(1, "2 3", "b.bias, b.weight")
    for rank in (0, 2, 3):
        text += trace(GLOO_CUT, "train.py:29", rank=rank)
    finding = first(tmp_path, {"train.log": text})

    assert (finding.code, finding.culprits.ranks) == ("C213", [1])
    assert finding.summary.startswith("parameters b.bias, b.weight got no gradient on rank 1 only")
    assert finding.victims.ranks == "0,2-3"
    assert "find_unused_parameters=True" in finding.remedies[0]


def test_parameter_that_is_ready_twice(tmp_path: Path) -> None:
    text = "".join(trace(TWICE, "train.py:27", rank=rank) for rank in range(2))
    finding = first(tmp_path, {"train.log": text})

    assert (finding.code, finding.details["kind"]) == ("C213", "ready-twice")
    assert "parameter b.bias was ready twice" in finding.summary
    assert "use_reentrant=False" in finding.remedies[0]


def test_models_of_different_size(tmp_path: Path) -> None:
    error = (
        "RuntimeError: DDP expects same model across all ranks, but Rank {} has {} params, while "
        "rank {} has inconsistent {} params."
    )
    text = trace(error.format(0, 4, 1, 6), rank=0) + trace(error.format(1, 6, 0, 4), rank=1)
    finding = first(tmp_path, {"train.log": text})

    assert (finding.code, finding.culprits.ranks) == ("C213", [])
    assert "rank 0 has 4 parameters, rank 1 has 6" in finding.summary


def test_model_that_most_do_not_have_is_named(tmp_path: Path) -> None:
    error = (
        "RuntimeError: DDP expects same model across all ranks, but Rank {} has {} params, while "
        "rank {} has inconsistent {} params."
    )
    told = ((0, 8, 1, 10), (1, 10, 0, 8), (2, 8, 1, 10))
    text = "".join(trace(error.format(*one), f"train.py:{one[0]}9", rank=one[0]) for one in told)
    finding = first(tmp_path, {"train.log": text})

    assert (finding.code, finding.culprits.ranks) == ("C213", [1])
    assert finding.summary.startswith("rank 1 has a model of 10 parameters, the others of 8")
    assert (finding.where[0].rank, finding.where[0].line) == (1, 19)
    assert finding.victims.ranks == "0,2"


COUNTS = (
    "[rank{0}]: RuntimeError: DDP expects same model across all ranks, but Rank {0} has {1} params,"
    " while rank {2} has inconsistent {3} params."
)


def test_rank_with_another_model_is_named_by_lines_without_tracebacks(tmp_path: Path) -> None:
    told = ((0, 62, 2, 64), (1, 62, 2, 64), (3, 62, 2, 64), (2, 64, 0, 62))
    finding = first(tmp_path, {"train.log": "\n".join(COUNTS.format(*one) for one in told)})

    assert (finding.code, finding.culprits.ranks) == ("C213", [2])
    assert finding.summary == "rank 2 has a model of 64 parameters, the others of 62"


@pytest.mark.parametrize(
    ("world", "line", "ranks"),
    [
        # Rank 0 compares its number with that of each rank in turn: 1 to 4 have the same.
        ("WORLD_SIZE=6 RANK=0", (0, 62, 5, 64), [5]),
        ("WORLD_SIZE=8 RANK=0", (0, 62, 4, 64), []),
        ("WORLD_SIZE=6 RANK=5", (5, 64, 0, 62), []),
        ("", (0, 62, 5, 64), []),
    ],
)
def test_one_line_tells_the_odd_model_where_it_leaves_no_other(
    tmp_path: Path, world: str, line: tuple[int, ...], ranks: list[int]
) -> None:
    finding = first(tmp_path, {"train.log": f"{world}\n{COUNTS.format(*line)}"})

    assert (finding.code, finding.culprits.ranks) == ("C213", ranks)
    assert str(line[1]) in finding.summary


def test_strides_that_differ_from_those_of_rank_0_are_told(tmp_path: Path) -> None:
    error = (
        "[rank{0}]: RuntimeError: [{0}]: params[2] in this process with strides [5, 1] appears not "
        "to match strides of the same param in process 0."
    )
    finding = first(tmp_path, {"train.log": error.format(3)})

    assert (finding.code, finding.culprits.ranks) == ("C213", [])


def test_rank_that_all_others_differ_from_is_named(tmp_path: Path) -> None:
    error = (
        "RuntimeError: [{0}]: params[2] in this process with sizes [5, 4] appears not to match "
        "sizes of the same param in process 0."
    )
    text = "".join(trace(error.format(rank), rank=rank) for rank in (1, 2, 3))
    finding = first(tmp_path, {"train.log": text + trace(GLOO_CUT, rank=0)})

    assert (finding.code, finding.culprits.ranks) == ("C213", [0])


def test_one_of_many_models_differs(tmp_path: Path) -> None:
    error = (
        "RuntimeError: [2]: params[2] in this process with sizes [5, 4] appears not to match sizes "
        "of the same param in process 0."
    )
    text = trace(error, rank=2) + "".join(trace(GLOO_CUT, rank=rank) for rank in (0, 1, 3))
    finding = first(tmp_path, {"train.log": text})

    assert (finding.code, finding.culprits.ranks) == ("C213", [2])
    assert finding.details["indices"] == {"2": [2]}


def test_lines_without_a_traceback_are_enough(tmp_path: Path) -> None:
    text = unused(2, "7 8").splitlines()
    lines = [line for line in text if "File" not in line and "Traceback" not in line]
    others = [trace(GLOO_CUT, "train.py:29", rank=rank) for rank in (0, 1, 3)]
    finding = first(tmp_path, {"train.log": "\n".join([*lines, *others])})

    assert (finding.code, finding.culprits.ranks) == ("C213", [2])


LIGHTNING = (
    "RuntimeError: It looks like your LightningModule has parameters that were not used in "
    "producing the loss returned by training_step. If this is intentional, you must enable the "
    "detection of unused parameters in DDP, either by setting the string value "
    "`strategy='ddp_find_unused_parameters_true'` or by setting the flag in the strategy."
)
MEGATRON = (
    "AssertionError: Communication call has not been issued for this bucket "
    "(3/7 params have grad available)"
)
NAMED = "Parameters which did not receive grad for rank {0}: head.b.weight, head.b.bias"


@pytest.mark.parametrize("error", [LIGHTNING, MEGATRON])
def test_what_wrappers_say_in_its_place(tmp_path: Path, error: str) -> None:
    text = "".join(trace(error, "fit.py:12", rank=rank) for rank in range(4))
    finding = first(tmp_path, {"train.log": text})

    assert (finding.code, finding.culprits.ranks) == ("C213", [])
    assert (finding.where[0].file, finding.where[0].line) == ("/app/fit.py", 12)


def test_error_in_other_words_beside_its_details(tmp_path: Path) -> None:
    lines = ["epoch 0", LIGHTNING, "", *(NAMED.format(rank) for rank in range(2))]
    finding = first(tmp_path, {"paste.txt": "\n".join(lines)})

    assert (finding.code, finding.culprits.ranks) == ("C213", [])
    assert "head.b.weight" in finding.summary
    assert finding.details["same_everywhere"] is True


@pytest.mark.parametrize("prefix", ["", "[rank1]: ", "1: "])
def test_details_alone_are_of_an_error(tmp_path: Path, prefix: str) -> None:
    lines = [f"{prefix}{NAMED.format(1)}", f"{prefix}ValueError: step failed, see above"]
    finding = first(tmp_path, {"train.log": "\n".join(lines)})

    assert finding.code == "C213"
    assert finding.confidence.value == "likely"


def test_that_all_parameters_are_used_is_no_error(tmp_path: Path) -> None:
    text = "[Rank 0] reducer: all parameters were used in producing the loss\n"
    text += trace("ValueError: bad batch", "fit.py:12", rank=0)
    assert first(tmp_path, {"train.log": text}).code != "C213"


SIZES = (
    "RuntimeError: [{0}]: params[{1}] in this process with {2} {3} appears not to match {2} of the "
    "same param in process 0."
)


@pytest.mark.parametrize("what", ["sizes", "strides"])
@pytest.mark.parametrize("rank", [1, 5])
def test_one_line_tells_of_two_ranks_only(tmp_path: Path, what: str, rank: int) -> None:
    finding = first(
        tmp_path, {"train.log": trace(SIZES.format(rank, 4, what, "[9, 2]"), rank=rank)}
    )

    assert (finding.code, finding.culprits.ranks) == ("C213", [])
    assert finding.confidence.value == "likely"
    assert f"parameter 4 of rank {rank}" in finding.summary
    assert "rank 0" in finding.summary
    assert "all ranks: parameter 4 of" in finding.summary
    assert finding.details["same_everywhere"] is False


def test_some_of_many_ranks_differ_from_rank_0(tmp_path: Path) -> None:
    text = "".join(trace(SIZES.format(rank, 0, "sizes", "[9]"), rank=rank) for rank in (4, 5, 6))
    finding = first(tmp_path, {"train.log": text})

    assert finding.culprits.ranks == []
    assert "of ranks 4-6" in finding.summary
    assert "on all ranks in" not in finding.summary
