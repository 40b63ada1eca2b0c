"""One table of ops: every name that torch, its recorders, hooks and functional API have for one."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed  # registers the ops
from torch.distributed import _functional_collectives as functional  # noqa: F401 - as above
from torch.distributed.flight_recorder.components import types

from whystuck.evidence.ops.names import count_shared, find_kind, find_op_name, needs_all
from whystuck.probe.oplog.backlog import NAMES
from whystuck.probe.oplog.forms import SPECS

_GROUP = re.compile(r"process_group|group_name")


def list_schemas(space: str) -> list[str]:
    """Return the names of torch's ops of one namespace that take a process group."""
    found = [
        schema
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith(f"{space}::") and _GROUP.search(str(schema))
    ]
    return sorted({schema.name for schema in found})


@pytest.mark.parametrize("name", list_schemas("c10d"))
def test_each_op_that_torch_dispatches_is_recorded_and_known(name: str) -> None:
    spec = SPECS[name.partition("::")[2]]
    kind = find_kind(name)

    assert kind is not None
    assert find_kind(spec.name) is kind


@pytest.mark.parametrize("name", list_schemas("_c10d_functional"))
def test_each_functional_op_is_known(name: str) -> None:
    assert find_kind(name) is not None


def test_torch_has_functional_ops_to_look_at() -> None:
    assert len(list_schemas("_c10d_functional")) > 10
    assert len(list_schemas("c10d")) >= 20


@pytest.mark.parametrize("name", sorted(types.COLLECTIVES | types.P2P | {"coalesced"}))
def test_each_name_that_torch_has_for_recorded_ops_is_known(name: str) -> None:
    assert find_kind(f"nccl:{name}") is not None


@pytest.mark.parametrize("name", sorted({*NAMES.values(), *(one.name for one in SPECS.values())}))
def test_each_name_of_the_op_log_is_the_name_of_its_op(name: str) -> None:
    kind = find_kind(name)

    assert kind is not None
    assert kind.name == name


@pytest.mark.parametrize(
    "names",
    [
        "_allgather_base_ _all_gather_base all_gather_into_tensor all_gather_single",
        "allgather_into_tensor_coalesced_ all_gather_base_coalesced all_gather_single_coalesced",
        "_reduce_scatter_base_ reduce_scatter_base reduce_scatter_tensor reduce_scatter_single",
        "reduce_scatter_tensor_coalesced_ reduce_scatter_base_coalesced",
        "allreduce_coalesced_ all_reduce_coalesced allreduce_coalesced",
        "allreduce_ all_reduce all_reduce_",
    ],
)
def test_names_of_one_op_compare_the_same_sizes(names: str) -> None:
    inputs, outputs = [[4, 2], [3]], [[16, 2], [12]]
    kinds = {find_kind(name) for name in names.split()}

    assert len(kinds) == 1
    assert {count_shared(name, inputs, outputs) for name in names.split()} == {(8, 3)}
    assert all(needs_all(name) for name in names.split())


def test_sizes_that_may_differ_are_not_compared() -> None:
    for name in ("all_to_all_single", "all_gather_v", "gather", "scatter", "ALLGATHER_coalesced"):
        assert count_shared(name, [[4]], [[8]]) == ()


def test_what_is_not_known_is_not_judged() -> None:
    assert find_kind("all_shuffle") is None
    assert count_shared("all_shuffle", [[4]], [[4]]) == ()
    assert find_op_name("all_shuffle") == "all_shuffle"
    assert needs_all("all_shuffle", unknown=True)
    assert not needs_all("all_shuffle")


def test_a_message_of_an_uneven_gather_has_the_size_of_its_receivers_buffer() -> None:
    # Each rank gives its own tensor to each broadcast, and uses it in one of them.
    assert count_shared("_broadcast_oop", [[5]], [[4]]) == (4,)
