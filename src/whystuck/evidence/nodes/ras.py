"""What NCCL's RAS subsystem tells of a whole job: communicators, and how far each rank came."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

RAS_JSON_FILE = "ras.json"
RAS_TEXT_FILE = "ras.txt"


@dataclass(frozen=True)
class RasMember:
    """A rank of a communicator; it is not that of the job where only some ranks belong to it.

    ``pid`` is -1 and ``host`` empty where they are not known.
    """

    rank: int
    pid: int = -1
    host: str = ""


@dataclass(frozen=True)
class RasCount:
    """Members of a communicator that have issued as many collectives of a kind as each other.

    ``size`` is their number; ``members`` are those that are named, which may be none of them.
    """

    op: str
    issued: int
    size: int
    members: tuple[RasMember, ...] = ()


@dataclass(frozen=True)
class RasError:
    """An error that members of a communicator report; ``size`` and ``members`` as in `RasCount`."""

    what: str
    is_async: bool
    size: int
    members: tuple[RasMember, ...] = ()


@dataclass(frozen=True)
class RasComm:
    """A communicator: ``hash`` in hexadecimal, ``size`` 0 where it is not known.

    ``counts`` are those of the kinds of collectives in which members differ, the largest number of
    members first. ``missing`` are members that RAS has no data of, ``absent`` those that answer
    and do not know the communicator.
    """

    hash: str
    size: int = 0
    counts: tuple[RasCount, ...] = ()
    errors: tuple[RasError, ...] = ()
    missing: tuple[RasMember, ...] = ()
    absent: tuple[RasMember, ...] = ()


@dataclass(frozen=True)
class RasProcess:
    """A process that does not answer; ``is_dead`` when RAS has given it up."""

    pid: int
    host: str
    is_dead: bool


@dataclass(frozen=True)
class RasStatus:
    """One answer of RAS.

    ``comms`` are the communicators with something to tell of. ``comms_seen`` counts all of them,
    ``largest`` is the number of members of the largest one, ``alike`` how many are so large, and
    ``members`` are its members, as far as JSON tells them.
    """

    version: str = ""
    comms: tuple[RasComm, ...] = ()
    comms_seen: int = 0
    largest: int = 0
    processes: tuple[RasProcess, ...] = ()
    dead: int = 0
    silent: int = 0
    timeouts: int = 0
    artifact: str = ""
    members: tuple[RasMember, ...] = ()
    alike: int = 1

    @property
    def is_even(self) -> bool:
        """Whether every member of every communicator has answered and issued the same."""
        is_odd = any(one.counts or one.missing or one.absent for one in self.comms)
        return bool(self.comms_seen) and not (is_odd or self.dead or self.silent or self.timeouts)


def list_whole_members(answers: Iterable[RasStatus]) -> Iterator[RasMember]:
    """Yield the members whose process is known, of communicators in which their rank is the job's.

    That is so in the largest one, where no other is as large.
    """
    for answer in answers:
        whole = [one for one in answer.comms if one.size == answer.largest]
        if answer.alike == 1 and len(whole) == 1:
            (comm,) = whole
            named = [*comm.missing, *comm.absent, *answer.members]
            for count in comm.counts:
                named += count.members
            for error in comm.errors:
                named += error.members
            named += _find_silent(answer, comm)
            yield from (member for member in named if member.pid > 0)


def _find_silent(answer: RasStatus, comm: RasComm) -> Iterator[RasMember]:
    """Yield the one member without data, as the one process that gives no answer.

    NCCL lists such processes and such ranks apart from each other. A process without an answer
    belongs to each communicator that lacks it, so that one of each are the same.
    """
    silent = answer.silent + answer.dead
    is_one = silent == len(answer.processes) == len(comm.missing) == 1 and comm.size > 0
    if is_one and comm.missing[0].pid < 0:
        (process,), (member,) = answer.processes, comm.missing
        yield RasMember(member.rank, process.pid, process.host)
