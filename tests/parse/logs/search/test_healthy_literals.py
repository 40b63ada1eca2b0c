"""No signature may be searched by a text that jobs which are well print again and again.

Of each signature, the search looks for its literals first; each line that holds one is taken apart.
A common literal makes all healthy logs slow, whatever the rest of the pattern asks for.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from tests.logs.healthy import OUTPUTS, Moment

from whystuck.parse.logs.compiled import MARKS
from whystuck.parse.logs.search.patterns import find_literals
from whystuck.parse.logs.signatures import Signature, load_signatures

DDP = """\
[rank0]: epoch 3 step 1210/5000 loss 2.0113 lr 2.9e-04 time 0.412 s data 0.003 s
Epoch: [3][ 210/5005]  batch 256  Acc@1 71.2 (70.9)  mem 41.2 GB  img/s 2811.4
{'step': 1210, 'train/loss': 2.0113, 'tokens_per_s': 18211.2, 'gpu_mem': 71.2}
INFO:train:rank 3: step=1210 loss=2.011 grad_norm=0.51 tok/s=18120 mfu=0.41
eval at step 2000: loss 2.113, accuracy 0.612, perplexity 8.27
"""
MEGATRON = """\
 [2026-11-21 12:01:02] iteration     1210/  500000 | consumed samples:       619520 | elapsed time \
per iteration (ms): 1212.4 | learning rate: 1.200E-04 | global batch size:   512 | lm loss: \
2.011300E+00 | loss scale: 1.0 | grad norm: 0.512 | number of skipped iterations:   0 | number of \
nan iterations:   0 |
[Rank 8] (after 1210 iterations) memory (MB) | allocated: 21102.5 | max allocated: 40112.1 | \
reserved: 44010.0 | max reserved: 44010.0
  microbatch_group_size_per_vp_stage .............. 1
  accumulate_allreduce_grads_in_fp32 .............. True
  use_checkpoint_args ............................. False
"""
DEEPSPEED = """\
[2026-11-08 19:20:31,004] [INFO] [logging.py:96:log_dist] [Rank 0] step=3180, skipped=0, \
lr=[0.0006], mom=[(0.9, 0.999)]
[2026-11-08 19:20:31,005] [INFO] [timer.py:264:stop] epoch=0/micro_step=12720/global_step=3180, \
RunningAvgSamplesPerSec=311.7, CurrSamplesPerSec=312.0, MemAllocated=18.31GB, MaxMemAllocated=42.7GB
[2026-11-08 19:20:31,005] [INFO] [stage3.py:2012:step] gradient accumulation boundary reached
"""
LIGHTNING = """\
Epoch 3:  41%|####      | 1877/4560 [1:02:11<1:28:53,  0.50it/s, v_num=q7, train_loss=0.918]
Validation DataLoader 0: 100%|##########| 200/200 [00:12<00:00, 16.20it/s]
Sanity Checking DataLoader 0:  50%|#####     | 1/2 [00:01<00:01,  0.90it/s]
"""
HF = """\
{'loss': 0.7712, 'grad_norm': 1.93, 'learning_rate': 1.1e-05, 'epoch': 0.88}
{'eval_loss': 0.812, 'eval_runtime': 12.31, 'eval_samples_per_second': 81.2, 'epoch': 0.9}
 12%|#2        | 1210/10000 [20:11<2:26:33,  1.00s/it]
11/21/2026 12:01:02 - INFO - __main__ - Step 1210: loss = 0.7712
"""
NCCL = """\
gpu-1:4100:9100 [0] NCCL INFO Channel 00/16 :    0   7   6   5   4   3   2   1
gpu-1:4100:9100 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
gpu-1:4100:9100 [0] NCCL INFO Channel 03/0 : 3[3] -> 4[4] via P2P/CUMEM/read
gpu-1:4100:9100 [0] NCCL INFO Channel 03/0 : 3[3] -> 11[3] [send] via NET/IB/0/GDRDMA
gpu-1:4100:9100 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1
gpu-1:4100:9100 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
gpu-1:4100:9100 [0] NCCL INFO threadThresholds 8/8/64 | 64/8/64 | 512 | 512
gpu-1:4100:9100 [0] NCCL INFO Setting affinity for GPU 0 to ffffffff
gpu-1:4100:9100 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB e0:10.0.0.1<0>
"""
WARNINGS = """\
/sp/torch/utils/checkpoint.py:87: UserWarning: torch.utils.checkpoint: the use_reentrant \
parameter should be passed explicitly. In version 2.5 we will raise an exception if use_reentrant \
is not passed. use_reentrant=False is recommended
/sp/torch/optim/lr_scheduler.py:143: UserWarning: Detected call of `lr_scheduler.step()` \
before `optimizer.step()`. In PyTorch 1.1.0 and later, you should call them in the opposite order
/job/train.py:88: FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated. Please use \
`torch.amp.autocast('cuda', args...)` instead.
  with torch.cuda.amp.autocast():
/sp/torch/autograd/graph.py:823: UserWarning: Grad strides do not match bucket view \
strides. This may indicate grad was not created according to the gradient layout contract
Setting `pad_token_id` to `eos_token_id`:2 for open-end generation.
The attention mask and the pad token id were not set. As a consequence, you may observe unexpected \
behavior. Please pass your input's `attention_mask` to obtain reliable results.
"""
WRITTEN = f"{WARNINGS}{DDP}{MEGATRON}{DEEPSPEED}{LIGHTNING}{HF}{NCCL}"
# Of what healthy jobs print again and again, this alone is looked at; each with its reason.
ALLOWED: dict[str, str] = {
    "straggler.ends": "programs put the most and the least of their ranks in words of their own",
    "horovod.missing": "names of tensors are all that Horovod prints; arguments are printed once",
    "progress.still": "a validation that goes on while others wait is told by its bar of progress",
}
# What comes once or twice in a job, or says itself that something is not as it should be.
_LIKES = 12
_STEPPED = ("steps", "logging", "megatron", "huggingface", "deepspeed", "lightning", "titan")


def _write_steps() -> str:
    """Write what each tool prints of a step, without the noise that is drawn between."""
    lines = []
    begin = datetime(2026, 11, 21, 12, tzinfo=UTC)
    for name in _STEPPED:
        for step in range(_LIKES):
            at = Moment(3, 3, "gpu-1", 16, begin + timedelta(seconds=step), step, Random(step))
            lines.append(OUTPUTS[name](at))
    return "\n".join(line for line in lines if "NCCL" not in line and "step" in line.lower())


HEALTHY = (WRITTEN + _write_steps()).encode()


@pytest.mark.parametrize("signature", load_signatures(), ids=lambda one: str(one.id))
def test_no_literal_of_a_signature_is_in_healthy_output(signature: Signature) -> None:
    literals = find_literals(signature.regex)
    text = HEALTHY.lower() if literals.caseless else HEALTHY
    found = [one for one in literals.texts if (one.lower() if literals.caseless else one) in text]

    assert not found or signature.id in ALLOWED, (
        f"{signature.id} is searched by {found}, which healthy jobs print: give its pattern "
        "a rarer text of which each match holds one"
    )


@pytest.mark.parametrize("mark", MARKS, ids=lambda one: one.decode())
def test_no_mark_is_in_healthy_output(mark: bytes) -> None:
    assert mark not in HEALTHY or mark.decode() in ALLOWED


def test_what_is_allowed_is_still_needed() -> None:
    known = {one.id for one in load_signatures()} | {mark.decode() for mark in MARKS}

    assert set(ALLOWED) <= known
