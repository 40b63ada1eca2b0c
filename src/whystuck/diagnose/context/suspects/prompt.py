"""Explains a rank that waits for somebody to type: a breakpoint, a console, a question."""

from __future__ import annotations

from whystuck.diagnose import codes
from whystuck.diagnose.algorithms.stacks.frames import find_user_frame, is_in, name_function
from whystuck.diagnose.context.facts import Facts
from whystuck.diagnose.context.suspects.suspicion import Suspicion, get_frames
from whystuck.evidence.finding import Confidence
from whystuck.evidence.ops.collectives import Frame

# The calls that wait, and the files they are in; a program that merely runs below a debugger is in
# others.
_PROMPTS = (
    ({"cmdloop", "_cmdloop", "interaction"}, ("pdb.py", "cmd.py", "debugger.py", "IPython/")),
    ({"interact", "raw_input"}, ("code.py", "_pyrepl/", "IPython/")),
    ({"mainloop", "prompt_for_code"}, ("IPython/terminal/",)),
    ({"wait_for_client"}, ("debugpy/", "pydevd", "ptvsd/")),
    ({"interaction", "event_loop"}, ("pudb/",)),
)


def explain_prompt(facts: Facts, rank: int) -> Suspicion | None:
    """Explain a rank at the prompt of a debugger."""
    frames = get_frames(facts, rank)
    if not any(_is_prompt(frame) for frame in frames):
        return None
    user = find_user_frame(frames)
    where = f", called in {user.function}" if user else ""
    return Suspicion(
        rank,
        codes.RANK_NEVER_JOINED,
        Confidence.LIKELY,
        f"waits at the prompt of a debugger or console for somebody to type{where}",
        frames,
        because=(facts.stacks.cite(rank, f"rank {rank} is at a prompt"),),
        details={"state": "prompt"},
    )


def _is_prompt(frame: Frame) -> bool:
    name = name_function(frame)
    return any(name in calls and is_in(frame, *files) for calls, files in _PROMPTS)
