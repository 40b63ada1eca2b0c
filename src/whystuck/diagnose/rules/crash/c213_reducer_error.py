"""C213 reducer-error."""

from __future__ import annotations

from typing import ClassVar

from whystuck.diagnose import codes
from whystuck.diagnose.logs.log_rule import LogRule


class ReducerError(LogRule):
    """DistributedDataParallel could not reduce the gradients: a parameter got none, or two.

    ## What it means

    A parameter took no part in the loss, so its gradient never came and the reduction of that step
    was not over; or it was used twice in one backward pass; or the ranks built different models.

    ## How it is found

    The reducer's own message, with the indices of the parameters, and their names where
    `TORCH_DISTRIBUTED_DEBUG` is INFO or DETAIL. Where all ranks say so, the model or the loss is
    the reason; where some do, those ranks went another way through the model. Of models that
    differ, the ranks are named whose number of parameters, or sizes, most others do not have.
    One message of sizes compares two ranks, that one and rank 0: which of them is odd is not known.

    In `details`: `kind` is unused, ready-twice or different-models; `ranks` say so;
    `same_everywhere` tells whether all of them name the same parameters; `parameters` and
    `indices` are by rank.

    ## False alarms

    The line named is where the reducer noticed: the forward pass of the next step for parameters
    without a gradient. Where the ranks print a message and nothing tells how many there are, a
    rank that went another way may look like all of them.

    ## What to do

    Let every output of `forward` take part in the loss, or pass `find_unused_parameters=True`. A
    branch that depends on data must be the same on all ranks, or add `0 * sum(...)` of what it
    leaves out.
    """

    code = codes.REDUCER_ERROR
    name = "reducer-error"
    end_class = "computation-error"
    remedies: ClassVar[tuple[str, ...]] = (
        "one process is enough to see it: run one step, then list parameters whose grad is None",
    )
