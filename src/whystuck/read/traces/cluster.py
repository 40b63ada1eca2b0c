"""The Dask engine: files are mapped by the workers of a cluster that runs already."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from whystuck import __version__
from whystuck.evidence.decoding import msgpack_decoder
from whystuck.evidence.errors import UsageError
from whystuck.read.budget import Deadline
from whystuck.read.traces.local import LATE, set_deadline
from whystuck.read.traces.mapping import MapDone, MapTask, run_task

_CONNECT_TIMEOUT_S = 20
_WORKERS_TIMEOUT_S = 60
# A task that fails for a reason of the cluster, such as a worker that leaves.
_RETRIES = 2
_DONE = msgpack_decoder(MapDone)


@dataclass(frozen=True)
class DaskEngine:
    """How files are mapped on a cluster.

    Attributes:
        address: The scheduler, such as ``tcp://10.0.0.1:8786``.
        has_our_disk: Whether a folder of ours for the time of the run is there for workers, too.
        deadline: When no new file is read, by the CPU of the workers; one of its own for each map
            when left out.
    """

    address: str
    has_our_disk: bool = False
    deadline: Deadline | None = None

    def map(self, tasks: Sequence[MapTask]) -> Iterator[tuple[int, MapDone]]:
        """Map files on the workers of the cluster, which need whystuck and must see the files.

        What a worker had done when it was lost is done again by others. A file whose workers are
        lost again and again is tried once more, alone.

        Args:
            tasks: One for each file.

        Yields:
            The position of a task and what came of it, in the order in which they end.

        Raises:
            UsageError: There is no such cluster, or its workers cannot do it.
        """
        distributed = _import_distributed()
        deadline = self.deadline or set_deadline(tasks)
        with _connect(distributed, self.address) as client:
            _check_workers(client)
            lost: list[int] = []
            left = set(range(len(tasks)))
            for number, result in _run(distributed, client, tasks, sorted(left)):
                left.discard(number)
                if isinstance(result, distributed.KilledWorker):
                    lost.append(number)
                else:
                    done = _judge(result)
                    deadline.add(done.cpu_s)
                    yield number, done
                if deadline.is_over:
                    break
            for number in sorted(lost):
                if deadline.is_over:
                    left.add(number)
                    continue
                for _, result in _run(distributed, client, tasks, [number]):
                    yield number, _judge(result)
            yield from ((number, LATE) for number in sorted(left))


def _run(
    distributed: Any,  # noqa: ANN401 - an optional module
    client: Any,  # noqa: ANN401 - as above
    tasks: Sequence[MapTask],
    numbers: Sequence[int],
) -> Iterator[tuple[int, Any]]:
    """Run tasks, and yield the bytes that each gives, or its error."""
    futures = {
        client.submit(
            run_task, msgspec.msgpack.encode(tasks[number]), pure=False, retries=_RETRIES
        ): number
        for number in numbers
    }
    ended = distributed.as_completed(
        list(futures), with_results=True, raise_errors=False, loop=client.loop
    )
    try:
        for future, result in ended:
            number = futures.pop(future)
            # What was fetched need not be kept there.
            future.release()
            yield number, result[1] if isinstance(result, tuple) else result
    finally:
        # What was not waited for need not be done.
        client.cancel(list(futures))


def _judge(result: Any) -> MapDone:  # noqa: ANN401 - bytes, or any error
    if isinstance(result, bytes):
        return _DONE.decode(result)
    if isinstance(result, BaseException) and type(result).__name__ == "KilledWorker":
        return MapDone(
            state="bad", reason="the workers that read it were lost, perhaps for lack of memory"
        )
    return MapDone(state="bad", reason=f"it failed on the cluster: {result!r}"[:300])


def _import_distributed() -> Any:  # noqa: ANN401 - an optional module
    try:
        import distributed
    except ImportError as problem:
        raise UsageError(
            "`--engine dask://` needs Dask, which is not installed",
            hint="`pip install 'whystuck[dask]'`, or leave `--engine` out",
        ) from problem
    return distributed


def _connect(distributed: Any, address: str) -> Any:  # noqa: ANN401 - an optional module
    try:
        return distributed.Client(address, timeout=_CONNECT_TIMEOUT_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as problem:
        raise UsageError(
            f"no Dask scheduler answers at {address}: {problem}"[:300],
            hint="`dask scheduler` prints its address: give it as `--engine dask://HOST:PORT`",
        ) from problem


def _check_workers(client: Any) -> None:  # noqa: ANN401 - an optional module
    """See that workers are there, and have whystuck of the same version."""
    try:
        client.wait_for_workers(1, timeout=_WORKERS_TIMEOUT_S)
    except TimeoutError as problem:
        raise UsageError(
            f"the Dask cluster has had no workers for {_WORKERS_TIMEOUT_S} s",
            hint="start some: `dask worker HOST:PORT`",
        ) from problem
    # A function of the standard library, as a worker without whystuck cannot be sent one of ours.
    found = client.run(pkgutil.resolve_name, "whystuck:__version__", on_error="return")
    for worker, version in sorted(found.items()):
        if isinstance(version, BaseException):
            raise UsageError(
                f"the Dask worker {worker} has no whystuck: {version}",
                hint=f"`pip install whystuck=={__version__}` where the workers run",
            )
        if version != __version__:
            raise UsageError(
                f"the Dask worker {worker} has whystuck {version}, and this is {__version__}",
                hint=f"`pip install whystuck=={__version__}` where the workers run",
            )
