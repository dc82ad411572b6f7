# The front door. Needs only make and Python 3.11 or newer; everything else goes into .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
JOBS ?= 2
SPREAD := --numprocesses auto --dist loadfile

.PHONY: study simulation test test-all browser docs notebooks dist bench bench-peers lint format clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@echo "make study       the two-site study on a synthetic cohort: results/ra_study/report.html"
	@echo "make simulation  the ensemble and its competitors on simulated sites, into results/simulation"
	@echo "make test        lint, type-check and run the tests"
	@echo "make test-all    the same with the slow studies, Flower, a browser and coverage"
	@echo "make browser     install Chromium for the tests of pages (Debian, Ubuntu; as root)"
	@echo "make bench       measure speed and memory, into docs/benchmarks.md"
	@echo "make bench-peers install the programs that the benchmarks compare with"
	@echo "make docs        build the documentation: docs/_build/html/index.html"
	@echo "make notebooks   run the notebooks of the documentation again"
	@echo "make dist        build and try a wheel and a source distribution"
	@echo "make lint        ruff and mypy alone"
	@echo "make format      reformat the code"

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "mmlca needs Python 3.11 or newer, found $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@

study: $(READY)
	$(BIN)/mmlca demo --out results/ra_study --seed 1 --classes 1-8 --stability

simulation: $(READY)
	$(BIN)/mmlca simulate --precision 0.01 --n-jobs $(JOBS) --out results/simulation
	$(BIN)/python examples/simulation_study.py results/simulation $(JOBS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint
	$(BIN)/python -m pytest -m "not slow and not bench" $(SPREAD)

# Without a browser the tests of pages are skipped.
browser:
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
	  command -v $$name >/dev/null && exit 0; done; \
	apt-get update -q && \
	DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends chromium

test-all: lint browser
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[federated]" "flwr[simulation]"
	$(BIN)/python -m pytest -m "not bench" $(SPREAD) --cov --cov-report=term

# Every page and code cell, warnings are errors: docs/_build/html/index.html.
docs: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

# Runs the notebooks and keeps their outputs, which the documentation shows.
notebooks: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[docs]"
	$(BIN)/jupyter execute --inplace docs/notebooks/*.ipynb

# A wheel and a source distribution, each tried in an empty environment.
dist: $(READY)
	rm -rf dist
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build
	$(BIN)/python -m build --outdir dist .
	@$(BIN)/python -m zipfile -l dist/*.whl > dist/files.txt && \
	git ls-files mmlca font ehr_prep | while read -r file; do \
	  grep -qF "$$file " dist/files.txt || { echo "$$file is not in the wheel" >&2; exit 1; }; \
	done
	@for file in dist/*.whl dist/*.tar.gz; do \
	  rm -rf dist/try && $(PYTHON) -m venv dist/try && \
	  dist/try/bin/python -m pip install --quiet --disable-pip-version-check "$$file" && \
	  rm -rf dist/demo && (cd dist && try/bin/python ../tests/smoke.py demo) && \
	  echo "$$file installs and runs" || exit 1; \
	done; rm -rf dist/try dist/demo dist/files.txt

# Speed and memory; what is compared with other programs goes into docs/benchmarks.{json,md}.
# Without `make bench-peers` the rows of StepMix and Sequenzo are skipped with a line.
bench: $(READY)
	BENCH_OUT=$(CURDIR)/docs $(BIN)/python -m pytest -m bench -s tests/bench

# The programs that benchmarks compare with, in an environment of their own.
bench-peers:
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check "stepmix>=3" sequenzo==0.1.42

clean:
	rm -rf .venv .venv-peers .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
