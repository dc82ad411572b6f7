# The front door. Needs only make and Python 3.11 or newer; everything else goes into .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
JOBS ?= 2
SPREAD := --numprocesses auto --dist loadfile

.PHONY: study simulation test test-all bench lint format clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@echo "make study       the two-site study on a synthetic cohort: results/ra_study/report.html"
	@echo "make simulation  the ensemble and its competitors on simulated sites, into results/simulation"
	@echo "make test        lint, type-check and run the tests"
	@echo "make test-all    the same with the slow studies"
	@echo "make bench       measure speed and memory"
	@echo "make lint        ruff and mypy alone"
	@echo "make format      reformat the code"

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "mmlca needs Python 3.11 or newer, found $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@

study: $(READY)
	$(BIN)/mmlca demo --out results/ra_study --seed 1

simulation: $(READY)
	$(BIN)/mmlca simulate --precision 0.01 --jobs $(JOBS) --out results/simulation

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint
	$(BIN)/python -m pytest -m "not slow and not bench" $(SPREAD) --cov --cov-report=term

test-all: lint
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[federated]" "flwr[simulation]"
	$(BIN)/python -m pytest -m "not bench" $(SPREAD) --cov --cov-report=term

bench: $(READY)
	$(BIN)/python -m pytest -m bench tests/bench -s

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
