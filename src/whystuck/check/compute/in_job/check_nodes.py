"""How nodes meet in a store of torch, and what they measure together. Every wait has an end.

All nodes go through the same steps. In each, a node says what it has, the first one waits for the
others until a deadline and publishes a table, and all go on with those in it: so all of them know
the same, and who is late or gone keeps nobody.
"""

import datetime as dt
import json
import os
import time

import check_plan
from check_children import find_devices, run_children
from check_clocks import ask_clock, find_addresses, find_interface, serve_clock
from check_ranks import Group, reduce

_SLACK_S = 5.0
_LOOK_S = 0.05
_LEAVE_S = 5.0
# What the first step has made: one meeting a process.
_met = {}


class GoneError(Exception):
    """This node is not, or no longer, among those that the first one waits for."""


class Meeting:
    """This node among others; ``infos`` is what each told of itself, by node rank."""

    def __init__(self, torch, settings):
        """Open the store: the first node serves it, the others try until they reach it."""
        self.torch = torch
        self.settings = settings
        self.rank = settings["rank"]
        self.nodes = settings["nodes"]
        self.infos = {}
        self.alive = []
        self.parts = []
        self.interface = ""
        self.rounds = []
        self.is_broken = False
        # Until all have come, the limit of the store counts.
        self.store = self.open_store(settings["meet_s"], is_server=self.rank == 0)

    def open_store(self, limit_s, *, is_server=False):
        """Open the store; also in a child, which must not use that of its parent."""
        # The first node may not reach itself by the name that the others know.
        host = "127.0.0.1" if self.rank == 0 else self.settings["host"]
        return self.torch.distributed.TCPStore(
            host,
            self.settings["port"],
            None,
            is_server,
            dt.timedelta(seconds=limit_s),
            wait_for_workers=False,
        )

    def gather(self, name, value, wait_s):
        """Say what this node has; return what all have that said it in time, by node rank."""
        self.store.set("%s/%d" % (name, self.rank), json.dumps(value))
        self.store.add("count/%s" % name, 1)
        if self.rank == 0:
            self.publish(name, self.alive, wait_s)
        # The others may come to this step later than this one, by what their step before took.
        self.store.wait([name], dt.timedelta(seconds=wait_s + _SLACK_S))
        told = {int(rank): value for rank, value in json.loads(self.store.get(name)).items()}
        if self.rank not in told:
            raise GoneError("the other nodes went on without this one: it was late")
        self.alive = sorted(told)
        return told

    def publish(self, name, ranks, wait_s):
        """Wait for what nodes have to say, and tell it to all."""
        until_s = time.monotonic() + wait_s
        while self.store.add("count/%s" % name, 0) < len(ranks) and time.monotonic() < until_s:
            time.sleep(_LOOK_S)
        told = {}
        for rank in ranks:
            key = "%s/%d" % (name, rank)
            if self.store.check([key]):
                told[rank] = json.loads(self.store.get(key))
        self.store.set(name, json.dumps(told))

    def leave(self):
        """End the meeting: the first node serves the others until they have heard of it."""
        limit_s = _SLACK_S
        try:
            self.gather("end", "", limit_s)
            if self.rank:
                self.store.set("bye/%d" % self.rank, "")
                return
            keys = ["bye/%d" % rank for rank in self.alive if rank]
            until_s = time.monotonic() + _LEAVE_S
            while keys and not self.store.check(keys) and time.monotonic() < until_s:
                time.sleep(_LOOK_S)
        except Exception:
            pass


def meet(torch, settings, tell_versions):
    """Come together; return who is there, and who is missing."""
    clock_port = serve_clock(settings["nonce"]) if settings["rank"] == 0 else 0
    begun_s = time.monotonic()
    facts = dict(settings["facts"], **tell_versions(torch, settings))
    devices = find_devices(torch).get("devices", [])
    try:
        meeting = Meeting(torch, settings)
    except Exception as error:
        return {"problem": explain(error, settings)}
    address, coordinator = find_addresses(settings["host"], settings["port"])
    info = {
        "node": settings["node"],
        "facts": facts,
        "devices": len(devices),
        "parts": settings["parts"],
        "address": address,
        "coordinator": coordinator,
        "clock_port": clock_port,
        "nonce": settings["nonce"],
        "tflops": settings.get("tflops", {}),
    }
    left_s = settings["meet_s"]
    if meeting.rank == 0:  # the others may have waited for this one, and it waits for all
        left_s = max(1.0, left_s - (time.monotonic() - begun_s))
    try:
        if meeting.store.add("taken/%d" % meeting.rank, 1) > 1:
            return {"problem": "another node has the node rank %d, too" % meeting.rank}
        if meeting.rank == 0:
            meeting.alive = list(range(meeting.nodes))
        meeting.infos = meeting.gather("join", info, left_s)
    except GoneError:
        return {"problem": "it came too late: the others began without it"}
    except Exception as error:
        return {"problem": explain(error, settings)}
    meeting.parts = [
        part
        for part in meeting.infos[0]["parts"]
        if all(part in one["parts"] for one in meeting.infos.values())
    ]
    meeting.interface = choose_interface(meeting)
    _met["meeting"] = meeting
    return {
        "members": {rank: one["node"] for rank, one in meeting.infos.items()},
        "missing": [rank for rank in range(meeting.nodes) if rank not in meeting.infos],
        "interface": meeting.interface,
    }


def explain(error, settings):
    """Say what keeps this node from the others."""
    place = "%s:%d" % (settings["host"], settings["port"])
    text = " ".join(str(error).split())[:200]
    if settings["rank"] == 0:
        return "the store at %s cannot be served: %s" % (place, text)
    return "the first node does not answer at %s within %g s: %s" % (
        place,
        settings["meet_s"],
        text,
    )


def leave():
    """End the meeting, if there was one."""
    meeting = _met.pop("meeting", None)
    if meeting is not None:
        meeting.leave()


def take_part(part, work, torch, settings):
    """Do one step together, and tell why where that cannot be."""
    meeting = _met.get("meeting")
    if meeting is None:
        return {"problem": "the nodes did not meet"}
    if meeting.nodes < check_plan.ENOUGH:
        return {"skipped": "this is the only node"}
    if part not in meeting.parts:
        return {"skipped": "not all nodes make this check"}
    if len(meeting.alive) < check_plan.ENOUGH:
        return {"problem": "no other node has come"}
    try:
        told = work(torch, meeting, settings)
    except Exception as error:
        _met.pop("meeting")
        return {"problem": "the meeting ended: %s" % shorten(str(error))}
    told["nodes"] = {rank: one["node"] for rank, one in meeting.infos.items()}
    return told


# ------------------------------------------------------------------------------------- addresses


def choose_interface(meeting):
    """Return the interface of this node that leads to the others; none where the user names one."""
    if os.environ.get("GLOO_SOCKET_IFNAME"):
        return os.environ["GLOO_SOCKET_IFNAME"]
    address = meeting.infos[meeting.rank]["address"]
    if meeting.rank == 0:
        # The first node may know itself by an address that nobody else reaches.
        seen = [one["coordinator"] for rank, one in sorted(meeting.infos.items()) if rank]
        address = next((one for one in seen if one), address)
    return find_interface(address)


# ------------------------------------------------------------------------------------ versions


def compare_versions(_torch, meeting, _settings):
    """Return the versions of all nodes: each has told them when it came."""
    return {"facts": {rank: one["facts"] for rank, one in meeting.infos.items()}}


def compare_speed(_torch, meeting, _settings):
    """Return how fast each node multiplies matrices."""
    return {"tflops": {rank: one["tflops"] for rank, one in meeting.infos.items()}}


# --------------------------------------------------------------------------------------- clock


def compare_clocks(_torch, meeting, settings):
    """Return the clock of each node against that of the first one: ahead is positive."""
    own = {"offset_s": 0.0, "error_s": 0.0}
    if meeting.rank:
        first = meeting.infos[0]
        try:
            host = meeting.settings["host"]
            offset_s, error_s = ask_clock(host, first["clock_port"], first["nonce"])
            own = {"offset_s": -offset_s, "error_s": error_s}
        except OSError as error:
            own = {"problem": str(error)}
    return {"clocks": meeting.gather("clock", own, settings["wait_s"])}


# --------------------------------------------------------------------------------------- pairs


def measure_pairs(torch, meeting, settings):
    """Sum numbers in pairs of nodes, round by round; return what each pair gave."""
    policy = settings["least_gbps"], settings["share"], settings["rounds"]
    rounds = meeting.rounds
    least = policy[0]["nccl" if find_backend(meeting, meeting.alive) == "nccl" else "gloo"]
    while True:
        pairs = check_plan.plan_pairs(meeting.alive, rounds, least, *policy[1:])
        if not pairs:
            break
        own = next((pair for pair in pairs if meeting.rank in pair), None)
        name = "pairs/%d" % len(rounds)
        row = measure_group(torch, meeting, own, name, settings) if own else {}
        told = meeting.gather(name, row, find_limit_s(meeting, settings) + _SLACK_S)
        rounds.append([join_pair(pair, told) for pair in pairs])
    known = check_plan.judge_pairs(rounds, least, settings["share"])
    meeting.is_broken = any("problem" in one["row"] for one in known.values())
    return {
        "rounds": len(rounds),
        "limit": check_plan.find_limit(known, least, settings["share"]),
        "well": sorted(check_plan.list_well(known)),
        "known": [dict(one, pair=list(pair)) for pair, one in sorted(known.items())],
        "backend": find_backend(meeting, meeting.alive),
    }


def join_pair(pair, told):
    """Return what one pair gave, by what both of its nodes told."""
    rows = [told.get(rank) for rank in pair]
    found = {"pair": list(pair)}
    if None in rows:
        left = [rank for rank, row in zip(pair, rows) if row is None]
        return dict(found, left=left)
    problems = {str(rank): row["problem"] for rank, row in zip(pair, rows) if "problem" in row}
    if problems:
        return dict(found, problem="; ".join(sorted(set(problems.values()))))
    return dict(found, **join_rows([one for row in rows for one in row["rows"]]))


def join_rows(rows):
    """Return the bus bandwidth of a group, by its slowest rank, and what was wrong."""
    ranks = len(rows)
    seconds = max(1e-9, *(row["median_s"] for row in rows))
    size = rows[0]["bytes"]
    return {
        "ranks": ranks,
        "bytes": size,
        "seconds": seconds,
        "algbw": size / seconds / 1e9,
        "busbw": size / seconds / 1e9 * 2 * (ranks - 1) / ranks,
        "wrong": sum(row["wrong"] for row in rows),
    }


def find_backend(meeting, nodes):
    """Return what nodes talk with: NCCL where all of them have devices, else gloo."""
    return "nccl" if all(meeting.infos[rank]["devices"] for rank in nodes) else "gloo"


def find_limit_s(meeting, settings):
    """Return how long any group of these nodes may take."""
    has_devices = any(info["devices"] for info in meeting.infos.values())
    return settings["limits_s"]["nccl" if has_devices else "gloo"]


def measure_group(torch, meeting, nodes, name, settings):
    """Be the ranks of this node in a group of nodes; return their rows, or a problem."""
    backend = find_backend(meeting, nodes)
    each = min(meeting.infos[rank]["devices"] for rank in nodes) if backend == "nccl" else 1
    devices = find_devices(torch)["devices"][:each] if backend == "nccl" else ["cpu"]
    first = sorted(nodes).index(meeting.rank) * each
    prefix = "%s/%s" % (name, "-".join(str(rank) for rank in nodes[:2]))
    deadline_s = settings["limits_s"][backend]
    limit_s = max(1.0, deadline_s - 2.0)
    chosen = dict(settings, megabytes=settings["sizes"][backend])

    def be_rank(local):
        def open_store():
            store = meeting.open_store(limit_s)
            return torch.distributed.PrefixStore(prefix, store)

        group = Group(
            backend,
            first + local,
            len(nodes) * each,
            open_store,
            devices[local],
            meeting.interface,
            limit_s,
        )
        return reduce(torch, group, chosen)

    works = [lambda local=local: be_rank(local) for local in range(each)]
    rows = run_children(works, deadline_s)
    problems = [row["problem"] for row in rows if "problem" in row]
    return {"problem": shorten(problems[0])} if problems else {"rows": rows}


def shorten(problem):
    """Return the telling part of what torch raised: the first line, without its stack."""
    return problem.strip().split("\n")[0][:200]


# ------------------------------------------------------------------------------------ allreduce


def reduce_all(torch, meeting, settings):
    """Sum integers over all nodes."""
    if meeting.is_broken:
        return {"problem": "some pairs of nodes failed: see the check of pairs"}
    nodes = list(meeting.alive)
    row = measure_group(torch, meeting, nodes, "all", settings)
    told = meeting.gather("all", row, find_limit_s(meeting, settings) + _SLACK_S)
    missing = [rank for rank in nodes if rank not in told]
    if missing:
        return {"problem": "node ranks %s left" % ", ".join(str(rank) for rank in missing)}
    problems = [one["problem"] for one in told.values() if "problem" in one]
    if problems:
        return {"problem": problems[0]}
    rows = [dict(one, node=rank) for rank in nodes for one in told[rank]["rows"]]
    return dict(join_rows(rows), rows=rows, backend=find_backend(meeting, nodes), members=nodes)


STEPS = {
    "nodes-versions": compare_versions,
    "nodes-clock": compare_clocks,
    "nodes-gemm": compare_speed,
    "nodes-pairs": measure_pairs,
    "nodes-allreduce": reduce_all,
}
