"""How many operations and bytes ops take, from the shapes of their arguments.

Operations are floating point operations; a multiplication and an addition are two. Sums over k
terms count as 2k. Bytes are those of the arguments and results, each read or written once, which
is the least that must be moved; what is kept for the backward pass does not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from whystuck.tracing.host.op_shapes import OpCall, Shape

_MAX_COST = 2**56  # times the bytes of an element it is still a number of 64 bits


class OpClass(StrEnum):
    """What an op computes."""

    GEMM = "gemm"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    NORM = "norm"


@dataclass(frozen=True)
class Cost:
    """What one call takes; ``operations`` is -1 where no formula is agreed on."""

    operations: int
    elements: int


def cost_gemm(a: Shape, b: Shape, *others: Shape) -> Cost:
    """Cost a product of matrices.

    2·batch·m·k·n operations, as in ``mm_flop`` and ``bmm_flop`` of ``torch.utils.flop_counter``.

    Args:
        a: [..., m, k].
        b: [..., k, n].
        others: What is added to the product.

    Raises:
        ValueError: The matrices do not fit.
    """
    *batch, m, k = a
    *other_batch, k_b, n = b
    if k != k_b or (other_batch and other_batch != batch):
        raise ValueError(f"matrices {a} and {b} do not fit")
    count = math.prod(batch)
    elements = math.prod(a) + math.prod(b) + count * m * n + sum(math.prod(one) for one in others)
    return Cost(2 * count * m * k * n, elements)


def _cost_mm(call: OpCall) -> Cost:
    return cost_gemm(call.shape(0, 2), call.shape(1, 2))


def _cost_bmm(call: OpCall) -> Cost:
    return cost_gemm(call.shape(0, 3), call.shape(1, 3))


def _cost_addmm(call: OpCall) -> Cost:
    return cost_gemm(call.shape(1, 2), call.shape(2, 2), call.shape(0))


def _cost_baddbmm(call: OpCall) -> Cost:
    return cost_gemm(call.shape(1, 3), call.shape(2, 3), call.shape(0))


def _cost_linear(call: OpCall) -> Cost:
    """Cost x·Wᵀ + b: x is [..., in], W is [out, in]."""
    x, weight = call.shape(0), call.shape(1, 2)
    flat = (math.prod(x[:-1]), x[-1])
    bias = call.shapes[2] if len(call.shapes) > 2 else ()  # noqa: PLR2004
    return cost_gemm(flat, (weight[1], weight[0]), *([bias] if bias else []))


def _convolve(x: Shape, weight: Shape, out: Shape, *, is_transposed: bool) -> int:
    """Count the operations of a convolution.

    2·batch·points·prod(weight): at each point of the output, or of the input of a transposed one,
    the whole filter is applied; ``conv_flop_count`` of ``torch.utils.flop_counter``. The weight
    has one group's channels, so that groups are right.
    """
    points = math.prod((x if is_transposed else out)[2:])
    return 2 * x[0] * points * math.prod(weight)


def _out_shape(call: OpCall, x: Shape, weight: Shape, *, is_transposed: bool) -> Shape:
    """Return the shape of the result; arguments 3 to 8 as in ``aten::convolution``.

    ``torch.nn.Conv2d`` and ``ConvTranspose2d`` give the formulas.
    """
    stride, padding, dilation = (call.whole_list(place) for place in (3, 4, 5))
    added, groups = call.whole_list(7), int(call.value(8))
    sizes = []
    for axis, size in enumerate(x[2:]):
        # One value stands for all axes.
        step, pad, gap, more = (
            values[min(axis, len(values) - 1)] for values in (stride, padding, dilation, added)
        )
        reach = gap * (weight[axis + 2] - 1)
        if is_transposed:
            sizes.append((size - 1) * step - 2 * pad + reach + more + 1)
        else:
            sizes.append((size + 2 * pad - reach - 1) // step + 1)
    channels = weight[1] * groups if is_transposed else weight[0]
    return (x[0], channels, *sizes)


def _check_filter(x: Shape, weight: Shape) -> None:
    if len(x) != len(weight) or len(x) < 3:  # noqa: PLR2004 - batch, channels and an axis
        raise ValueError(f"input {x} and weight {weight} do not fit")


def _cost_convolution(call: OpCall) -> Cost:
    x, weight = call.shape(0), call.shape(1)
    _check_filter(x, weight)
    is_transposed = bool(call.value(6))
    out = _out_shape(call, x, weight, is_transposed=is_transposed)
    elements = sum(math.prod(one) for one in (x, weight, out))
    return Cost(_convolve(x, weight, out, is_transposed=is_transposed), elements)


def _cost_convolution_backward(call: OpCall) -> Cost:
    """Cost the gradients that were asked for: each takes as many operations as the forward pass."""
    grad, x, weight = call.shape(0), call.shape(1), call.shape(2)
    _check_filter(x, weight)
    asked = call.value(10)
    if not isinstance(asked, list) or len(asked) < 2:  # noqa: PLR2004
        raise ValueError("it is not told which gradients were asked for")
    once = _convolve(x, weight, grad, is_transposed=bool(call.value(7)))
    written = math.prod(x) * bool(asked[0]) + math.prod(weight) * bool(asked[1])
    read = sum(math.prod(one) for one in (grad, x, weight))
    return Cost(once * (bool(asked[0]) + bool(asked[1])), read + written)


def cost_attention(query: Shape, key: Shape, value: Shape, *, is_backward: bool) -> Cost:
    """Cost scaled dot-product attention.

    Forward, query·keyᵀ and scores·value: 2·batch·s_q·s_k·(d_q + d_v) operations. Backward, five
    products, of which one computes the scores again: 2·batch·s_q·s_k·(3·d_q + 2·d_v). As in
    ``sdpa_flop_count`` and ``sdpa_backward_flop_count`` of ``torch.utils.flop_counter``; a causal
    mask is not taken into account. Batch holds the heads of the query.

    Args:
        query: [..., s_q, d_q].
        key: [..., s_k, d_q].
        value: [..., s_k, d_v].
        is_backward: Whether it is the backward pass.

    Raises:
        ValueError: The shapes do not fit.
    """
    *batch, s_q, d_q = query
    *_, s_k, d_k = key
    *_, s_v, d_v = value
    if d_q != d_k or s_k != s_v:
        raise ValueError(f"query {query}, key {key} and value {value} do not fit")
    pairs = 2 * math.prod(batch) * s_q * s_k
    out = math.prod(batch) * s_q * d_v
    given = sum(math.prod(one) for one in (query, key, value))
    if is_backward:
        return Cost(pairs * (3 * d_q + 2 * d_v), 2 * given + 2 * out)
    return Cost(pairs * (d_q + d_v), given + out)


def _cost_sdpa(call: OpCall) -> Cost:
    return cost_attention(call.shape(0), call.shape(1), call.shape(2), is_backward=False)


def _cost_sdpa_backward(call: OpCall) -> Cost:
    return cost_attention(call.shape(1), call.shape(2), call.shape(3), is_backward=True)


def _heads_first(shape: Shape) -> Shape:
    batch, length, heads, size = shape
    return batch, heads, length, size


def _cost_flash(call: OpCall) -> Cost:
    """Cost attention whose tensors are [batch, length, heads, size]."""
    query, key, value = (_heads_first(call.shape(place, 4)) for place in range(3))
    if any(call.shapes[3:5]):
        raise ValueError("sequences are of many lengths")
    return cost_attention(query, key, value, is_backward=False)


def _cost_flash_backward(call: OpCall) -> Cost:
    query, key, value = (_heads_first(call.shape(place, 4)) for place in range(1, 4))
    if any(call.shapes[6:8]):
        raise ValueError("sequences are of many lengths")
    return cost_attention(query, key, value, is_backward=True)


def _cost_norm(call: OpCall) -> Cost:
    """Cost a normalisation: the input is read and the result written."""
    x = math.prod(call.shape(0))
    return Cost(-1, 2 * x + sum(math.prod(one) for one in call.shapes[1:] if one))


def _cost_norm_backward(call: OpCall) -> Cost:
    """Cost its backward pass: gradient and input are read, a gradient is written."""
    return Cost(-1, 3 * math.prod(call.shape(0)))


Formula = Callable[[OpCall], Cost]

FORMULAS: dict[str, tuple[OpClass, Formula]] = {
    **dict.fromkeys(("aten::mm", "aten::_scaled_mm", "aten::_int_mm"), (OpClass.GEMM, _cost_mm)),
    **dict.fromkeys(("aten::addmm", "aten::_addmm_activation"), (OpClass.GEMM, _cost_addmm)),
    "aten::bmm": (OpClass.GEMM, _cost_bmm),
    "aten::baddbmm": (OpClass.GEMM, _cost_baddbmm),
    "aten::linear": (OpClass.GEMM, _cost_linear),
    **dict.fromkeys(
        ("aten::convolution", "aten::_convolution", "aten::convolution_overrideable"),
        (OpClass.CONVOLUTION, _cost_convolution),
    ),
    "aten::convolution_backward": (OpClass.CONVOLUTION, _cost_convolution_backward),
    **dict.fromkeys(
        (
            "aten::scaled_dot_product_attention",
            "aten::_scaled_dot_product_flash_attention",
            "aten::_scaled_dot_product_flash_attention_for_cpu",
            "aten::_scaled_dot_product_efficient_attention",
            "aten::_scaled_dot_product_cudnn_attention",
            "aten::_scaled_dot_product_fused_attention_overrideable",
        ),
        (OpClass.ATTENTION, _cost_sdpa),
    ),
    **dict.fromkeys(
        (
            "aten::_scaled_dot_product_flash_attention_backward",
            "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
            "aten::_scaled_dot_product_efficient_attention_backward",
            "aten::_scaled_dot_product_cudnn_attention_backward",
            "aten::_scaled_dot_product_fused_attention_overrideable_backward",
        ),
        (OpClass.ATTENTION, _cost_sdpa_backward),
    ),
    **dict.fromkeys(
        (
            "aten::_flash_attention_forward",
            "aten::_efficient_attention_forward",
            "flash_attn::_flash_attn_forward",
        ),
        (OpClass.ATTENTION, _cost_flash),
    ),
    **dict.fromkeys(
        ("aten::_flash_attention_backward", "flash_attn::_flash_attn_backward"),
        (OpClass.ATTENTION, _cost_flash_backward),
    ),
    **dict.fromkeys(
        (
            "aten::native_layer_norm",
            "aten::native_batch_norm",
            "aten::cudnn_batch_norm",
            "aten::miopen_batch_norm",
            "aten::native_group_norm",
            "aten::_fused_rms_norm",
        ),
        (OpClass.NORM, _cost_norm),
    ),
    **dict.fromkeys(
        (
            "aten::native_layer_norm_backward",
            "aten::native_batch_norm_backward",
            "aten::cudnn_batch_norm_backward",
            "aten::miopen_batch_norm_backward",
            "aten::native_group_norm_backward",
            "aten::_fused_rms_norm_backward",
        ),
        (OpClass.NORM, _cost_norm_backward),
    ),
}


def cost_op(name: str, call: OpCall) -> Cost:
    """Cost one call of an op that has a formula.

    Args:
        name: The op, one of `FORMULAS`.
        call: Its arguments.

    Returns:
        Its operations and the elements of its tensors; both -1 where the arguments do not tell.
    """
    try:
        cost = FORMULAS[name][1](call)
    except (ValueError, TypeError, IndexError, ArithmeticError):
        return Cost(-1, -1)
    if cost.elements < 0 or max(cost.operations, cost.elements) > _MAX_COST:
        return Cost(-1, -1)
    return cost
