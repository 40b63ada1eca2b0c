"""The process that does all that touches files: it prepares, says so, and follows the job."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from whystuck.collect.processes.allocator import use_one_arena
from whystuck.collect.programs import starting_apart
from whystuck.collect.stores import open_store
from whystuck.evidence.errors import UsageError, WhystuckError
from whystuck.evidence.private import private_files
from whystuck.launch.background import describe_fault
from whystuck.launch.incidents.copies import FINISH_TIMEOUT_S
from whystuck.launch.incidents.folder import EvidenceFolder
from whystuck.launch.incidents.late import LateWriter
from whystuck.launch.incidents.staging import staging
from whystuck.launch.incidents.upload import copying
from whystuck.launch.jobdir import make_job_dir
from whystuck.launch.link import Link
from whystuck.launch.options import RunOptions
from whystuck.launch.output.rank_outputs import RelayEnd
from whystuck.launch.output.streams import OutputKinds
from whystuck.launch.supervisor import Supervisor
from whystuck.safe_text.escaping import show_line

_SLACK_S = 10.0


def watch_job(
    options: RunOptions, kinds: OutputKinds, link: Link, relay: RelayEnd, front_pid: int
) -> None:
    """Prepare, say so, and follow the job to its end; what prevents that is said as well.

    Args:
        options: What the user asked for.
        kinds: What the outputs of the job are.
        link: To the process that starts the command.
        relay: To the relay that passes on the output.
        front_pid: The pid of ``whystuck run``, as the user knows it.
    """
    use_one_arena()
    try:
        with ExitStack() as stack:
            stack.enter_context(starting_apart())
            store = open_store(options.evidence_url) if options.evidence_url else None
            # The command has the umask of the user, in the process that starts it.
            stack.enter_context(private_files())
            job_dir = stack.enter_context(make_job_dir())
            evidence = EvidenceFolder(options.evidence, socket.gethostname() or "localhost")
            stack.enter_context(copying(store, options.evidence_url, evidence, relay.say))
            stack.enter_context(staging(evidence, relay.say, is_wanted=store is None))
            # Ends first: fault.log and job.json are copied with the rest.
            stack.enter_context(_writing_late(evidence))
            end = Supervisor(options, evidence, job_dir, link, kinds, relay).run(front_pid)
            done = {"code": end.code, "ending": msgspec.to_builtins(end)}
            if evidence.hangs:  # nobody waits for it; we do, for what was gathered
                relay.say(_describe_hang(evidence))
                link.send("done", **done)
            link.send("working", for_s=FINISH_TIMEOUT_S + _SLACK_S, late=[])
        link.send("done", **done)
    except WhystuckError as error:
        is_usage = isinstance(error, UsageError)
        link.send("refused", text=error.message, hint=error.hint, is_usage=is_usage)
    except OSError as error:
        link.send("useless", reason=f"{error.strerror or error}")
    except Exception as error:  # noqa: BLE001 - our own fault must not end the job
        link.send("useless", reason=describe_fault(error))


def _describe_hang(evidence: EvidenceFolder) -> str:
    what = f"whystuck: {show_line(str(evidence.root))} does not answer"
    if evidence.stage is None:
        return f"{what}; what was not written yet is missing there\n"
    return f"{what}; the evidence is in {evidence.stage}, and copied if it does within 2 minutes\n"


@contextmanager
def _writing_late(evidence: EvidenceFolder) -> Iterator[None]:
    """Let nobody wait for small writes to the evidence folder while the block runs."""
    evidence.late = late = LateWriter()
    try:
        yield
    finally:
        evidence.late = None
        late.finish()
