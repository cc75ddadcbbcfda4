# Everything here needs only Python 3.11 or newer and make; the rest is installed into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUNS := $(VENV)/.runs

PYTEST ?=

.PHONY: help install demo test quick thorough fuzz lint check coverage format bench bench-peers chaos conformance dist clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Ojster needs Python 3.11 or newer; say which with: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(READY): pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(READY) $(RUNS)

$(RUNS): pyproject.toml constraints.txt | $(VENV)/pyvenv.cfg
	@echo "Installing Ojster and what it needs to run into $(VENV), once:"
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e .
	@touch $(RUNS)

install: $(READY) ## Install Ojster and its tools into .venv

demo: $(RUNS) ## See a server, a worker and a set of jobs at work
	$(BIN)/ojster demo

test: $(READY) ## Run all tests
	$(BIN)/pytest $(PYTEST)

quick: $(READY) ## Run the tests that take no longer than a few seconds
	$(BIN)/pytest -m 'not slow and not thorough'

thorough: $(READY) ## Run the tests that take minutes: thousands of random workflows, and the engine on more databases
	$(BIN)/pytest -m thorough --dist load

fuzz: $(READY) ## Feed the parsers and a server random input for some minutes
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	$(BIN)/python -m tests.fuzz parsers --seconds 30
	$(BIN)/python -m tests.fuzz http --seconds 120
	$(BIN)/python -m tests.fuzz http --seconds 120 --roles

lint: $(READY) ## Check format, lint, imports and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

check: lint ## Check format, lint, imports and types, then run all tests
	$(BIN)/pytest

coverage: $(READY) ## Run all tests and show which lines none of them runs; the report is in htmlcov
	$(BIN)/pytest --cov --cov-report=term:skip-covered --cov-report=html

format: $(READY) ## Format the code and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## Measure, beside what the raw parts can do: a table, and benchmarks/results.json
	$(BIN)/python -m benchmarks

bench-peers: $(READY) ## Measure the same job through other task queues, in environments of their own
	$(BIN)/python -m benchmarks.peers

chaos: $(READY) ## Kill servers and workers under load, KILLS times (200) on each database, and judge what was lost
	$(BIN)/python -m tests.chaos --kills $(or $(KILLS),200)

conformance: $(READY) ## Run the Open Job Spec conformance suite, if SUITE says where its runner is
	$(BIN)/python -m tests.conformance.run $(SUITE)

dist: $(READY) ## Build the packages as a release does, and try the wheel in an environment of its own
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(PYTHON) -m venv dist/try
	dist/try/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	dist/try/bin/ojster --version
	rm -rf dist/try
	ls dist

clean: ## Remove what was installed and built
	rm -rf $(VENV) .peers dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache htmlcov .coverage
