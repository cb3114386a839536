# Two commands do all the set-up on a fresh machine: `make demo` and `make test`.
# `make demo ARGS="--flights 20000"` and `make test PYTEST_ARGS="tests/core -x"` pass arguments on.

PYTHON ?= python3
BIN := .venv/bin
KERNEL := $(wildcard src/headrace/wire/_codec*.py src/headrace/wire/_codec*.pxd)
# In the environment, constraints hold for what builds the kernel too (by the second name from pip 25.3).
PINNED := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt
# Where it is set, each of some thousand processes would compile what it imports once more.
unexport PYTHONDONTWRITEBYTECODE
ARGS ?=
PYTEST_ARGS ?=
KILLS_FACTOR ?= 18
SOAK_HOURS ?= 4
SOAK_WORKERS ?= 2
SOAK_SEED ?= 1000000

.PHONY: help demo test pytest check format campaign kills faults loop seeds soak clean

help: ## what can be made
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: .venv/.demo ## install what the demo needs, then run it
	$(BIN)/python -m headrace demo $(ARGS)

test: .venv/.dev ## install what the tests need, run every check and, beside it, every test
	@$(MAKE) --no-print-directory -j 2 check pytest

pytest: .venv/.dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: .venv/.dev ## lint, format, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy

soak: .venv/.dev campaign kills faults loop seeds ## run every long proof: damage, SIGKILLs, look-up faults, steps of the loop, seeds, hours of the simulator, 24 virtual days
	$(BIN)/headrace sim --hours $(SOAK_HOURS) --workers $(SOAK_WORKERS) --from $(SOAK_SEED) --stop --json
	$(BIN)/headrace sim --days 24 --seeds 2 --workers $(SOAK_WORKERS) --from $(SOAK_SEED) --stop --json

kills: .venv/.dev ## 883 SIGKILLs: 684 under clients of every kind, 170 at the starts that follow, 29 of the demo's broker and of Spark drivers
	HEADRACE_CRASH_KILLS_FACTOR=$(KILLS_FACTOR) $(BIN)/python -m pytest -q tests/crash -k "not bug and not seeding and not storage"

faults: .venv/.dev ## every row of KIP-842's tables with every fault of a look-up, and with the default refresh of metadata
	HEADRACE_CONSUMER_FAULTS=1 $(BIN)/python -m pytest -q tests/client/test_consumer_faults.py

loop: .venv/.dev ## the processor time of the event loop's steps, for requests of the largest size (some minutes)
	HEADRACE_LOOP_SCALE=1 $(BIN)/python -m pytest -q tests/broker/test_loop_time*.py tests/broker/test_share_records_million.py

seeds: .venv/.dev ## ten times the seeds, histories and examples that CI takes of the simulator and of a model (some minutes)
	HEADRACE_SIM_SEEDS=800 HEADRACE_SIM_HISTORIES=30000 HEADRACE_RUNS_EXAMPLES=1500 $(BIN)/python -m pytest -q tests/sim/test_world.py tests/sim/test_core_histories.py tests/core/test_runs.py

format: .venv/.dev ## put the code in form
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

campaign: .venv/.dev ## 20,000 damages to data folders, and 2,000 repairs (30 minutes)
	$(BIN)/python -m tests.campaign.campaign --cases 20000
	HEADRACE_REPAIR_CASES=500 $(BIN)/python -m pytest -q -n 2 tests/campaign/test_campaign_repairs.py

clean: ## forget the installation and all caches
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	rm -rf build src/headrace.egg-info src/headrace/wire/_codec*.c src/headrace/wire/_codec*.so

# A stamp says that an extra is installed; it is older than what it was made from when that changes.
.venv/.%: .venv/.made pyproject.toml constraints.txt setup.py $(KERNEL)
	@echo "installing headrace[$*] (a few minutes the first time)"
	@$(PINNED) $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

.venv/.made:
	@command -v $(PYTHON) >/dev/null || { echo "error: no $(PYTHON); install Python 3.11 or newer (Debian: apt install python3 python3-venv)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $$($(PYTHON) --version) is too old, 3.11 or newer is needed; name another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "error: $(PYTHON) cannot make virtual environments; Debian: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@
