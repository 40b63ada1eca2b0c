"""Scripts with several process groups and one fault each, and who is to blame for it.

`is_odd(step)` is true on the ranks that do wrong, at one step; `BAD` holds these ranks, `AT` that
step.
"""

from __future__ import annotations

from dataclasses import dataclass

GROUPS = """
def grid():
    tp = dist.new_group([rank // 2 * 2, rank // 2 * 2 + 1], "tp")
    dp = dist.new_group(range(rank % 2, world, 2), "dp")
    return tp, dp

tp, dp = grid()
everybody = dist.new_group(range(world), "ev")
"""


@dataclass(frozen=True)
class GroupJob:
    """A script, and the code that names its fault; others that also do."""

    text: str
    code: str
    also: tuple[str, ...] = ()
    worlds: tuple[int, ...] = (2, 4, 8)
    all_ranks: bool = False

    @property
    def script(self) -> str:
        return GROUPS + self.text


JOBS = {
    "skip: empty expert batch": GroupJob(
        """
def experts(count):
    dist.all_reduce(1, group=tp)
    if count:
        dist.all_to_all(4, group=tp)
    dist.all_to_all(8, group=tp)

def main():
    for step in range(30):
        experts(0 if is_odd(step) else 4)
        dist.all_reduce(100, group=dp)
        dist.all_reduce(1)

main()
""",
        "H127",
    ),
    "skip: auxiliary loss of a tensor group": GroupJob(
        """
def auxiliary(share):
    if not share:
        return
    dist.all_reduce(1, group=tp)

def layer():
    dist.all_reduce(64, group=tp)
    dist.all_reduce(64, group=tp)

def main():
    for step in range(30):
        layer()
        auxiliary(not is_odd(step))
        for size in (100, 200):
            dist.all_reduce(size, group=dp)

main()
""",
        "H127",
        worlds=(4, 8),
    ),
    "skip: one part of an evaluation": GroupJob(
        """
def evaluate(step):
    for part in range(3):
        if is_odd(step) and part == 1:
            continue
        dist.all_reduce(2, group=everybody)

def main():
    for step in range(30):
        dist.all_reduce(100)
        if step % 2 == AT % 2:
            evaluate(step)
        dist.all_reduce(1)

main()
""",
        "H127",
        ("H103",),
    ),
    "extra: save on one rank": GroupJob(
        """
def save_checkpoint(step):
    dist.all_gather(1, group=dp)
    dist.barrier(group=tp)
    dist.barrier()

def main():
    for step in range(30):
        dist.all_reduce(100, group=dp)
        dist.all_reduce(1, group=tp)
        if rank in BAD and step == AT:
            save_checkpoint(step)

main()
""",
        "H102",
        worlds=(4, 8),
    ),
    "extra: save below a return": GroupJob(
        """
def save_checkpoint(step):
    if rank not in BAD:
        return
    dist.barrier()

def main():
    for step in range(30):
        dist.all_reduce(100, group=dp)
        dist.all_reduce(1)
        if step == AT:
            save_checkpoint(step)

main()
""",
        "H102",
    ),
    "extra: a value that is odd": GroupJob(
        """
def check(loss):
    if loss > 3.0:
        dist.all_gather(1, group=everybody)

def main():
    for step in range(30):
        dist.all_reduce(100)
        check(9.0 if is_odd(step) else 1.0)
        dist.all_reduce(1)

main()
""",
        "H102",
    ),
    "extra: on a group of some ranks": GroupJob(
        """
def repair(norm):
    if norm > 5.0:
        dist.all_reduce(7, group=tp)

def main():
    for step in range(30):
        dist.all_reduce(64, group=tp)
        dist.all_reduce(100, group=dp)
        repair(9.0 if is_odd(step) else 1.0)

main()
""",
        "H102",
        worlds=(4, 8),
    ),
    "ahead: it accumulates more": GroupJob(
        """
def train(step, accumulate):
    if (step + 1) % accumulate == 0:
        dist.all_reduce(100)
        dist.all_reduce(200)
        dist.optimizer_step()

def evaluate():
    dist.all_reduce(1)

def main():
    for step in range(60):
        train(step, 4 if rank in BAD else 2)
        if (step + 1) % 16 == 0:
            evaluate()

main()
""",
        "H127",
        ("H103",),
    ),
    "ahead: a backward pass that failed": GroupJob(
        """
def train(step):
    try:
        if is_odd(step):
            raise MemoryError
        dist.all_reduce(100)
        dist.all_reduce(200)
    except MemoryError:
        return
    dist.optimizer_step()

def evaluate():
    dist.all_reduce(1)

def main():
    for step in range(40):
        train(step)
        if (step + 1) % (AT + 1) == 0:
            evaluate()

main()
""",
        "H127",
        ("H103",),
    ),
    "ahead: it has fewer batches": GroupJob(
        """
def main():
    for step in range(AT if rank in BAD else 40):
        dist.all_reduce(64, group=tp)
        dist.all_reduce(100, group=dp)
    dist.all_reduce(1)
    dist.barrier()

main()
""",
        "H103",
        ("H127",),
        worlds=(4, 8),
    ),
    "order: two branches": GroupJob(
        """
def report(step):
    if is_odd(step):
        dist.all_reduce(3, group=everybody)
        dist.all_reduce(1)
    else:
        dist.all_reduce(1)
        dist.all_reduce(3, group=everybody)

def main():
    for step in range(30):
        dist.all_reduce(100)
        report(step)

main()
""",
        "H104",
        all_ranks=True,
    ),
    "order: a list": GroupJob(
        """
def share(groups):
    for group in groups:
        dist.all_reduce(2, group=group)

def main():
    for step in range(30):
        dist.all_reduce(100)
        share([everybody, None] if rank in BAD and step >= AT else [None, everybody])

main()
""",
        "H104",
        all_ranks=True,
    ),
    "skip: sharded and replicated": GroupJob(
        """
def forward():
    for layer in range(3):
        dist.all_gather(100 + layer, group=tp)

def backward():
    for layer in range(3):
        dist.reduce_scatter(100 + layer, group=tp)
        dist.all_reduce(50 + layer, group=dp)

def clip(norm):
    if norm is None:
        return
    dist.all_reduce(1)

def main():
    for step in range(30):
        forward()
        backward()
        clip(None if is_odd(step) else 1.0)

main()
""",
        "H127",
        worlds=(4, 8),
    ),
    "skip: in the last step before an evaluation": GroupJob(
        """
def metrics(values):
    if not values:
        return
    dist.all_reduce(3, group=dp)

def evaluate():
    dist.all_reduce(1, group=everybody)
    dist.barrier(group=everybody)

def main():
    for step in range(30):
        dist.all_reduce(64, group=tp)
        dist.all_reduce(100, group=dp)
        metrics(not is_odd(step))
        if (step + 1) % (AT + 1) == 0:
            evaluate()

main()
""",
        "H127",
        worlds=(4, 8),
    ),
    "skip: a metric of a pipeline": GroupJob(
        """
def forward():
    if rank >= 2:
        dist.recv(rank - 2)
    if rank + 2 < world:
        dist.send(rank + 2)

def metrics(values):
    if not values:
        return
    dist.all_reduce(3, group=tp)

def main():
    for step in range(30):
        forward()
        dist.all_reduce(100, group=tp)
        metrics([] if is_odd(step) else [1])
        dist.all_reduce(1)

main()
""",
        "H127",
        worlds=(4, 8),
    ),
    "extra: save in a pipeline": GroupJob(
        """
is_saver = rank in BAD

def forward():
    if rank >= 2:
        dist.recv(rank - 2)
    dist.all_reduce(64, group=tp)
    if rank + 2 < world:
        dist.send(rank + 2)

def main():
    for step in range(30):
        forward()
        dist.all_reduce(100, group=tp)
        if step == AT and is_saver:
            dist.barrier()
        dist.all_reduce(1)

main()
""",
        "H102",
        worlds=(4, 8),
    ),
    "ahead: an epoch with fewer batches": GroupJob(
        """
def validate():
    for part in range(2):
        dist.all_reduce(1, group=everybody)

def main():
    for epoch in range(3):
        for step in range(AT + 3 if rank in BAD and epoch == 1 else AT + 6):
            dist.all_reduce(64, group=tp)
            dist.all_reduce(100, group=dp)
        validate()

main()
""",
        "H103",
        ("H127",),
        worlds=(4, 8),
    ),
    "behind: it reduces more often": GroupJob(
        """
def train(step, accumulate):
    if (step + 1) % accumulate == 0:
        dist.all_reduce(100)
        dist.all_reduce(200)

def main():
    for step in range(60):
        train(step, 1 if rank in BAD else 2)
        if (step + 1) % 8 == 0:
            dist.all_reduce(1)

main()
""",
        "H102",
        ("H103", "H127"),
        worlds=(4, 8),
    ),
}
