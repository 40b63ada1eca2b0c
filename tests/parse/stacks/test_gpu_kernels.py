"""Tables of kernels as cuda-gdb prints them, and what looks like them."""

from __future__ import annotations

import pytest

from whystuck.parse.stacks.gpu_kernels import parse_gpu_kernels

ROW = "*   0   -  1  37 Active 0x00f (1,1,1) (32,1,1) {}"


@pytest.mark.parametrize(
    ("invocation", "name"),
    [
        ("spin(long *)=(0x7f)", "spin"),
        ("spin", "spin"),
        ("spin<<<(1,1,1),(32,1,1)>>>(n=0)", "spin"),
        ("void add<float, (int)4>(at::Iterator&)", "void add<float, (int)4>"),
        ("(anonymous namespace)::fill(int)", "(anonymous namespace)::fill"),
    ],
)
def test_name_of_a_kernel(invocation: str, name: str) -> None:
    (found,) = parse_gpu_kernels(ROW.format(invocation), rank=3, artifact="a")

    assert (found.rank, found.device, found.name, found.status) == (3, 1, name, "Active")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No CUDA kernels.",
        "a" * 100_000,
        "*" * 9000,
        "\n" * 50_000,
        ROW.format(""),
        "(" * 9999,
        ")" * 9999,
    ],
)
def test_other_texts_give_nothing(text: str) -> None:
    assert parse_gpu_kernels(text, rank=0) == []


def test_name_in_brackets_that_do_not_match_stays() -> None:
    (found,) = parse_gpu_kernels(ROW.format(")" * 5000), rank=0)

    assert found.name == ")" * 200


def test_tables_have_an_end() -> None:
    text = "\n".join([ROW.format("k" * 9000)] * 20_000)
    found = parse_gpu_kernels(text, rank=0)

    assert len(found) == 128
    assert len(found[0].name) == 200
