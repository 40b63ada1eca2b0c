"""Finds what keeps a suspect: the strongest explanation wins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from whystuck.diagnose.context.facts import Facts
from whystuck.diagnose.context.suspects.by_hand import (
    explain_asking,
    explain_key_wait,
    explain_other_thread,
    explain_polling,
)
from whystuck.diagnose.context.suspects.compile import explain_compiling
from whystuck.diagnose.context.suspects.data_loading import (
    explain_input,
    explain_stopped_worker,
    explain_worker,
)
from whystuck.diagnose.context.suspects.native_gil import explain_native_gil
from whystuck.diagnose.context.suspects.outliving import explain_outliving
from whystuck.diagnose.context.suspects.place import (
    explain_absent,
    explain_evaluating,
    explain_leaving,
    explain_loading,
    explain_past_loop,
    explain_saving,
    explain_setup,
)
from whystuck.diagnose.context.suspects.preparing import explain_preparing
from whystuck.diagnose.context.suspects.prompt import explain_prompt
from whystuck.diagnose.context.suspects.state import (
    explain_device,
    explain_exception,
    explain_gil,
    explain_left,
    explain_lock_file,
    explain_locks,
    explain_stopped,
    explain_teardown,
)
from whystuck.diagnose.context.suspects.storage import explain_storage
from whystuck.diagnose.context.suspects.suspicion import Suspicion
from whystuck.diagnose.context.suspects.thread_error import explain_thread_error

_Explainer = Callable[[Facts, int], Suspicion | None]


def explain_hard(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank by a state that needs no comparison with its peers."""
    explainers: Sequence[_Explainer] = (
        explain_stopped,
        explain_stopped_worker,
        explain_left,
        explain_storage,
        explain_prompt,
        explain_gil,
        explain_native_gil,
        explain_exception,
        explain_worker,
        explain_input,
        explain_locks,
        explain_thread_error,
        explain_lock_file,
        explain_teardown,
        explain_device,
    )
    return next(_run(explainers, facts, rank), None)


def explain_soft(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank by where it is, when neither its state nor its ops say more."""
    explainers: Sequence[_Explainer] = (
        explain_past_loop,
        explain_leaving,
        explain_compiling,
        explain_asking,
        explain_loading,
        explain_saving,
        explain_setup,
        explain_preparing,
        explain_evaluating,
        explain_other_thread,
        explain_polling,
        explain_key_wait,
        explain_absent,
    )
    return next(_run(explainers, facts, rank), None)


def explain_alone(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank that nobody waits for, where all may be in the same trouble.

    Stacks that people paste are those of what does not come back, whether others wait or not.
    """
    explainers: Sequence[_Explainer] = (
        explain_storage,
        explain_thread_error,
        explain_compiling,
        explain_outliving,
    )
    if facts.stacks.are_pasted:
        explainers = (
            explain_storage,
            explain_prompt,
            explain_worker,
            explain_input,
            explain_locks,
            explain_lock_file,
            explain_native_gil,
            explain_compiling,
        )
    found = next(_run(explainers, facts, rank), None)
    if found is not None and found.details.get("lock_file"):
        return replace(found, is_blamed=False)  # who holds it is none of those that wait
    return found


def _run(explainers: Sequence[_Explainer], facts: Facts, rank: int) -> Iterator[Suspicion]:
    for explain in explainers:
        suspicion = explain(facts, rank)
        if suspicion is not None:
            yield suspicion
