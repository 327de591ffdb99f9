# Needs Python 3.11 or newer, git and make; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup run test test-slow test-faults test-clients lint format stubs bench soak tables clean

help:  ## Lists the targets.
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(STAMP)  ## Makes .venv with the services, the SDK and the tools of development.

# The stubs are made by the install, so a changed contract needs a new one.
$(STAMP): pyproject.toml hatch_build.py protos/generate.py $(wildcard protos/trialgym/v1/*.proto)
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; this is " + v + ". Name another one: make PYTHON=/path/to/python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing trialgym and its tools into $(VENV) (a minute or two the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

stubs: $(STAMP)  ## Makes the Python stubs anew from the contract.
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --no-deps

run: $(STAMP)  ## Starts both services on loopback, plays one episode of each kind and serves until Ctrl-C.
	@$(BIN)/trialgym serve --demo

test: $(STAMP)  ## Runs the Python tests but the slow ones.
	@$(BIN)/python -m pytest -q

test-slow: $(STAMP)  ## Runs the tests that take minutes or load the machine.
	@$(BIN)/python -m pytest -q -m slow --timeout 1800

ROUNDS ?= 1
test-faults: $(STAMP)  ## Kills, cuts, fills and damages (tests/faults), ROUNDS=20 times in a row; stops at the first failure.
	@for round in $$(seq $(ROUNDS)); do \
		echo "round $$round of $(ROUNDS)"; \
		$(BIN)/python -m pytest -q -rP -m "slow or not slow" --timeout 300 tests/faults || exit 1; \
	done

test-clients: $(STAMP)  ## Runs the tests of the other languages' clients, where there are any.
	@for folder in clients/go clients/rust clients/typescript clients/java clients/cpp; do \
		if [ -x $$folder/test.sh ]; then (cd $$folder && ./test.sh) || exit 1; fi; \
	done

lint: $(STAMP)  ## Checks style, types and the contract (buf where it is installed; .ci/run installs it).
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@if command -v buf >/dev/null; then protos/check.sh; else echo "buf is not installed: the contract was not linted"; fi

format: $(STAMP)  ## Formats the Python code.
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(STAMP)  ## Measures the services beside what they are compared with.
	@$(BIN)/python -m benchmarks

soak: $(STAMP)  ## Plays everything at once for half an hour (MINUTES=30): memory stays flat, nothing fails.
	@$(BIN)/python -m benchmarks.soak --minutes $(or $(MINUTES),30)

tables: $(STAMP)  ## Makes docs/trials.md anew: how often the trials are won, what cheats earn (about 10 minutes).
	@mkdir -p build
	@$(BIN)/trialgym solvability --json > build/solvability.jsonl
	@$(BIN)/trialgym canaries --json > build/canaries.jsonl
	@$(BIN)/python docs/make_trials.py build/solvability.jsonl build/canaries.jsonl > docs/trials.md

clean:  ## Removes what the other targets made.
	rm -rf $(VENV) clients/python/trialgym/v1 build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
