"""Two trees of calls laid over each other: what is the same, new, gone, or elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

# Beyond this product of lengths, children are matched by name and number and not by order.
_MAX_CELLS = 400_000_000
_WORK = ("kernel", "copy", "launch")


@dataclass(frozen=True)
class CallNodes:
    """A tree by columns: callers come before whom they call; ``parent`` is -1 at the top.

    ``key`` is what a node is called.
    """

    key: Sequence[tuple[str, str]]
    parent: Sequence[int]
    children: list[list[int]] = field(init=False)
    roots: list[int] = field(init=False)
    end: list[int] = field(init=False)

    def __post_init__(self) -> None:
        children: list[list[int]] = [[] for _ in self.key]
        roots: list[int] = []
        for node, parent in enumerate(self.parent):
            (children[parent] if parent >= 0 else roots).append(node)
        end = [node + 1 for node in range(len(self.key))]
        for node in range(len(self.key) - 1, -1, -1):
            parent = self.parent[node]
            if parent >= 0:
                end[parent] = max(end[parent], end[node])
        object.__setattr__(self, "children", children)
        object.__setattr__(self, "roots", roots)
        object.__setattr__(self, "end", end)


@dataclass
class Alignment:
    """What became of the nodes of two trees.

    ``pairs`` are nodes of the one and of the other that are the same call at the same place;
    ``moved`` are pairs of calls that are the same, with all below them, at another place.
    """

    pairs: list[tuple[int, int]] = field(default_factory=list)
    moved: list[tuple[int, int]] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    added: list[int] = field(default_factory=list)


def align_trees(a: CallNodes, b: CallNodes) -> Alignment:
    """Lay two trees over each other, from the top down.

    The children of two nodes that are the same are matched in order: first those whose whole
    subtrees are equal, then, between these, those of one name. A subtree that is left over in both
    at other places has moved.

    Args:
        a: The first tree.
        b: The second.

    Returns:
        What became of each node; each is in one list.
    """
    signs = _sign((a, b))
    found = Alignment()
    gone: list[int] = []
    new: list[int] = []
    work = [(a.roots, b.roots)]
    while work:
        ours, theirs = work.pop()
        matched = _match(ours, theirs, (a, b), signs)
        hit_a, hit_b = {one for one, _ in matched}, {other for _, other in matched}
        gone += [one for one in ours if one not in hit_a]
        new += [one for one in theirs if one not in hit_b]
        for one, other in matched:
            found.pairs.append((one, other))
            work.append((a.children[one], b.children[other]))
    _find_moved(sorted(gone), sorted(new), (a, b), signs, found)
    found.pairs.sort(key=lambda pair: pair[1])
    return found


_Trees = tuple[CallNodes, CallNodes]
_Signs = tuple[list[int], list[int]]


def _sign(trees: _Trees) -> _Signs:
    """Number subtrees: equal ones have one number."""
    numbers: dict[tuple[object, ...], int] = {}
    made = []
    for tree in trees:
        signs = [0] * len(tree.key)
        for node in range(len(tree.key) - 1, -1, -1):
            sign = (tree.key[node], *(signs[child] for child in tree.children[node]))
            signs[node] = numbers.setdefault(sign, len(numbers))
        made.append(signs)
    return made[0], made[1]


def _match(
    ours: Sequence[int], theirs: Sequence[int], trees: _Trees, signs: _Signs
) -> list[tuple[int, int]]:
    """Match children in order: equal subtrees first, between these the same names."""
    equal = match_in_order([signs[0][one] for one in ours], [signs[1][one] for one in theirs])
    found: list[tuple[int, int]] = []
    last = (0, 0)
    for at in [*equal, (len(ours), len(theirs))]:
        here, there = ours[last[0] : at[0]], theirs[last[1] : at[1]]
        by_name = match_in_order(
            [trees[0].key[one] for one in here], [trees[1].key[one] for one in there]
        )
        found += [(here[one], there[other]) for one, other in by_name]
        if at[0] < len(ours):
            found.append((ours[at[0]], theirs[at[1]]))
        last = (at[0] + 1, at[1] + 1)
    return found


def match_in_order(a: Sequence[object], b: Sequence[object]) -> list[tuple[int, int]]:
    """Find a longest common subsequence.

    By the bit-parallel algorithm of Hyyro (2004), a row of bits for each item of the first.

    Args:
        a: The first sequence, of hashable items.
        b: The second.

    Returns:
        Positions in both, ascending. For very long sequences items are matched by how often they
        came before, as far as that is in order.
    """
    start = 0
    while start < min(len(a), len(b)) and a[start] == b[start]:
        start += 1
    stop = 0
    while stop < min(len(a), len(b)) - start and a[-1 - stop] == b[-1 - stop]:
        stop += 1
    head = [(at, at) for at in range(start)]
    tail = [(len(a) - at, len(b) - at) for at in range(stop, 0, -1)]
    ours, theirs = a[start : len(a) - stop], b[start : len(b) - stop]
    if not ours or not theirs:
        return [*head, *tail]
    find = _match_long if len(ours) * len(theirs) > _MAX_CELLS else _match_bits
    return [*head, *((one + start, other + start) for one, other in find(ours, theirs)), *tail]


def _match_bits(a: Sequence[object], b: Sequence[object]) -> list[tuple[int, int]]:
    places: dict[object, int] = defaultdict(int)
    for at, item in enumerate(b):
        places[item] |= 1 << at
    full = (1 << len(b)) - 1
    rows, row = [], full
    for item in a:
        hits = row & places.get(item, 0)
        row = ((row + hits) | (row - hits)) & full
        rows.append(row)
    # A bit of a row is 0 where the longest match up to there is one longer than before.
    found = []
    other = len(b) - 1
    for one in range(len(a) - 1, -1, -1):
        before = rows[one - 1] if one else full
        while other >= 0 and rows[one] >> other & 1:
            other -= 1
        if other < 0:
            break
        if before >> other & 1:
            found.append((one, other))
            other -= 1
    return found[::-1]


def _match_long(a: Sequence[object], b: Sequence[object]) -> list[tuple[int, int]]:
    at: dict[object, list[int]] = defaultdict(list)
    for place, item in enumerate(b):
        at[item].append(place)
    used: dict[object, int] = defaultdict(int)
    found: list[tuple[int, int]] = []
    for place, item in enumerate(a):
        number = used[item]
        used[item] += 1
        if number < len(at[item]) and (not found or at[item][number] > found[-1][1]):
            found.append((place, at[item][number]))
    return found


def _find_moved(
    gone: list[int], new: list[int], trees: _Trees, signs: _Signs, found: Alignment
) -> None:
    """Pair subtrees that are gone with equal ones that are new; the largest first."""
    free: dict[int, list[int]] = defaultdict(list)
    for root in new:
        for node in range(root, trees[1].end[root]):
            free[signs[1][node]].append(node)
    for nodes in free.values():
        nodes.reverse()
    taken: set[int] = set()
    work = gone[::-1]
    while work:
        node = work.pop()
        # Work alone did not move: another call launched the same.
        is_call = trees[0].key[node][0] not in _WORK
        options = free.get(signs[0][node], []) if is_call else []
        size = trees[0].end[node] - node
        while options and not taken.isdisjoint(range(options[-1], options[-1] + size)):
            options.pop()
        if options:
            other = options.pop()
            taken.update(range(other, other + size))
            found.moved += [(node + step, other + step) for step in range(size)]
        else:
            found.removed.append(node)
            work += trees[0].children[node][::-1]
    found.added += [
        node for root in new for node in range(root, trees[1].end[root]) if node not in taken
    ]
