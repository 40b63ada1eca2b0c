"""The agent of a node against its bars, each part in a module of its own beside this one.

python bench/agent.py [--part fabric|trace|idle|nodes] [--quick]

fabric  requests of torch processes a second, and what one costs
trace   from a request to the file, in real jobs
idle    what an idle agent costs a job, and itself, with 64 processes
nodes   one request to 256 agents
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

PARTS = ("fabric", "trace", "idle", "nodes")


def run_part(part: str, *, quick: bool) -> int:
    """Run the module of a part, and return its exit code."""
    module = Path(__file__).with_name(f"agent_{part}.py")
    print(f"== {part}", flush=True)
    began_s = time.monotonic()
    code = subprocess.run(
        [sys.executable, str(module), *(["--quick"] if quick else [])], check=False
    ).returncode
    print(
        f"== {part}: {'ok' if code == 0 else f'code {code}'}, {time.monotonic() - began_s:.0f} s\n"
    )
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", choices=PARTS, action="append", help="only this; may be repeated")
    parser.add_argument("--quick", action="store_true", help="some seconds a part")
    options = parser.parse_args()
    codes = [run_part(part, quick=options.quick) for part in options.part or PARTS]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
