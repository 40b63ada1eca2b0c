"""Which nodes are paired, and whom the results blame: simulated networks with known faults."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import whystuck.check.compute

LEAST, SHARE, MOST = 0.05, 0.5, 5


def load() -> ModuleType:
    """Load what runs in the Python of the job."""
    path = Path(whystuck.check.compute.__file__).with_name("in_job") / "check_plan.py"
    spec = importlib.util.spec_from_file_location("check_plan", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PLAN = load()


class Network:
    """Nodes with a good speed; some nodes and some links are slow or dead."""

    def __init__(
        self,
        nodes: int,
        bad: set[int] | None = None,
        links: set[tuple[int, int]] | None = None,
    ) -> None:
        self.members, self.bad, self.links = list(range(nodes)), bad or set(), links or set()
        self.is_dead = False
        self.noise: dict[tuple[int, tuple[int, int]], float] = {}

    def measure(self, number: int, pair: tuple[int, int]) -> dict[str, Any]:
        is_bad = bool(self.bad & set(pair)) or pair in self.links
        if is_bad and self.is_dead:
            return {"pair": pair, "problem": "timed out"}
        speed = 0.01 if is_bad else 1.0 + 0.01 * pair[0]
        return {"pair": pair, "busbw": self.noise.get((number, pair), speed)}

    def run(self) -> list[list[dict[str, Any]]]:
        rounds: list[list[dict[str, Any]]] = []
        while pairs := PLAN.plan_pairs(self.members, rounds, LEAST, SHARE, MOST):
            nodes = [node for pair in pairs for node in pair]
            assert len(nodes) == len(set(nodes)), "a node has one partner in a round"
            rounds.append([self.measure(len(rounds), pair) for pair in pairs])
        return rounds


def find_bad(network: Network) -> tuple[set[int], set[tuple[int, int]]]:
    """The nodes and links that the rounds blame, by the rule of the check."""
    known = PLAN.judge_pairs(network.run(), LEAST, SHARE)
    well = PLAN.list_well(known)
    bad = {pair for pair, one in known.items() if one["is_bad"]}
    nodes = {
        node
        for node in set(network.members) - well
        for partners in [{one for pair in bad if node in pair for one in pair} - {node}]
        if len(partners) > 1 and partners & well
    }
    return nodes, {pair for pair in bad if not nodes & set(pair)}


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 8, 9, 64, 65])
def test_a_good_network_needs_two_rounds_and_blames_nobody(nodes: int) -> None:
    network = Network(nodes)

    assert len(network.run()) == (1 if nodes == 2 else 2)
    assert find_bad(network) == (set(), set())


@pytest.mark.parametrize("is_dead", [False, True])
@pytest.mark.parametrize("nodes", [3, 4, 5, 6, 7, 16])
def test_each_bad_node_is_named_alone(nodes: int, is_dead: bool) -> None:
    for bad in range(nodes):
        network = Network(nodes, {bad})
        network.is_dead = is_dead
        assert find_bad(network) == ({bad}, set()), bad
        assert len(network.run()) <= (3 if is_dead else 4)


@pytest.mark.parametrize("nodes", [4, 5, 6, 16])
def test_a_bad_link_names_no_node(nodes: int) -> None:
    for link in itertools.combinations(range(nodes), 2):
        nodes_found, links = find_bad(Network(nodes, links={link}))
        # One that no round has measured is not seen.
        assert nodes_found == set()
        assert links in ({link}, set())
    assert find_bad(Network(nodes, links={(0, 1)})) == (set(), {(0, 1)})


def test_a_bad_pair_of_two_is_told_and_no_node() -> None:
    network = Network(2, links={(0, 1)})

    assert find_bad(network) == (set(), {(0, 1)})
    assert len(network.run()) == 2  # it was measured again


def test_two_bad_nodes_of_eight_are_both_named() -> None:
    for bad in itertools.combinations(range(8), 2):
        assert find_bad(Network(8, set(bad))) == (set(bad), set()), bad


def test_where_nobody_is_well_no_node_is_named() -> None:
    network = Network(4, {0, 1, 2, 3})

    assert find_bad(network)[0] == set()


def test_a_pair_that_was_slow_once_is_measured_again_and_forgiven() -> None:
    network = Network(4)
    network.noise[0, (2, 3)] = 0.01

    assert find_bad(network) == (set(), set())


@pytest.mark.parametrize("slow", [(0, 2), (1, 3)])
def test_a_node_of_a_dead_link_is_not_blamed_for_one_slow_moment(slow: tuple[int, int]) -> None:
    # GIVEN a dead link, and other work that slows another pair of one of its nodes once
    network = Network(4, links={(2, 3)})
    network.is_dead = True
    network.noise[1, slow] = 0.01

    assert find_bad(network) == (set(), {(2, 3)})
    assert len(network.run()) < MOST


def test_wrong_sums_are_bad_and_never_forgiven() -> None:
    rounds = [[{"pair": (0, 1), "busbw": 1.0, "wrong": 3}], [{"pair": (0, 1), "busbw": 1.0}]]
    known = PLAN.judge_pairs(rounds, LEAST, SHARE)

    assert known[0, 1]["is_bad"]
    assert known[0, 1]["is_wrong"]
