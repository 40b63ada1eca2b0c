"""Output of ranks and machines that are well, to make a case as long as a real log.

Many of these lines hold words such as "error" and "failed": a reader that only looks for words
must not pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from random import Random


@dataclass(frozen=True)
class Moment:
    """Who writes a line, when, and as the how manyth."""

    rank: int
    local: int
    node: str
    world: int
    time: datetime
    step: int
    rng: Random

    @property
    def loss(self) -> float:
        """A loss that goes down and shakes a little."""
        return 2.0 + 6.0 * math.exp(-self.step / 200) + self.rng.uniform(-0.02, 0.02)

    @property
    def millis(self) -> str:
        """The time as Python's logging writes it."""
        return f"{self.time:%Y-%m-%d %H:%M:%S},{self.time.microsecond // 1000:03}"


Output = Callable[[Moment], str]


def _steps(at: Moment) -> str:
    return f"step {at.step} loss {at.loss:.4f} lr 3.0e-04 {at.rng.uniform(1.1, 1.3):.2f} s/step"


def _logging(at: Moment) -> str:
    return f"{at.millis} INFO train: step={at.step} loss={at.loss:.4f} grad_norm=0.51"


def _megatron(at: Moment) -> str:
    return (
        f" [{at.time:%Y-%m-%d %H:%M:%S}] iteration {at.step:8}/  500000 | consumed samples: "
        f"{at.step * 512:12} | elapsed time per iteration (ms): {at.rng.uniform(1200, 1260):.1f} | "
        f"learning rate: 3.000000E-04 | global batch size:   512 | lm loss: {at.loss:.6E} | "
        "loss scale: 1.0 | grad norm: 0.512 | number of skipped iterations:   0 | "
        "number of nan iterations:   0 |"
    )


def _huggingface(at: Moment) -> str:
    return (
        f"{{'loss': {at.loss:.4f}, 'grad_norm': {at.rng.uniform(0.3, 0.7):.12f}, "
        f"'learning_rate': 2.9e-05, 'epoch': {at.step / 1000:.2f}}}"
    )


def _deepspeed(at: Moment) -> str:
    return (
        f"[{at.millis}] [INFO] [logging.py:128:log_dist] [Rank {at.rank}] step={at.step}, "
        "skipped=0, lr=[3e-05], mom=[(0.9, 0.95)]"
    )


def _lightning(at: Moment) -> str:
    share = at.step % 1000 // 10
    return (
        f"\rEpoch 0: {share:3}%|{'█' * (share // 10):10}| {at.step}/1000 [01:20<09:50,  1.49it/s, "
        f"v_num=3, train_loss={at.loss:.3f}]"
    )


def _titan(at: Moment) -> str:
    return (
        f"[titan] {at.millis} - root - INFO - step: {at.step:5}  loss: {at.loss:7.4f}  "
        f"grad_norm:  0.5120  memory: 42.11GiB(53.12%)  tps: {at.rng.randrange(7000, 7200):,}  "
        "tflops: 381.02  mfu: 38.53%"
    )


def _slashed(at: Moment) -> str:
    return f"{at.time:%m/%d/%Y %H:%M:%S} - INFO - __main__ - step {at.step} loss {at.loss:.4f}"


_JOB_NOISE = (
    "validation: mean absolute error 0.0213, 0 failed samples",
    "UserWarning: The given buffer is not writable. Consider setting a timeout of 0.",
    "s3: read of shard failed with code 503, attempt 1 of 5, will retry",
    "s3: retry 1 of 5 succeeded",
    "[W Utils.hpp] NCCL_ASYNC_ERROR_HANDLING is deprecated, use TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "saved checkpoint in 12.4 s, 0 errors",
    "tokenizer: killed 0 duplicate rows, 3 samples over the maximum were aborted",
    "signal handler for SIGTERM installed",
)


def _nccl(at: Moment) -> str:
    peer = f"{(at.rank + 1) % at.world}[{(at.local + 1) % 8}]"
    text = at.rng.choice(
        (
            f"Channel {at.step % 24:02}/0 : {at.rank}[{at.local}] -> {peer} via P2P/CUMEM",
            f"comm 0x5581d0c2a3b0 rank {at.rank} nRanks {at.world} nNodes 1 localRanks 8 - Trees",
            "Connected all rings, use ring PXN 0 GDR 1",
            f"NET/IB : Using [{at.local}]mlx5_{at.local}:1/IB [RO]; OOB eth0:10.0.0.1<0>",
            "threadThresholds 8/8/64 | 64/8/64 | 512 | 512",
        )
    )
    return f"{at.node}:{4000 + at.rank}:{9000 + at.rank} [{at.local}] NCCL INFO {text}"


def _with_noise(output: Output) -> Output:
    def write(at: Moment) -> str:
        draw = at.rng.random()
        if draw < 0.1:
            return at.rng.choice(_JOB_NOISE)
        return _nccl(at) if draw < 0.25 else output(at)

    return write


_KERNEL = (
    "audit: backlog limit exceeded, 0 records lost",
    "perf: interrupt took too long (3127 > 3126), lowering kernel.perf_event_max_sample_rate",
    "IPv6: ADDRCONF(NETDEV_CHANGE): veth1a2b: link becomes ready",
    "EXT4-fs (nvme0n1p1): mounted filesystem with ordered data mode. Opts: errors=remount-ro",
    "mlx5_core 0000:5c:00.0: firmware version: 28.39.2048",
    "nvidia-nvlink: Nvlink Core is being initialized, major device number 510",
    "mce: CPU0: Core temperature/speed normal",
    "systemd-journald[712]: Data hash table of system.journal has a fill level at 75.0",
)


def _kernel_text(at: Moment) -> str:
    return at.rng.choice(_KERNEL)


def _dmesg(at: Moment) -> str:
    return f"[{600 + at.step * 3:5}.{at.rng.randrange(10**6):06}] {_kernel_text(at)}"


def _dmesg_t(at: Moment) -> str:
    return f"[{at.time:%a %b} {at.time.day:2} {at.time:%H:%M:%S %Y}] {_kernel_text(at)}"


def _syslog(at: Moment) -> str:
    return (
        f"{at.time:%b} {at.time.day:2} {at.time:%H:%M:%S} {at.node} kernel: "
        f"[{600 + at.step * 3}.{at.rng.randrange(10**6):06}] {_kernel_text(at)}"
    )


def _journal(at: Moment) -> str:
    return f"{at.time:%Y-%m-%dT%H:%M:%S.%f}+00:00 {at.node} kernel: {_kernel_text(at)}"


def _events(at: Moment) -> str:
    kind, text = at.rng.choice(
        (
            ("Pulled", "Container image already present on machine"),
            ("Created", "Created container: pytorch"),
            ("Started", "Started container pytorch"),
            ("Scheduled", f"Successfully assigned ml/train-worker-{at.rank} to {at.node}"),
            ("FailedScheduling", "0/12 nodes are available: 12 Insufficient nvidia.com/gpu."),
        )
    )
    level = "Warning" if kind.startswith("Failed") else "Normal"
    stamp = f"{at.time:%Y-%m-%dT%H:%M:%SZ}"
    return f"{stamp}   {level:7}   {kind:17}   pod/train-worker-{at.rank}   {text}"


def _fabric(at: Moment) -> str:
    stamp = f"{at.time:%b %d %Y %H:%M:%S}"
    return f"[{stamp}] [INFO] [tid 2101] Received an inband message"


OUTPUTS: dict[str, Output] = {
    "steps": _with_noise(_steps),
    "logging": _with_noise(_logging),
    "megatron": _with_noise(_megatron),
    "huggingface": _with_noise(_huggingface),
    "deepspeed": _with_noise(_deepspeed),
    "lightning": _lightning,
    "titan": _with_noise(_titan),
    "slashed": _with_noise(_slashed),
    "dmesg": _dmesg,
    "dmesg-t": _dmesg_t,
    "syslog": _syslog,
    "journal": _journal,
    "events": _events,
    "fabric": _fabric,
}
