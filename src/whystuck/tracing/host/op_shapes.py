"""The shapes, types and values with which an op was called, as the trace tells them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

Shape = tuple[int, ...]

# Bytes of an element by what the profiler calls its type.
_BYTES = {
    "float": 4,
    "double": 8,
    "c10::half": 2,
    "c10::bfloat16": 2,
    "half": 2,
    "bfloat16": 2,
    "c10::float8_e4m3fn": 1,
    "c10::float8_e5m2": 1,
    "c10::float8_e4m3fnuz": 1,
    "c10::float8_e5m2fnuz": 1,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
    "int": 4,
    "long": 8,
    "long int": 8,
    "short": 2,
    "short int": 2,
    "signed char": 1,
    "unsigned char": 1,
    "bool": 1,
    "c10::qint8": 1,
    "c10::quint8": 1,
}
_MAX_SIZE = 2**40  # of one dimension, and of a whole tensor


@dataclass(frozen=True)
class OpCall:
    """One way in which an op was called.

    Attributes:
        shapes: The shape of each argument; empty for those that are no tensor.
        types: The type of each argument.
        values: The value of each argument that is no tensor; empty where it is not told.
    """

    shapes: tuple[Shape, ...]
    types: tuple[str, ...]
    values: tuple[str, ...]

    def shape(self, place: int, dims: int | None = None) -> Shape:
        """Return the shape of a tensor.

        Args:
            place: Which argument.
            dims: How many dimensions it must have; any when left out.

        Returns:
            Its sizes.

        Raises:
            ValueError: It is not told, or has other dimensions.
        """
        shape = self.shapes[place] if place < len(self.shapes) else ()
        if not shape or (dims is not None and len(shape) != dims):
            raise ValueError(f"argument {place} has the shape {shape}")
        return shape

    def value(self, place: int) -> Any:  # noqa: ANN401 - as written: a number, list or flag
        """Return the value of an argument.

        Raises:
            ValueError: It is not told.
        """
        text = self.values[place] if place < len(self.values) else ""
        try:
            return msgspec.json.decode(text.replace("True", "true").replace("False", "false"))
        except msgspec.DecodeError as error:
            raise ValueError(f"argument {place} has the value {text!r}") from error

    def whole_list(self, place: int) -> tuple[int, ...]:
        """Return an argument that is a list of whole numbers.

        Raises:
            ValueError: It is none.
        """
        found = self.value(place)
        if not isinstance(found, list) or not all(isinstance(one, int) for one in found):
            raise ValueError(f"argument {place} is no list of whole numbers")
        return tuple(int(one) for one in found)

    @property
    def type(self) -> str:
        """The type of the first tensor; empty when unknown."""
        for shape, name in zip(self.shapes, self.types, strict=False):
            if shape and name.lower() in _BYTES:
                return name
        return ""

    @property
    def element_bytes(self) -> int:
        """The bytes of an element of the first tensor.

        Raises:
            ValueError: The type is not known.
        """
        if not self.type:
            raise ValueError("no argument has a type of known size")
        return _BYTES[self.type.lower()]


def parse_call(shapes: str, types: str, values: str) -> OpCall:
    """Parse the arguments of an op.

    Args:
        shapes: ``Input Dims``, as JSON.
        types: ``Input type``, as JSON.
        values: ``Concrete Inputs``, as JSON; may be empty.

    Returns:
        The call. What is no shape, such as a list of tensors, is an empty one.
    """
    read = [_parse_shape(one) for one in _parse_list(shapes)]
    texts = [
        tuple(one if isinstance(one, str) else "" for one in _parse_list(part))
        for part in (types, values)
    ]
    return OpCall(tuple(read), *texts)


def _parse_list(text: str) -> list[Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _parse_shape(found: Any) -> Shape:  # noqa: ANN401 - of a JSON text
    if not isinstance(found, list):
        return ()
    size = 1
    for one in found:
        if type(one) is not int or not 0 <= one <= _MAX_SIZE:
            return ()
        size *= max(one, 1)
    return tuple(found) if size <= _MAX_SIZE else ()
