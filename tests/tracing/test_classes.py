"""Which kernels communicate."""

from __future__ import annotations

import pytest
from tests.tracing.data import make_event, make_trace

from whystuck.evidence.traces.options import TraceOptions
from whystuck.tracing.classes import KernelClass, classify_names
from whystuck.tracing.view import TraceView


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(...)",
        "void dpsk::ep::internode::dispatch<...>",
        "nvshmemi_transfer_rma_p2p",
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(...)",
        "void c10d::symmetric_memory::two_shot_all_reduce_kernel<float>",
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(...)",
        "void tensorrt_llm::kernels::twoShotAllReduceKernel<half, 8>",
        "rcclGenericKernel(ncclDevComm_t)",
        "hcom_allReduce__123_0",
    ],
)
def test_names_of_kernels_that_communicate(name: str) -> None:
    assert classify_names([name]).tolist() == [KernelClass.COMM]


@pytest.mark.parametrize(
    "name",
    [
        "ampere_sgemm_128x64_nn",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>",
        "void softmax_block_allreduce_warp<float>",
        "hipblaslt_gemm",
        "triton_red_fused_native_layer_norm_0",
    ],
)
def test_names_of_kernels_that_compute(name: str) -> None:
    assert classify_names([name]).tolist() == [KernelClass.COMPUTE]


def test_copies_that_are_listed_as_kernels_are_memory_work() -> None:
    names = ["Memcpy DtoH (Device -> Pinned)", "hipMemset", "CopyHostToDevice"]

    assert set(classify_names(names).tolist()) == {KernelClass.MEMORY}


def test_users_can_add_names() -> None:
    trace = make_trace([make_event("kernel", "my_ring_exchange", 0, 1, device=0, stream=7)])

    assert TraceView(trace).device_class.tolist() == [KernelClass.COMPUTE]
    chosen = TraceOptions(comm_patterns=("ring_exchange$",))
    assert TraceView(trace, chosen).device_class.tolist() == [KernelClass.COMM]


def make_linked(op: str, external: int = 8, op_us: float = 10, collective: str = "") -> list[int]:
    """The classes of a kernel and a copy that were launched in an op."""
    told = {"Collective name": collective} if collective else {}
    events = [
        make_event("cpu_op", op, 0, op_us, **{"External id": 8, **told}),
        make_event("cuda_runtime", "cudaLaunchKernel", 2, 1, correlation=1),
        make_event("cuda_runtime", "cudaMemcpyAsync", 4, 1, correlation=2),
        make_event("kernel", "odd", 20, 1, correlation=1, **{"External id": external}),
        make_event("gpu_memcpy", "Memcpy DtoD", 22, 1, correlation=2, **{"External id": external}),
    ]
    classes: list[int] = TraceView(make_trace(events)).device_class.tolist()
    return classes


def test_the_kernel_of_an_op_that_is_a_collective_communicates_whatever_its_name() -> None:
    both = [KernelClass.COMM, KernelClass.MEMORY]

    assert make_linked("record_param_comms") == both
    assert make_linked("my::exchange", collective="allreduce") == both
    assert make_linked("aten::add") == [KernelClass.COMPUTE, KernelClass.MEMORY]


def test_an_op_with_the_number_of_a_call_by_chance_is_not_its_op() -> None:
    # Old traces write the correlation as the external id of device work.
    assert make_linked("record_param_comms", op_us=1)[0] == KernelClass.COMPUTE
    assert make_linked("record_param_comms", external=9)[0] == KernelClass.COMPUTE


def test_a_kernel_that_says_which_collective_it_is_communicates() -> None:
    event = make_event("kernel", "odd", 0, 1, **{"Collective name": "allreduce"})

    assert TraceView(make_trace([event])).device_class.tolist() == [KernelClass.COMM]
