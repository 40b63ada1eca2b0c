"""What the arguments of c10d's ops mean: tensors, sizes, splits, root and peer."""

from __future__ import annotations

from .ring import HOST, NO_END

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Reader = Callable[[tuple[Any, ...]], "Form"]

# More tensors than this are told by the first and the last of them, as reading all takes long.
_MAX_TENSORS = 16
# What is known of forms is forgotten beyond this: sizes that change with each batch have no end,
# and the splits of an all_to_all are as many as its ranks.
_MAX_KNOWN, _MAX_WEIGHT = 4096, 200_000


class Form:
    """What an op works on; ``more`` holds root, peer, tag and splits where they apply."""

    def __init__(self, inputs: list[Any], outputs: list[Any], more: dict[str, Any]) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.more = more


class OpSpec:
    """One op of c10d.

    ``name`` is what the op log calls it, ``group_at`` is the place of the group among the
    arguments, before which are the tensors, ``plain_at`` are the places of numbers that tell forms
    apart, and ``read`` takes the arguments apart.
    """

    def __init__(self, name: str, group_at: int, plain_at: tuple[int, ...], read: Reader) -> None:
        self.name = name
        self.group_at = group_at
        self.plain_at = plain_at
        self.read = read
        # One list of tensors is all that there is.
        self.is_simple = group_at == 1 and not plain_at and read is _in_place
        self.is_p2p = name in ("send", "recv", "recv_any")


class KnownForms(dict):  # type: ignore[type-arg]
    """Numbers and flags of forms by their keys, as many as a job may pay for."""

    def __init__(self) -> None:
        super().__init__()
        self._weight = 0

    def keep(self, key: tuple[Any, ...], found: tuple[int, int]) -> tuple[int, int]:
        """Keep what was found for a key, and return it."""
        if len(self) >= _MAX_KNOWN or self._weight > _MAX_WEIGHT:
            self.clear()
            self._weight = 0
        self._weight += sum(len(one) if isinstance(one, tuple) else 1 for one in key)
        self[key] = found
        return found


def choose_flags(op: str, *, is_on_host: bool) -> int:
    """Return the flags of all ops of a form.

    The handle of an op on a device is never asked: that may block under the interpreter's lock.
    Those that gloo gives for reduce_scatter never say that the op is over.
    """
    if not is_on_host:
        return NO_END
    return HOST | (NO_END if op.startswith("reduce_scatter") else 0)


def make_key(spec: OpSpec, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Make a key of the arguments, equal for arguments of one form."""
    key: list[Any] = []
    for value in args[: spec.group_at]:
        _add_shapes(key, value)
    for place in spec.plain_at:
        value = args[place]
        key.append(tuple(value) if isinstance(value, list) else value)
    return tuple(key)


def _add_shapes(key: list[Any], value: Any) -> None:
    if not isinstance(value, list):
        key += (value.shape, value.dtype, value.is_cpu, value.__class__)
    elif len(value) == 1:
        _add_shapes(key, value[0])
    else:
        key.append(len(value))
        for item in value if len(value) <= _MAX_TENSORS else (value[0], value[-1]):
            _add_shapes(key, item)


def find_tensor(value: Any) -> Any:
    """Return the first tensor in lists of tensors, None when there is none."""
    if not isinstance(value, (list, tuple)):
        return value
    for item in value:
        found = find_tensor(item)
        if found is not None:
            return found
    return None


def key_of_tensors(tensors: list[Any]) -> list[Any]:
    """Make a key of some tensors, equal for equal shapes and dtypes."""
    key: list[Any] = []
    _add_shapes(key, tensors)
    return key


def describe(spec: OpSpec, args: tuple[Any, ...]) -> dict[str, Any]:
    """Describe a form as the op log keeps it."""
    form = spec.read(args)
    return describe_tensors(spec.name, _flatten(form.inputs), _flatten(form.outputs), form.more)


def describe_tensors(
    op: str, inputs: list[Any], outputs: list[Any], more: dict[str, Any]
) -> dict[str, Any]:
    """Describe an op on some tensors as the op log keeps it."""
    tensors = inputs + outputs
    dtypes = [str(tensor.dtype)[len("torch.") :] for tensor in tensors]
    return {
        "op": op,
        "in": _shapes(inputs),
        "out": _shapes(outputs),
        "dtypes": dtypes[:1] if len(set(dtypes)) == 1 else dtypes[:_MAX_TENSORS],
        "in_bytes": _bytes(inputs),
        "out_bytes": _bytes(outputs),
        "device": tensors[0].device.type if tensors else "",
        **more,
    }


def without_sizes(value: dict[str, Any]) -> dict[str, Any]:
    """Return what is told of an op where its sizes are not: they are unknown, and not nothing."""
    kept = ("op", "device", "root", "peer", "tag")
    told: dict[str, Any] = {name: value[name] for name in kept if name in value}
    told["in_bytes"] = told["out_bytes"] = -1
    return told


def list_runs(numbers: list[int]) -> list[list[int]]:
    """Return numbers as runs of first, count and step, in their order."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs:
            first, count, step = runs[-1]
            if count == 1:
                step = number - first
            if number == first + count * step:
                runs[-1] = [first, count + 1, step]
                continue
        runs.append([number, 1, 1])
    return runs


def _shapes(tensors: list[Any]) -> list[list[int]]:
    return [[int(extent) for extent in tensor.shape] for tensor in tensors[: 4 * _MAX_TENSORS]]


def _bytes(tensors: list[Any]) -> int:
    return sum(int(tensor.numel()) * int(tensor.element_size()) for tensor in tensors)


def _flatten(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _flatten(item)]
    return [value]


def _in_place(args: tuple[Any, ...]) -> Form:
    return Form(args[0], args[0], {})


def _out_in(args: tuple[Any, ...]) -> Form:
    return Form(args[1], args[0], {})


def _rooted_at(place: int) -> Reader:
    """Return the reader of an op that works in place and has a root."""
    return lambda args: Form(args[0], args[0], {"root": int(args[place])})


def _rooted_out_in(args: tuple[Any, ...]) -> Form:
    return Form(args[1], args[0], {"root": int(args[3])})


def _with_splits(args: tuple[Any, ...]) -> Form:
    more = {"out_splits": _numbers(args[3]), "in_splits": _numbers(args[4])}
    return Form(args[1], args[0], more)


def _numbers(values: Any) -> list[int]:
    return [int(value) for value in values]


def _nothing(_args: tuple[Any, ...]) -> Form:
    return Form([], [], {})


def _send(args: tuple[Any, ...]) -> Form:
    return Form(args[0], [], {"peer": int(args[2]), "tag": int(args[3])})


def _recv(args: tuple[Any, ...]) -> Form:
    return Form([], args[0], {"peer": int(args[2]), "tag": int(args[3])})


def _recv_any(args: tuple[Any, ...]) -> Form:
    return Form([], args[0], {"peer": -1, "tag": int(args[2])})


# Places are those of torch's schemas; nothing was ever put between these.
SPECS = {
    "allreduce_": OpSpec("all_reduce", 1, (), _in_place),
    "allreduce_coalesced_": OpSpec("all_reduce_coalesced", 1, (), _in_place),
    "broadcast_": OpSpec("broadcast", 1, (2,), _rooted_at(2)),
    "reduce_": OpSpec("reduce", 1, (3,), _rooted_at(3)),
    "allgather_": OpSpec("all_gather", 2, (), _out_in),
    "_allgather_base_": OpSpec("all_gather_base", 2, (), _out_in),
    "allgather_coalesced_": OpSpec("all_gather_coalesced", 2, (), _out_in),
    "allgather_into_tensor_coalesced_": OpSpec("all_gather_base_coalesced", 2, (), _out_in),
    "gather_": OpSpec("gather", 2, (3,), _rooted_out_in),
    "scatter_": OpSpec("scatter", 2, (3,), _rooted_out_in),
    "reduce_scatter_": OpSpec("reduce_scatter", 2, (), _out_in),
    "_reduce_scatter_base_": OpSpec("reduce_scatter_base", 2, (), _out_in),
    "reduce_scatter_tensor_coalesced_": OpSpec("reduce_scatter_base_coalesced", 2, (), _out_in),
    "alltoall_": OpSpec("all_to_all", 2, (), _out_in),
    "alltoall_base_": OpSpec("all_to_all_base", 2, (3, 4), _with_splits),
    "barrier": OpSpec("barrier", 1, (), _nothing),
    "monitored_barrier_": OpSpec("monitored_barrier", 1, (), _nothing),
    "send": OpSpec("send", 1, (2, 3), _send),
    "recv_": OpSpec("recv", 1, (2, 3), _recv),
    "recv_any_source_": OpSpec("recv_any", 1, (2,), _recv_any),
}
