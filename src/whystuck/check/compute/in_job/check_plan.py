"""Which nodes are paired in which round, and which pairs are bad; pure, and the same on all nodes.

A pair is a dictionary with ``pair`` (two node ranks) and either ``busbw`` in GB/s, ``problem``, or
``left`` where one of them has left. Rounds are lists of such pairs.
"""

# Partners of a node before it is called bad, and looks at a pair before it is.
ENOUGH = 2


def plan_pairs(members, rounds, least, share, most):
    """Return the pairs of the next round; none when all is known.

    The first two rounds give each node two partners. From then on, a node all of whose pairs are
    bad gets partners that are well, and a bad pair of two nodes that are well is measured again. So
    is the best pair of a node that would be blamed for slow ones: other work may have slowed it.

    Args:
        members: The node ranks that take part.
        rounds: What the rounds so far have given.
        least: The bus bandwidth below which a pair is bad.
        share: As ``least``, as a share of the upper quartile of all pairs.
        most: The largest number of rounds.
    """
    if len(members) < ENOUGH or len(rounds) >= most:
        return []
    if not rounds:
        return pair_neighbours(members)
    plan = Plan(members, judge_pairs(rounds, least, share))
    plan.try_suspects()
    if len(rounds) > 1:
        plan.repeat_slow()
    plan.repeat_bad()
    if len(rounds) == 1:
        plan.pair_anew(members)
    return plan.chosen


class Plan:
    """The pairs of one round, in which each node has one partner at most."""

    def __init__(self, members, known):
        """Begin a round by what is known of pairs so far."""
        self.members = members
        self.known = known
        self.well = list_well(known)
        self.free = list(members)
        self.chosen = []

    def choose(self, one, other):
        """Take a pair."""
        self.chosen.append(tuple(sorted((one, other))))
        self.free.remove(one)
        self.free.remove(other)

    def pair_anew(self, nodes):
        """Give nodes a partner that they have not had, one that is well where there is any."""
        for node in nodes:
            partners = [one for one in self.free if one != node and self.is_new(node, one)]
            partners.sort(key=lambda one: (one not in self.well, one))
            if node in self.free and partners:
                self.choose(node, partners[0])

    def is_new(self, one, other):
        """Return whether a pair has not been measured."""
        return tuple(sorted((one, other))) not in self.known

    def try_suspects(self):
        """Give those a partner of whom it is open whether they or their partners are bad."""
        self.pair_anew(list_open(self.members, self.known, self.well))

    def repeat_slow(self):
        """Measure a pair of a node again before the node is blamed, where it is not dead."""
        for node in [one for one in self.free if one not in self.well]:
            own = {pair: one for pair, one in self.known.items() if node in pair}
            if node not in self.free or any(one["times"] >= ENOUGH for one in own.values()):
                continue
            slow = [
                (one["row"]["busbw"], pair)
                for pair, one in own.items()
                if one["is_slow"] and not one["is_wrong"]
                if self.well.intersection(pair) and self.is_free(pair)
            ]
            if slow:
                self.choose(*max(slow)[1])

    def is_free(self, pair):
        """Return whether both nodes of a pair have no partner yet."""
        return set(pair) <= set(self.free)

    def repeat_bad(self):
        """Measure bad pairs again whose nodes are well with others, or where nobody is well."""
        for pair, one in sorted(self.known.items()):
            is_between = self.well.issuperset(pair) or not self.well
            is_free = self.is_free(pair)
            if one["is_bad"] and is_between and is_free and one["times"] < ENOUGH:
                self.choose(*pair)


def pair_neighbours(members):
    """Return the pairs of the first round; the last node is left over where their number is odd."""
    return [tuple(members[at : at + 2]) for at in range(0, len(members) - 1, 2)]


def judge_pairs(rounds, least, share):
    """Return for each pair its best result, how often it was measured, and whether it is bad."""
    known = {}
    for row in (row for one in rounds for row in one):
        pair = tuple(row["pair"])
        before = known.get(pair)
        if before is None or row.get("busbw", -1.0) > before["row"].get("busbw", -1.0):
            best = row
        else:
            best = before["row"]
        is_wrong = bool(row.get("wrong")) or bool(before and before["is_wrong"])
        times = 1 + (before["times"] if before else 0)
        known[pair] = {"row": best, "times": times, "is_wrong": is_wrong}
    limit = find_limit(known, least, share)
    for one in known.values():
        row = one["row"]
        is_slow = "busbw" in row and row["busbw"] < limit
        one["is_slow"] = is_slow
        one["is_left"] = "left" in row
        one["is_bad"] = is_slow or one["is_wrong"] or "problem" in row
    return known


def find_limit(known, least, share):
    """Return the bus bandwidth below which a pair is bad."""
    figures = sorted(one["row"]["busbw"] for one in known.values() if "busbw" in one["row"])
    if not figures:
        return least
    quartile = figures[int(0.75 * (len(figures) - 1) + 0.5)]
    return max(least, share * quartile)


def list_well(known):
    """Return the nodes that are well with some other one."""
    return {
        node
        for pair, one in known.items()
        if not (one["is_bad"] or one["is_left"])
        for node in pair
    }


def list_open(members, known, well):
    """Return the nodes of which it is not known whether they or their partners are bad."""
    found = []
    for node in members:
        if node in well:
            continue
        pairs = [pair for pair, one in known.items() if node in pair and one["is_bad"]]
        partners = {one for pair in pairs for one in pair} - {node}
        if len(partners) < ENOUGH or not partners & well:
            found.append(node)
    return found
