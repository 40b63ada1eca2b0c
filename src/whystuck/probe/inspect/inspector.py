"""Looks into the ops of this process; the op log calls it before and after each."""

from __future__ import annotations

import struct
import sys
import threading
import time

from ..calling.interrupts import let_through
from ..calling.wanted import Wanted
from ..oplog.ring import ASYNC, FLAGS
from .calls import UserCall, say
from .op import Op, find_engine, find_site, is_still_in
from .reports import Reports
from .tensors import Later, describe, flatten, is_captured, is_host, measure, name_figures, quiet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ..oplog.forms import OpSpec
    from ..oplog.log import OpLog
    from .lines import Lines
    from .spec import Print, Spec

_SEQ, _STEP = 48, 72
_READ = struct.Struct("<Q").unpack_from
# How often gloo itself changes each output; 0 stands for once for each member of the group.
_COPIES = {"all_reduce_coalesced": 1, "all_gather": 1, "gather": 1, "all_gather_base": 0}
_MAX_OPEN = 4096
_CLOSE_TIMEOUT_S = 1.0
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_RECEIVES = ("recv", "recv_any")


class Inspector:
    """What is done with each op, after one SPEC."""

    def __init__(self, log: OpLog, spec: Spec, lines: Lines) -> None:
        self._log = log
        self._spec = spec
        self._calls = [UserCall(call, lines) for call in spec.calls]
        self._is_sync = spec.sync or any(call.needs_sync for call in self._calls)
        self._printer = Printer(spec.prints)
        self._reports = Reports(spec, lines, self._defer)
        self._inside = threading.local()
        # Of hooks, which have no way to hand a value from before to after.
        self._open: dict[int, Op] = {}
        self._waited_for = 0
        # Sends and receives so far, by the rank at the other end; -1 stands for any.
        self._sent: dict[int, int] = {}
        self._received: dict[int, int] = {}
        # The number of the newest op.
        self.newest = 0
        self._unbox = sys.modules["torch._C._distributed_c10d"].ProcessGroup.unbox

    def before(self, number: int, spec: OpSpec, args: tuple[Any, ...]) -> Op | None:
        """Look at an op of the dispatcher; return what is to be handed to :meth:`after`."""
        group = self._unbox(args[spec.group_at])
        form = spec.read(args)
        is_root = form.more.get("root", 0) == group.rank() if "root" in form.more else True
        op = self._make(number, spec.name, str(group.group_name))
        op.group_size = int(group.size())
        if op.is_p2p:
            self._count(op, _find_global_rank(group, form.more["peer"]))
        op.set_tensors(form.inputs, form.outputs, is_root=is_root)
        return self._look(op)

    def before_hook(self, number: int, name: str, group: str, args: Any) -> None:
        """Look at an op of a hook; ops that work in place give their tensors as inputs only."""
        found = sys.modules["torch._C._distributed_c10d"]._resolve_process_group(group)
        is_root = name not in _ROOTED or int(args.root) == found.rank()
        inputs, outputs = args.input_tensors, args.output_tensors
        op = self._make(number, name, group)
        op.group_size = int(found.size())
        op.set_tensors(inputs, outputs or inputs, is_root=is_root)
        if len(self._open) >= _MAX_OPEN:
            self._open.clear()
        looked_at = self._look(op)
        if looked_at is not None:
            self._open[number] = looked_at

    def after(self, op: Op, work: Any) -> None:
        """Look at the outputs of an op that was issued, now or when it is over."""
        if op.is_p2p:
            # Waiting for it twice would wait for ever.
            if op.name in _RECEIVES and (op.takes_stats or op.takes_finite):
                self._reports.miss(op, "what is received is seen at its sender")
            return
        c10d = sys.modules["torch.distributed.distributed_c10d"]
        if c10d._world.pg_coalesce_state:
            # Ops of a coalesced batch begin when all of them were issued.
            if op.is_looked_into:
                self._reports.miss(op, "it is issued as part of a batch")
        elif work is None:
            self._finish(op, None)
        elif not op.is_async or self._is_sync:
            self._finish(op, self._wait(op, work))
        elif self._wants_end(op):
            self._finish_later(op, work)

    def after_hook(self, number: int, work: Any) -> None:
        """Do the same for an op of a hook."""
        op = self._open.pop(number, None)
        if op is not None:
            self.after(op, work)

    def failed(self, op: Op, error: BaseException) -> None:
        """Take note of an op that could not be issued."""
        self._finish(op, error)

    def close(self) -> None:
        """Wait a moment for the ends of ops that are on their way.

        A thread of torch's that comes into an interpreter which is gone ends the process.
        """
        deadline_s = time.monotonic() + _CLOSE_TIMEOUT_S
        while self._waited_for > 0 and time.monotonic() < deadline_s:
            time.sleep(0.005)
        self._reports.close()

    # ------------------------------------------------------------------------------- before

    def _make(self, number: int, name: str, group: str) -> Op:
        op = Op(number, name, group)
        ring = self._log.ring
        self.newest = max(self.newest, number)
        place = ring.place(number)
        op.seq, op.step = _READ(ring.map, place + _SEQ)[0], _READ(ring.map, place + _STEP)[0]
        op.is_async = bool(_READ(ring.map, place + FLAGS)[0] & ASYNC)
        op.received = self._received
        op.rank = int(sys.modules["torch.distributed.distributed_c10d"].get_rank())
        return op

    def _count(self, op: Op, peer: int) -> None:
        """Number an op among those with its peer: the n-th send is what the n-th receive gets."""
        if op.name == "send":
            op.peer = peer
            op.passed = self._sent[peer] = self._sent.get(peer, 0) + 1
        else:
            # What ops before it have noted stays as it was.
            self._received = {**self._received, peer: self._received.get(peer, 0) + 1}

    def _look(self, op: Op) -> Op | None:
        if getattr(self._inside, "flag", False):
            return None  # an op of a check of the user's
        spec = self._spec
        calls = [call for call in self._calls if call.takes(op)]
        op.takes_stats = bool(spec.stats and spec.stats.takes(op.name, op.group, op.seq))
        op.takes_finite = bool(spec.finite and spec.finite.takes(op.name, op.group, op.seq))
        op.takes_result = self._reports.takes_result(op)
        is_printed = self._printer.takes(op)
        if not (calls or op.is_looked_into or is_printed or self._is_sync):
            return None
        if calls:
            op.site = find_site(self._log.sites._is_hidden)
            try:
                self._ask(calls, "before", op)
            except Wanted:  # it will not be issued
                self._log.fail(op.number, time.monotonic_ns())
                raise
        with quiet():
            self._reports.see(op, "in", op.inputs)
            if not op.outputs:
                self._reports.see_result(op, op.inputs)  # what the root of a broadcast gives
        if is_printed:
            with quiet():
                self._printer.show(op, self._defer)
        return op

    def _ask(self, calls: list[UserCall], method: str, op: Op, *more: object) -> None:
        self._inside.flag = True
        try:
            for call in calls:
                getattr(call, method)(op, *more)
        finally:
            self._inside.flag = False

    # -------------------------------------------------------------------------------- after

    def _wants_end(self, op: Op) -> bool:
        return op.is_looked_into or any(call.takes(op) for call in self._calls)

    def _wait(self, op: Op, work: Any) -> BaseException | None:
        """Wait as the caller of a synchronous op does next; he gets its error himself."""
        try:
            work.wait()
            if self._spec.sync:
                for tensor in flatten([op.inputs, op.outputs]):
                    if not is_host(tensor) and not is_captured(tensor):
                        torch: Any = sys.modules["torch"]
                        getattr(torch, tensor.device.type).current_stream().synchronize()
                        break
        except Exception as error:
            let_through(error)
            return error
        return None

    def _finish(self, op: Op, error: BaseException | None) -> None:
        if error is None:
            with quiet():
                self._reports.see(op, "out", op.outputs)
                self._reports.see_result(op, op.outputs)
        calls = [call for call in self._calls if call.takes(op)]
        if calls and error is None:
            self._ask(calls, "after", op)
        elif calls:
            self._ask(calls, "on_error", op, error)

    def _finish_later(self, op: Op, work: Any) -> None:
        """Look at the outputs before whoever waits for the op goes on, or not at all."""
        tensors = list(flatten(op.outputs))
        if not all(is_host(tensor) for tensor in tensors):
            self._reports.miss(op, "the end of an async op on a device is not waited for")
            return
        try:
            future = work.get_future()
        except Exception:  # such as gloo's reduce_scatter
            self._reports.miss(op, "its handle does not tell of its end")
            return
        op.frame = find_engine(threading.get_ident())
        op.versions = _versions(tensors)
        self._waited_for += 1
        future.add_done_callback(self._make_callback(op))

    def _make_callback(self, op: Op) -> Any:
        def done(future: Any) -> None:
            try:
                self._is_over(op, future)
            except Exception:  # torch would print it
                return
            finally:
                op.frame = None
                self._waited_for -= 1

        return done

    def _is_over(self, op: Op, future: Any) -> None:
        """Look at the outputs in the thread that ends the op, before its handle says so."""
        try:
            future.value()
        except Exception as error:
            self._finish(op, error)
            return
        with quiet():
            figures = self._reports.measure(op, op.outputs)
            result = self._reports.measure_result(op, op.outputs)
        # Who waits for the future itself, as DDP does, may have gone on meanwhile.
        changes = _COPIES.get(op.name, 0) or (op.group_size if op.name in _COPIES else 0)
        expected = [version + changes for version in op.versions]
        if (op.frame is not None and not is_still_in(op.frame)) or (
            expected != _versions(flatten(op.outputs))
        ):
            self._reports.miss(op, "its output was changed before it could be read")
            return
        self._reports.put(op, "out", figures)
        self._reports.put_result(op, result)
        calls = [call for call in self._calls if call.takes(op)]
        if calls:
            self._ask(calls, "after", op)

    def _defer(self, later: Later) -> None:
        self._log.completion.defer(later)


def _find_global_rank(group: Any, peer: int) -> int:
    """Return the rank in the job of a member of a group, -1 when torch does not tell."""
    if peer < 0:
        return -1
    try:
        c10d: Any = sys.modules["torch.distributed.distributed_c10d"]
        return int(c10d.get_process_group_ranks(group)[peer])
    except Exception:  # a group that torch's Python side does not know
        return -1


def _versions(tensors: Any) -> list[int]:
    """Return what torch counts up at each change of a tensor, where it does."""
    return [int(tensor._version) for tensor in tensors if not tensor.is_inference()]


class Printer:
    """Prints ops of this rank; counts them by name."""

    def __init__(self, wanted: list[Print]) -> None:
        self._wanted = wanted
        self._counts: dict[str, int] = {}

    def takes(self, op: Op) -> bool:
        """Tell whether an op is printed on this rank."""
        return any(
            (one.ranks is None or op.rank in one.ranks) and (not one.ops or op.name in one.ops)
            for one in self._wanted
        )

    def show(self, op: Op, defer: Callable[[Later], None]) -> None:
        """Print one op with what it sends; of what it will receive, the shape only."""
        count = self._counts[op.name] = self._counts.get(op.name, 0) + 1
        sent = list(flatten(op.inputs))
        tensors = sent or list(flatten(op.outputs))
        parts = [f"rank {op.rank} step {op.step} {op.name} {op.seq} of group {op.group}"]
        about = [describe(tensor) for tensor in tensors[:1]]
        parts += [f"{one['shape']} {one['dtype']}" for one in about]
        if len(tensors) > 1:
            parts.append(f"and {len(tensors) - 1} more")
        figures = measure(sent[0]) if sent and not is_captured(sent[0]) else None
        if figures is None:
            say(f"{' '.join(parts)}, call {count}")
            return

        def finish(got: list[list[float]]) -> None:
            mean = name_figures(got[0], about[0]["count"])["mean"]
            shown: Any = "unknown" if mean is None else f"{mean:.6g}"
            say(f"{' '.join(parts)}, mean {shown}, call {count}")

        defer(Later([figures], finish))
