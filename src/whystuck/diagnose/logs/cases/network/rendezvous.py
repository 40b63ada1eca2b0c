"""H121 rendezvous-failed: processes that did not find each other, and what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.failures.rendezvous import (
    Environment,
    Meeting,
    is_number,
    name_reach,
)
from whystuck.diagnose.logs.cases.network.absent_nodes import find_nodes_missing, has_store
from whystuck.diagnose.logs.cases.network.card_pairs import find_card_pair
from whystuck.diagnose.logs.cases.network.loopbacks import find_loopback
from whystuck.diagnose.logs.cases.network.npu_pairs import find_npu_pair
from whystuck.diagnose.logs.cases.network.rendezvous_lines import (
    Answer,
    Told,
    find_counted,
    find_odd_ones,
    has_failed,
    is_of_later_group,
    listen,
)
from whystuck.diagnose.logs.cases.network.used_before import (
    find_old_file,
    find_surplus,
    make_closed,
)
from whystuck.diagnose.logs.cases.parts import find_time
from whystuck.diagnose.logs.story import OWN, Case
from whystuck.diagnose.logs.view import LogView
from whystuck.evidence.finding import Confidence
from whystuck.evidence.ranks import format_ranks, name_ranks

_MAX_LINES = 6
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def make_rendezvous(view: LogView) -> Iterator[Case]:
    """Make the case of processes that did not find each other."""
    if is_of_later_group(view):
        return  # where the others are instead is told by their stacks
    told = listen(view)
    meeting = told.meeting
    if not meeting.failures:
        yield from make_closed(view)
        return
    answer = next(found for find in _FINDERS if (found := find(told)) is not None)
    keys = answer.keys | meeting.failures
    lines = [*told.list_lines(answer.keys), *told.list_lines(meeting.failures - answer.keys)]
    exceptions = tuple(item for key, item in told.exceptions.items() if key in keys)
    victims = set(told.find_ranks(meeting.failures)) | view.ranks
    yield Case(
        code=codes.RENDEZVOUS_FAILED,
        summary=answer.says,
        tier=answer.tier,
        ranks=answer.ranks,
        nodes=answer.nodes,
        victims=tuple(sorted(victims - set(answer.ranks))),
        lines=tuple(lines[:_MAX_LINES]),
        exceptions=exceptions[:_MAX_LINES],
        time=find_time(told.list_lines(meeting.failures), exceptions),
        confidence=answer.confidence,
        details={"kind": answer.kind, **answer.details},
        remedies=answer.remedies,
        scope=frozenset(told.find_ranks(meeting.failures)),
        entails=answer.entails,
    )


def find_differences(view: LogView) -> Answer | None:
    """Find what differs in how processes were started, of a job that waits for all to come."""
    told = listen(view)
    for find in (_find_twins, _find_sizes, _find_endpoints):
        if (found := find(told)) is not None:
            return found
    return _find_unstarted(told)


def _find_unstarted(told: Told) -> Answer | None:
    """Find ranks that nobody was started with, as far as this host knows."""
    environments, world_size = told.meeting.environments, told.view.world_size
    started = {item.rank for item in environments}
    absent = sorted(set(range(world_size)) - started)
    if not absent or not started:
        return None
    return Answer(
        "missing-rank",
        f"{len(started)} of {world_size} processes were started here; {name_ranks(absent)} "
        f"{'was' if len(absent) == 1 else 'were'} not",
        ranks=tuple(absent),
        confidence=Confidence.LIKELY if _is_one_host(told) else Confidence.POSSIBLE,
        details={"joined": len(started), "expected": world_size, "missing": absent},
        remedies=(f"see whether {name_ranks(absent)} was started, on this host or another",),
    )


def _is_one_host(told: Told) -> bool:
    """Tell whether all processes of the job are seen: they meet where nobody else can come."""
    return {item.get("MASTER_ADDR") for item in told.meeting.environments} <= _LOOPBACK


def _find_storeless(told: Told) -> Answer | None:
    """Find that rank 0 was never started, where the others look for its store."""
    started = {item.rank for item in told.meeting.environments}
    is_sure = bool(started) and 0 not in started and _is_one_host(told)
    return _find_unstarted(told) if is_sure else None


def _find_twins(told: Told) -> Answer | None:
    """Find ranks that more than one process was started with."""
    twins = told.meeting.list_twins()
    if not twins:
        return None
    ranks = tuple(sorted(twins))
    known = {item.rank for item in told.meeting.environments}
    sizes = [item.get("WORLD_SIZE") for item in told.meeting.environments]
    size = max((int(text) for text in sizes if is_number(text)), default=0)
    nobody = sorted(set(range(size)) - known) if known else []
    tail = f"; nobody is {name_ranks(nobody)}" if nobody and len(nobody) <= len(ranks) else ""
    return Answer(
        "duplicate-rank",
        f"more than one process was started as {name_ranks(ranks)}{tail}",
        ranks=ranks,
        keys=frozenset(key for keys in twins.values() for key in keys),
        tier=OWN,
        confidence=Confidence.CERTAIN if told.meeting.twice else Confidence.LIKELY,
        details={"missing": nobody},
        remedies=(
            ("give each process a RANK of its own; torchrun does, and with srun take SLURM_PROCID"),
        ),
    )


def _find_sizes(told: Told) -> Answer | None:
    """Find processes that expect different numbers of ranks."""
    odd = told.meeting.find_odd("WORLD_SIZE")
    if odd is None and not told.meeting.sizes:
        return _find_split(told)
    few = _find_few(odd[1]) if odd else []
    values = sorted(odd[1] if odd else map(str, told.meeting.sizes), key=lambda text: text.zfill(9))
    ranks = tuple(sorted({item.rank for item in few}))
    who = ""
    if few:
        verb = "has" if len(ranks) == 1 else "have"
        who = f"; {name_ranks(ranks)} {verb} {few[0].get('WORLD_SIZE')}"
    return Answer(
        "world-size",
        f"processes were started with different WORLD_SIZE: {' and '.join(values)}" + who,
        ranks=ranks,
        keys=frozenset(item.key for item in few),
        tier=OWN,
        confidence=Confidence.CERTAIN,
        details={"world_sizes": values},
        remedies=("set WORLD_SIZE to nodes x processes of a node, the same for all",),
    )


def _find_split(told: Told) -> Answer | None:
    """Find ranks that waited for one of which others did not know."""
    fewer, more = told.meeting.list_split()
    if not more:
        return None
    odd = min((fewer, more), key=len) if len(fewer) != len(more) else set()
    waited = sorted(rank for rank, who in told.meeting.awaited.items() if who & more)
    return Answer(
        "world-size",
        f"{name_ranks(more)} waited for {name_ranks(waited)}, of which {name_ranks(fewer)} did not "
        "know: WORLD_SIZE differs",
        ranks=tuple(sorted(odd)),
        tier=OWN,
        details={"expected_by": sorted(more), "missing": waited},
        remedies=("set WORLD_SIZE to nodes x processes of a node, the same for all",),
    )


def _find_few(by_value: dict[str, list[Environment]]) -> list[Environment]:
    """Return the processes that differ from most; none where no value is that of most."""
    counts = sorted((len(items) for items in by_value.values()), reverse=True)
    if counts[0] <= sum(counts[1:]):
        return []
    return [item for items in by_value.values() if len(items) < counts[0] for item in items]


def _find_endpoints(told: Told) -> Answer | None:
    """Find processes that were sent to different addresses or ports."""
    odd = told.meeting.find_odd(*Meeting.SUBJECTS)
    few = _find_few(odd[1]) if odd else []
    if odd is None:
        return None
    name, by_value = odd
    ranks = tuple(sorted({item.rank for item in few}))
    most = max(by_value, key=lambda value: len(by_value[value]))
    who = (
        f"{name_ranks(ranks)} {'was' if len(ranks) == 1 else 'were'} started with "
        f"{name}={few[0].get(name)}, the others with {most}"
        if few
        else f"processes were started with different {name}: {' and '.join(sorted(by_value))}"
    )
    counts = told.meeting.missing_count
    tail = f"; {counts[0]} of {counts[1]} processes met" if counts else ""
    return Answer(
        "endpoint",
        who + tail,
        ranks=ranks,
        keys=frozenset(item.key for item in few) | find_counted(told),
        details={"variable": name, "values": sorted(by_value), "missing": list(ranks)},
        remedies=(f"set {name} to the same value for all processes: that of the node of rank 0",),
    )


def _find_unresolved(told: Told) -> Answer | None:
    """Find a name that a host cannot resolve, where the rendezvous failed there too."""
    meeting = told.meeting
    tried = {host for host, _ in meeting.addresses}
    keys = {
        key
        for host, found in meeting.nameless.items()
        if not host or not tried or host in tried
        for key in found
    }
    unknown = meeting.list_unknown()
    keys = {
        key
        for key in keys
        if key in unknown or (has_failed(told, key) and not has_store(told, key))
    }
    if not keys:
        return None
    hosts = sorted(host for host in meeting.nameless if host)
    name = hosts[0] if hosts else "the name of the rendezvous"
    nodes, ranks = find_odd_ones(told, keys)
    here = {rank for node in nodes for rank in told.view.list_ranks_on(node)}
    who = " and ".join(nodes) or (name_ranks(ranks) if ranks else "")
    return Answer(
        "unresolved",
        f"{name} could not be resolved" + (f" on {who}" if who else ""),
        # The ranks of a host are no better off than it; a pod with one rank is that rank.
        ranks=tuple(here) if len(here) == 1 else () if nodes else ranks,
        nodes=nodes,
        keys=frozenset(keys).union(*(meeting.unknown.values() if keys & unknown else ())),
        details={"host": hosts[0] if hosts else ""},
        remedies=(
            f"getent hosts {hosts[0] if hosts else 'NAME'}   # on every node",
            "use the address in place of the name: MASTER_ADDR or --rdzv-endpoint",
        ),
    )


def _find_foreign(told: Told) -> Answer | None:
    """Find an address at which something else answers."""
    if not told.meeting.foreign:
        return None
    _, ranks = find_odd_ones(told, told.meeting.foreign)
    return Answer(
        "not-a-store",
        "what answers at the address of the store is not a store"
        + (f", for {name_ranks(ranks)}" if ranks else ""),
        ranks=ranks,
        keys=frozenset(told.meeting.foreign),
        remedies=(
            "ss -ltnp | grep PORT   # on the node of MASTER_ADDR: who listens there",
            "check MASTER_ADDR and MASTER_PORT, and proxies between the nodes",
        ),
    )


def _find_peers(told: Told) -> Answer | None:
    """Find another rank's address that could not be reached, where one alone was not."""
    peers = told.meeting.peers
    if not peers:
        return None
    keys = {key for found in peers.values() for key in found}
    host = next(iter(peers)) if len(peers) == 1 else ""
    ranks = told.find_ranks(keys)
    who = f" from {name_ranks(ranks)}" if ranks else ""
    return Answer(
        "unreachable",
        f"{host or 'addresses of peers'} could not be reached{who}: no process of the job listens "
        "there, or something between the hosts keeps it away",
        nodes=(host,) if host else (),
        keys=frozenset(keys),
        details={"host": host, "peers": sorted(peers)[:_MAX_LINES]},
        remedies=(
            f"see whether the rank at {host or 'each address'} was started, and its log",
            f"ping {host or 'ADDRESS'}   # from the node that could not reach it; see firewalls",
        ),
    )


def _find_unreached(told: Told) -> Answer | None:
    """Find an address that could not be reached."""
    meeting = told.meeting
    keys = {key for found in meeting.addresses.values() for key in found}
    if not keys & meeting.failures and not meeting.errnos:
        return None
    if not keys & meeting.failures and meeting.missing_count:
        return None
    kind = name_reach(meeting)
    host, port = max(meeting.addresses, key=lambda at: len(meeting.addresses[at]), default=("", ""))
    nodes, ranks = find_odd_ones(told, keys)
    where = f"{host}:{port}" if host else "the address of the store or of a peer"
    how = "refused the connection" if kind == "refused" else "could not be reached"
    who = " and ".join(nodes) or (name_ranks(ranks) if ranks else "")
    return Answer(
        kind,
        f"{where} {how}" + (f", from {who}" if who else ""),
        ranks=ranks,
        nodes=nodes,
        keys=frozenset(keys),
        details={"host": host, "port": int(port) if is_number(port) else 0},
        remedies=(
            f"nc -vz {host or 'HOST'} {port or 'PORT'}   # from the node that could not reach it",
            "ss -ltnp   # on the node of rank 0: does its process listen, and on which address",
            "check MASTER_ADDR, MASTER_PORT and firewalls between the nodes",
        ),
    )


def _find_missing(told: Told) -> Answer | None:
    """Find ranks that did not come."""
    meeting, view = told.meeting, told.view
    absent = meeting.list_absent()
    counts = meeting.missing_count
    if not absent and counts is None:
        return None
    joined, world = counts or (0, 0)
    if not absent and 0 < joined < world:
        silent = set(range(world)) - _list_heard(view)
        absent = silent if len(silent) == world - joined else set()
    named = tuple(sorted(absent))
    # Where nobody knows who wrote some of it, one of these may have come, and wait as well.
    ranks = () if meeting.is_anonymous else named
    share = f"{joined} of {world} processes came" if counts else "not all processes came"
    who = f"; {name_ranks(ranks)} did not" if ranks else "; who did not is not known"
    if named and not counts:
        share, who = f"others waited for {name_ranks(named)} until the time limit", ""
    return Answer(
        "missing-rank",
        f"{share}{who}",
        ranks=ranks,
        nodes=tuple(sorted({view.node_by_rank.get(rank, "") for rank in ranks} - {""})),
        keys=find_counted(told),
        details={"joined": joined, "expected": world, "missing": list(named)},
        remedies=(
            f"see whether {name_ranks(named) if named else 'each rank'} was started, and its log",
        ),
    )


def _list_heard(view: LogView) -> set[int]:
    """Return the ranks that wrote anything, or of which anything was recorded."""
    heard = {rank for file in view.files for rank in file.ranks}
    heard |= {event.rank for event in view.events} | {item.rank for item in view.exceptions}
    return heard | {item.rank for item in view.exits}


def _find_nothing(told: Told) -> Answer | None:
    """Say only that it failed."""
    ranks = told.find_ranks(told.meeting.failures)
    who = f" on ranks {format_ranks(ranks)}" if ranks else ""
    return Answer(
        "timeout",
        f"processes did not find each other in time{who}; who was missing is not known",
        remedies=("collect the logs of all nodes, those of the launcher included",),
    )


_FINDERS: tuple[Callable[[Told], Answer | None], ...] = (
    _find_twins,
    _find_sizes,
    _find_endpoints,
    _find_storeless,
    find_surplus,
    find_old_file,
    _find_unresolved,
    _find_foreign,
    find_loopback,
    find_card_pair,
    find_npu_pair,
    _find_peers,
    _find_unreached,
    _find_missing,
    find_nodes_missing,
    _find_nothing,
)
