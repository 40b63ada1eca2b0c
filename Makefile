# `make demo` and `make test` need Python 3.11 or newer, git and make; nothing else.

VENV   ?= .venv
PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,\
	$(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(p))))

BIN   := $(VENV)/bin
PY    := $(BIN)/python
# The stamps form a chain, so that no two of them install at the same time.
JOB   := $(VENV)/.stamp-job
DEV   := $(VENV)/.stamp-dev

NATIVE := $(VENV)/.stamp-native

DEMO  := whystuck-demo

.DEFAULT_GOAL := help
.PHONY: help venv native demo demo-trace test tests test-slow unit lint format ruff types imports structure structure-check probe-python \
	bench-overhead bench-overhead-quick bench-recorder bench-recorder-quick bench-marks bench-marks-quick bench-fr bench-fr-large bench-fr-quick \
	bench-verdicts bench-missing bench-missing-quick bench-deletions bench-logs bench-logs-large bench-logs-quick bench-traces bench-traces-quick bench-traces-scale bench-traces-scale-quick bench-corpus bench-field-logs bench-hostile bench-hostile-quick fuzz fuzz-quick bench-trace-path bench-agent bench-agent-quick bench-faults bench-faults-quick bench-late bench-late-quick bench-slow bench-slow-quick bench-harm bench-harm-quick bench-gpu bench-soak bench-soak-quick docs wheel wheel-native clean bench-shared-files bench-shared-files-quick

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ------------------------------------------------------------------------------- installation

$(VENV)/.stamp-venv:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer found; set PYTHON=..." >&2; exit 1; }
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --upgrade "pip>=25.1"
	@touch $@

$(JOB): pyproject.toml | $(VENV)/.stamp-venv
	$(PY) -m pip install --quiet --group job --editable .
	@touch $@

$(DEV): pyproject.toml $(JOB)
	$(PY) -m pip install --quiet --group test --group docs --editable .
	@touch $@

# The tests of the extension say that they are skipped where it cannot be built.
$(NATIVE): $(wildcard native/src/*) native/setup.py native/pyproject.toml $(DEV)
	@if command -v cc >/dev/null && test -e "$$($(PY) -c \
		'import sysconfig; print(sysconfig.get_path("include"))')/Python.h"; then \
		$(PY) -m pip install --quiet --no-build-isolation --no-deps ./native; \
	else echo "note: no C compiler or no Python.h: native/ is not built"; fi
	@touch $@

native: $(NATIVE)  ## the extension that records collectives in C, into .venv

venv: $(DEV)  ## make .venv with all that tests and docs need

# ---------------------------------------------------------------------------------------- demo

demo: $(JOB)  ## run a job that hangs, and see why
	@rm -rf $(DEMO)
	@echo '$$ whystuck run --stall-after 8 --on-stall kill --evidence ./$(DEMO) -- \'
	@echo '      torchrun --standalone --nproc-per-node 4 examples/stuck/train.py'
	@code=0; \
	PATH="$(abspath $(BIN)):$$PATH" OMP_NUM_THREADS=1 \
		whystuck run --stall-after 8 --on-stall kill --evidence ./$(DEMO) -- \
		torchrun --standalone --nproc-per-node 4 examples/stuck/train.py || code=$$?; \
	if [ $$code -ne 124 ]; then \
		echo "error: the demo ended with code $$code; 124 was expected" >&2; exit 1; fi
	@grep -q '"H102"' $(DEMO)/incidents/*/report.json || \
		{ echo "error: the demo did not name the extra barrier (H102)" >&2; exit 1; }
	@echo; echo "The demo worked. The report:"; ls $(DEMO)/incidents/*/report.html

demo-trace: $(JOB)  ## trace a job that is slow, and see why
	@rm -rf $(DEMO)-trace
	@echo '$$ torchrun --standalone --nproc-per-node 2 examples/trace/train.py ./$(DEMO)-trace'
	@PATH="$(abspath $(BIN)):$$PATH" OMP_NUM_THREADS=1 \
		torchrun --standalone --nproc-per-node 2 examples/trace/train.py ./$(DEMO)-trace 2>$(DEMO)-trace.log || \
		{ cat $(DEMO)-trace.log >&2; exit 1; }
	@mv $(DEMO)-trace.log $(DEMO)-trace/job.log
	@echo '$$ whystuck trace analyze ./$(DEMO)-trace'
	@$(BIN)/whystuck trace analyze ./$(DEMO)-trace
	@$(BIN)/whystuck trace analyze ./$(DEMO)-trace --format json -o $(DEMO)-trace/report.json
	@grep -q '"P501"' $(DEMO)-trace/report.json || \
		{ echo "error: the demo did not find that the job waits for data (P501)" >&2; exit 1; }

# ---------------------------------------------------------------------------------------- tests

test: lint tests  ## everything that must pass before a commit

# Many tests wait for jobs that wait: one more than there are cores.
PROCESSES := $(shell $(PYTHON) -c 'import os; print(min(4, len(os.sched_getaffinity(0)) + 1))' 2>/dev/null || echo 2)

unit: $(DEV)  ## what needs no process, and samples of what has many cases: some minutes
	$(PY) -m pytest --quick --numprocesses auto --dist loadgroup

tests: $(DEV) $(NATIVE)  ## all tests but the slow ones
	$(PY) -m pytest -m "not slow" --numprocesses $(PROCESSES) --dist loadgroup

test-slow: $(DEV) $(NATIVE)  ## the slow tests, with real jobs, and properties with all examples
	$(PY) -m pytest -m "slow or many_examples" --all-examples

lint: ruff types imports structure-check probe-python  ## style, types, import arrows, Python version of the probe

ruff: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	$(BIN)/mypy src tests $(wildcard bench/*.py bench/faults/*.py bench/harm/*.py bench/gpu/*.py)

imports: $(DEV)
	$(BIN)/lint-imports --no-logo

probe-python: $(DEV)
	$(BIN)/vermin --quiet --no-tips --violations --target=3.9- --backport typing \
		src/whystuck/__init__.py src/whystuck/probe src/whystuck/check/compute/in_job

format: $(DEV)  ## format the code and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# ----------------------------------------------------------------------------------- benchmarks

bench-overhead: $(DEV)  ## what whystuck costs a healthy job
	$(PY) bench/overhead.py
	$(PY) bench/cost.py

bench-overhead-quick: $(DEV)  ## the same, for some seconds
	$(PY) bench/overhead.py --seconds 5 --ranks 2 --pairs 0
	$(PY) bench/cost.py --quick

bench-recorder: $(DEV)  ## what recording every collective costs, and how exact it is
	$(PY) bench/recorder.py

bench-recorder-quick: $(DEV)  ## the same, for some seconds
	$(PY) bench/recorder.py --quick

bench-marks: $(DEV)  ## what marks of phases cost, and how fast they are switched
	$(PY) bench/marks.py

bench-marks-quick: $(DEV)  ## the same, for some seconds
	$(PY) bench/marks.py --quick

bench-fr: $(DEV)  ## reading many dumps, against torchfrtrace
	$(PY) bench/fr.py --ranks 256,1024

bench-fr-large: $(DEV)  ## reading the dumps of 10,240 ranks, and how the time grows
	$(PY) bench/fr.py --large --growth

bench-fr-quick: $(DEV)  ## the same on few dumps, for some seconds
	$(PY) bench/fr.py --quick

bench-verdicts: $(DEV)  ## verdicts on simulated jobs whose hosts run ahead
	$(PY) bench/verdicts.py

bench-missing: $(DEV)  ## verdicts on 1,024 ranks when dumps are missing, the culprit's among them
	$(PY) bench/missing.py

bench-missing-quick: $(DEV)  ## the same with 64 ranks
	$(PY) bench/missing.py --quick --cases 1

bench-shared-files: $(DEV)  ## what an incident of 1,024 ranks asks of a slow shared file system
	$(PY) bench/shared_files.py --before 32

bench-shared-files-quick: $(DEV)  ## the same with 32 ranks
	$(PY) bench/shared_files.py --quick

bench-deletions: $(DEV)  ## kept incidents of the fault benchmark, each time with a part missing
	$(PY) bench/deletions.py $(wildcard bench/faults/results/*/evidence/incidents/000)

bench-logs: $(DEV)  ## finding known lines in logs, against one alternation of all patterns
	$(PY) bench/logs.py

bench-logs-large: $(DEV)  ## the same, and 4 GB of 512 ranks
	$(PY) bench/logs.py --job-megabytes 4000 --ranks 512

bench-logs-quick: $(DEV)  ## the same on a small log, for some seconds
	$(PY) bench/logs.py --megabytes 20 --job-megabytes 100 --ranks 32

bench-traces-scale: $(DEV)  ## traces of 1,024 ranks through Dask, with a worker killed on the way
	$(PY) bench/traces_scale.py

bench-traces-scale-quick: $(DEV)  ## the same with 32 ranks and small traces
	$(PY) bench/traces_scale.py --ranks 32 --megabytes 2

bench-corpus: $(DEV)  ## how often the first cause is found in failing logs, plain and padded
	$(PY) bench/log_corpus.py --size full

bench-field-logs: $(DEV)  ## how often texts that people pasted are judged as an expert judges them
	$(PY) bench/field_logs.py

bench-traces: $(DEV)  ## reading and measuring large traces, against HTA and the least it can take
	$(PY) bench/traces.py

bench-traces-quick: $(DEV)  ## the same on small traces and without HTA, for some seconds
	$(PY) bench/traces.py --quick

bench-hostile: $(DEV)  ## what hostile evidence costs: time, and memory of all processes
	$(PY) bench/hostile.py

bench-hostile-quick: $(DEV)  ## the same on some small cases; fails for memory and tracebacks, not for time
	$(PY) bench/hostile.py --quick --every 4

FUZZ_OPTIONS ?= -max_total_time=600

fuzz: $(DEV)  ## ten minutes each of made-up dumps, op logs, marks, logs, traces and records, led by coverage
	$(PY) -m pip install --quiet --group fuzz
	$(PY) bench/fuzz_fr.py -print_final_stats=1 $(FUZZ_OPTIONS)
	$(PY) bench/fuzz_ops.py -print_final_stats=1 $(FUZZ_OPTIONS)
	$(PY) bench/fuzz_marks.py -print_final_stats=1 $(FUZZ_OPTIONS)
	$(PY) bench/fuzz_logs.py -print_final_stats=1 $(FUZZ_OPTIONS)
	$(PY) bench/fuzz_traces.py -print_final_stats=1 $(FUZZ_OPTIONS)
	$(PY) bench/fuzz_records.py -print_final_stats=1 $(FUZZ_OPTIONS)

# A number of inputs, not of seconds: what is made up is the same on a machine of any speed.
fuzz-quick:  ## the same for some seconds, with the same inputs each time
	@PYTHONHASHSEED=0 $(MAKE) --no-print-directory fuzz FUZZ_OPTIONS="-seed=1 -runs=1000"

bench-trace-path: $(DEV)  ## what the critical path of a trace costs, beside a plain search
	$(PY) bench/trace_path.py

bench-agent: $(DEV)  ## the agent of a node: requests, traces, what it costs, many nodes
	$(PY) bench/agent.py

bench-agent-quick: $(DEV)  ## the same, for some seconds
	$(PY) bench/agent.py --quick

bench-faults: $(DEV)  ## every injected fault, as a real job
	$(PY) bench/faults/run.py

bench-faults-quick: $(DEV)  ## a few injected faults
	$(PY) bench/faults/run.py --quick

bench-harm: $(DEV)  ## what the caller of a command sees of whystuck, script by script
	$(PY) bench/harm/run.py --agent both

bench-harm-quick: $(DEV)  ## the same for some scripts
	$(PY) bench/harm/run.py --quick --no-wall --agent on

bench-gpu:  ## the experiments for a machine with one GPU; they need its own torch
	bench/gpu/acceptance.sh

bench-soak: $(DEV)  ## what grows in a job of 45 minutes and a million collectives
	$(PY) bench/soak.py

bench-soak-quick: $(DEV)  ## the same for five minutes
	$(PY) bench/soak.py --minutes 5 --collectives 110000

bench-slow: $(DEV)  ## whether ranks that become slow are named, with their phase, and nobody else
	$(PY) bench/slow.py

bench-slow-quick: $(DEV)  ## the same, one job of each kind
	$(PY) bench/slow.py --quick

bench-late: $(DEV)  ## who makes every step late, in jobs made of sleeps
	$(PY) bench/late.py

bench-late-quick: $(DEV)  ## the same with 2 ranks and few jobs
	$(PY) bench/late.py --quick --ranks 2 --seeds 1 --steps 40

structure: $(DEV)  ## how the code is laid out, in figures
	$(PY) bench/structure.py

structure-check: $(DEV)
	$(PY) bench/structure.py --check

# ------------------------------------------------------------------------------- docs and wheel

docs: $(DEV)  ## the documentation, in docs/_build/html
	$(PY) -m sphinx -q -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

wheel: $(JOB)  ## the wheel, in dist/
	$(PY) -m pip wheel --quiet --no-deps --wheel-dir dist .

wheel-native: $(VENV)/.stamp-venv  ## the wheel of the extension, for this Python, in dist/
	$(PY) -m pip wheel --quiet --no-deps --wheel-dir dist ./native

clean:  ## remove all that make has made
	rm -rf $(VENV) .venv-peers $(DEMO) $(DEMO)-trace $(DEMO)-trace.log dist build native/build docs/_build .mypy_cache .pytest_cache .ruff_cache .hypothesis \
		.import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
