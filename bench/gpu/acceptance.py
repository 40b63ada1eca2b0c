"""What whystuck does to NCCL jobs, and tells of them, on a machine with one GPU.

    OUT=folder bench/gpu/acceptance.sh [A B C...] [--stand-in]

Each experiment prints what it expects and what it saw, and writes both to ``OUT/results.json``. The
evidence folders of the hangs stay in ``OUT``: they are test data. Exits with 1 when one saw what it
did not expect. ``--stand-in`` runs A and C to F without a GPU, on the backend of the tests that is
like NCCL (`tests/nccl_like`): it judges us, and says nothing about NCCL and CUDA themselves.

Its ranks share one device. That needs NCCL up to 2.29, where ``NCCL_HOSTID`` makes them ranks of
different hosts, or ``NCCL_MULTI_RANK_GPU_ENABLE=1`` from 2.30.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.gpu.running import Bench, Job, make_job

HANGS = {
    1: "item",
    2: "clip_grad_norm_",
    3: "synchronize",
    4: "backward of DDP",
    5: "a full launch queue",
    6: "irecv of a batch",
    7: "the device of rank 1",
    8: "shapes that differ",
    9: "SIGKILL of rank 1",
    10: "rank 1 never joins",
}
# What cannot be blamed on a rank without the times of starts. The stand-in has no kernels.
_OF_DEVICE = {7}
_OF_TRANSFERS = {6}
_NEVER_JOINS = 10
_RAS_PORT = 28028


@dataclass
class Result:
    """One experiment: what it expects, what it saw, and whether that is the same."""

    name: str
    expects: str
    saw: dict[str, Any] = field(default_factory=dict)
    is_met: bool | None = None


def a_works(bench: Bench) -> Iterator[Result]:
    """A: ranks that share the device."""
    for ranks in (2, 4):
        said = bench.run(make_job("ok", ranks=ranks))
        yield Result(
            f"A {ranks} ranks", "ends with 0, 9 to 20 ms an op", said.figures, said.code == 0
        )


def b_context(bench: Bench) -> Iterator[Result]:
    """B: nothing of CUDA happens before the job wants it."""
    for kind, key, good in (("hidden", "outcome", "works"), ("fork", "child", 0)):
        bare = bench.run(make_job("context", kind, ranks=0)).figures
        ours = bench.run(make_job("context", kind, ranks=0, evidence=f"B-{kind}")).figures
        same = all(bare.get(one) == ours.get(one) for one in ("state", "active", key))
        expects = (
            f"as bare, without memory on the device; {key} is not {good!r} only where bare is not"
        )
        yield Result(
            f"B {kind}", expects, {"bare": bare, "ours": ours}, same and not ours.get("memory")
        )


def c_interpreter(bench: Bench) -> Iterator[Result]:
    """C: nobody keeps the interpreter while the launch queue is full."""
    off = bench.run(make_job("gil", ranks=0, evidence="C-off", options="--comm off")).figures
    on = bench.run(make_job("gil", ranks=0, evidence="C-on")).figures
    counts = [one.get("counts_a_second", 0) for one in (off, on)]
    is_met = counts[0] > 0 and counts[1] >= 0.9 * counts[0]
    expects = "as many counts a second as with --comm off, within 10 %"
    if bench.is_stand_in:
        # Handles of gloo do not block, and its steps have no device that works on meanwhile.
        expects += "; steps are judged on a GPU only"
        is_met = is_met if bench.has_device else None
    else:
        expects += "; steps within 2 %"
        is_met = is_met and on["step_ms"] <= 1.02 * off["step_ms"]
    yield Result("C", expects, {"off": off, "on": on}, is_met)


def d_hangs(bench: Bench) -> Iterator[Result]:
    """D: rank 1 is missing, and rank 0 waits for its device."""
    for number, where in HANGS.items():
        if bench.is_stand_in and number in _OF_DEVICE:
            continue
        for options in ("", "--fr-enable-timing") if number in _OF_DEVICE else ("",):
            folder = f"D-{number}{'-timing' if options else ''}"
            job = make_job("hang", str(number), evidence=folder, options=options)
            if bench.is_stand_in and number in _OF_TRANSFERS:
                # Its recorder is that of gloo, which has no sends and receives: op logs tell.
                job = replace(job, env={"TORCH_FR_BUFFER_SIZE": "0"})
            found = _look_before_the_first_op(bench, job) if number == _NEVER_JOINS else None
            if found is None:
                bench.run(job, limit_s=60)
                found = bench.diagnose(folder)
            # Of two ranks whose shapes differ, neither is the odd one.
            is_met = 1 in found.get("ranks", [])
            if number in _OF_DEVICE:
                is_met = is_met or found.get("confidence") == "possible"
                is_met = is_met and found.get("confidence") != "certain"
            yield Result(f"D {number}", f"rank 1 and its line ({where})", found, is_met)


def _look_before_the_first_op(bench: Bench, job: Job) -> dict[str, Any]:
    """Look at a job that has issued no op; such a one is called stalled after ten minutes only."""
    with bench.started(job) as process:
        time.sleep(40)
        folder = f"{job.evidence}-snapshot"
        snapshot = [sys.executable, "-m", "whystuck", "snapshot", "--pid", str(process.pid)]
        bench.call([*snapshot, "--evidence", folder])
    return bench.diagnose(folder)


def e_backward(bench: Bench) -> Iterator[Result]:
    """E: the ops of DDP's reducer, which come from a thread of C++, are on record."""
    said = bench.run(make_job("ddp", "10", evidence="E"))
    tables = bench.out / "E-tables"
    diagnose = [sys.executable, "-m", "whystuck", "diagnose", str(bench.out / "E")]
    bench.call([*diagnose, "--tables", str(tables)])
    rows = sum(
        sum("all_reduce" in line for line in path.read_text(errors="replace").splitlines())
        for path in tables.glob("*.csv")
    )
    yield Result(
        "E", "all_reduce of every backward", {"rows": rows, **said.figures}, rows >= 2 * 10
    )


def f_memory(bench: Bench) -> Iterator[Result]:
    """F: what the job lets go of is free."""
    off = bench.run(make_job("memory", ranks=0, evidence="F-off", options="--comm off")).figures
    on = bench.run(make_job("memory", ranks=0, evidence="F-on")).figures
    is_met = off == on if bench.has_device else None
    what = "tensors and handles left" if bench.is_stand_in else "most memory"
    yield Result("F", f"the same {what}", {"off": off, "on": on}, is_met)


def g_graphs(bench: Bench) -> Iterator[Result]:
    """G: captures and replays."""
    with bench.started(make_job("capture", ranks=0, evidence="G1")) as process:
        time.sleep(15)
        snapshot = [sys.executable, "-m", "whystuck", "snapshot", "--pid", str(process.pid)]
        bench.call(snapshot)
        out, _ = process.communicate(timeout=60)
    yield Result("G1", "the capture is replayed", {"out": out[-300:]}, "replayed" in out)
    bare, ours = bench.run(make_job("compiled")), bench.run(make_job("compiled", evidence="G2"))
    yield Result(
        "G2", "ends as bare", {"bare": bare.figures, "ours": ours.figures}, bare.code == ours.code
    )
    said = bench.run(
        make_job("replay", ranks=0, evidence="G3", options="--on-stall kill"), limit_s=150
    )
    yield Result("G3", "is not called stalled", said.figures, "done" in said.out and said.code == 0)


def h_timeout(bench: Bench) -> Iterator[Result]:
    """H: our report comes before torch's own dump and abort."""
    env = {"ACCEPTANCE_TIMEOUT": "30", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "3000"}
    said = bench.run(replace(make_job("hang", "3", evidence="H"), env=env), limit_s=120)
    found = bench.diagnose("H")
    dumps = [str(one.relative_to(bench.out)) for one in (bench.out / "H").rglob("fr_torch*")]
    saw = found | {"dumps": dumps, "wall_s": said.wall_s}
    is_met = found.get("ranks") == [1] and bool(dumps)
    yield Result("H", "torch's dump beside ours, and rank 1", saw, is_met)


def i_traces(bench: Bench) -> Iterator[Result]:
    """I: traces of DDP on demand, and what a step costs after them."""
    for teardown in ("", "1"):
        env = {"TEARDOWN_CUPTI": teardown} if teardown else {}
        with bench.started(
            replace(make_job("ddp", "20000", evidence=f"I{teardown}"), env=env)
        ) as process:
            time.sleep(20)
            start = [sys.executable, "-m", "whystuck", "trace", "start", "--yes", "--wait"]
            requests = [["--iterations", "3"], *[["--duration", "0.5"]] * 20]
            codes = [bench.call([*start, *one]) for one in requests]
            alive = process.poll() is None
        saw = {"codes": codes, "alive": alive, "TEARDOWN_CUPTI": teardown}
        yield Result(
            f"I {teardown or 'default'}",
            "all written, the job lives",
            saw,
            alive and not any(codes),
        )


def j_metrics(bench: Bench) -> Iterator[Result]:
    """J: load, power and clocks of the device, and what a round costs."""
    folder = bench.out / "agent"
    agent = [sys.executable, "-m", "whystuck", "agent", "--folder", str(folder), "--port", "0"]
    process = subprocess.Popen([*agent, "--every", "1", "--json-lines", str(bench.out / "J.jsonl")])
    try:
        time.sleep(5)
        bench.run(make_job("gil", ranks=0), limit_s=60)
    finally:
        process.terminate()
        process.wait(30)
    text = (bench.out / "J.jsonl").read_text() if (bench.out / "J.jsonl").exists() else ""
    names = sorted({name for name in ("gpu", "power", "clock") if name in text.lower()})
    yield Result("J", "load, power and clocks", {"found": names, "bytes": len(text)}, bool(names))


def k_ras(bench: Bench) -> Iterator[Result]:
    """K: what NCCL's RAS answers in a job that works, and in one that hangs."""
    for name, job in (("works", ("ddp", "2000")), ("hangs", ("hang", "1"))):
        with bench.started(make_job(*job)):
            time.sleep(20)
            text, data = ask_ras("VERBOSE STATUS\n"), ask_ras("SET FORMAT json\nSTATUS\n")
        (bench.out / f"ras-{name}.txt").write_bytes(text)
        (bench.out / f"ras-{name}.json").write_bytes(data)
        saw = {"text": len(text), "json": data[:1] == b"{" or b"{" in data}
        yield Result(f"K {name}", "an answer; kept as ras-*.txt and .json", saw, bool(text))


def ask_ras(question: str) -> bytes:
    """Ask NCCL's RAS of this host; empty where nobody answers."""
    try:
        with socket.create_connection(("localhost", _RAS_PORT), timeout=5) as link:
            link.sendall(f"CLIENT PROTOCOL 2\nTIMEOUT 2\n{question}".encode())
            link.settimeout(10)
            told = b""
            while len(told) < 8 << 20 and (more := link.recv(1 << 16)):
                told += more
            return told
    except OSError:
        return b""


def l_core_dump(bench: Bench) -> Iterator[Result]:
    """L: a core dump of the device that the user asks for, of a hung kernel."""
    pipe, core = bench.out / "gpu-pipe", bench.out / "gpu-core"
    env = {
        "CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1",
        "CUDA_COREDUMP_PIPE": str(pipe),
        "CUDA_COREDUMP_FILE": str(core),
        "CUDA_COREDUMP_GENERATION_FLAGS": "skip_nonrelocated_elf_images,skip_global_memory,"
        "skip_shared_memory,skip_local_memory,skip_constbank_memory,skip_abort",
    }
    with bench.started(replace(make_job("hang", "7"), env=env)) as process:
        time.sleep(25)
        pipes = sorted(bench.out.glob("gpu-pipe*"))
        begin_s = time.monotonic()
        for one in pipes[:1]:
            one.write_text("1")
        time.sleep(20)
        alive = process.poll() is None
    cores = [one.stat().st_size for one in bench.out.glob("gpu-core*")]
    saw = {
        "pipes": len(pipes),
        "cores": cores,
        "alive": alive,
        "took_s": time.monotonic() - begin_s,
    }
    yield Result("L", "a core dump, and the job lives on", saw, bool(cores) and alive)


EXPERIMENTS: dict[str, Callable[[Bench], Iterator[Result]]] = {
    "A": a_works, "B": b_context, "C": c_interpreter, "D": d_hangs, "E": e_backward,
    "F": f_memory, "G": g_graphs, "H": h_timeout, "I": i_traces, "J": j_metrics, "K": k_ras,
    "L": l_core_dump,
}  # fmt: skip
# Those whose jobs run on what is like NCCL.
STAND_IN = "ACDEF"


def main() -> int:
    """Run the experiments that were asked for, in their order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiments", nargs="*", default=[], metavar="A..L")
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--stand-in", action="store_true", help="no GPU: on what is like NCCL")
    options = parser.parse_args()
    if not options.stand_in and shutil.which("nvidia-smi") is None:
        print("error: no nvidia-smi on this machine\nhint: --stand-in tries the script on hosts")
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(options.out.resolve(), is_stand_in=options.stand_in)
    results: list[Result] = []
    for name in options.experiments or (STAND_IN if options.stand_in else EXPERIMENTS):
        try:
            for result in EXPERIMENTS[name](bench):
                results.append(result)
                _tell(result)
                (options.out / "results.json").write_text(
                    json.dumps([asdict(one) for one in results])
                )
        except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            # The next experiment may work.
            failed = Result(name, "no error of the script", {"error": repr(error)}, is_met=False)
            results.append(failed)
            _tell(failed)
    return 0 if all(one.is_met is not False for one in results) else 1


def _tell(result: Result) -> None:
    state = {True: "met", False: "NOT MET", None: "seen"}[result.is_met]
    print(
        f"{result.name:12} {state:8} expects: {result.expects}\n{'':21} saw: {result.saw}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
