# Two commands do everything: `make demo` shows it at work, `make test` tests it.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
OLDEST ?= .venv-oldest
DOCS ?= .venv-docs
OLDEST_PYTHON ?= PYENV_VERSION=3.10 python3.10
# Bytecode is written on first use: most files of these packages are never imported.
PIP = $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt

.PHONY: demo test lint types unit slow test-oldest fuzz benchmark gallery docs clean

demo: $(VENV)/.demo
	$(BIN)/offline-data demo

test: lint types unit

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

# Tests start many programs: where the environment forbids .pyc files, each would compile everything
# it imports, and each worker all test modules.
unit slow test-oldest: export PYTHONDONTWRITEBYTECODE =

unit: $(VENV)/.test
	$(BIN)/pytest -n 2 --dist worksteal

slow: $(VENV)/.test
	$(BIN)/pytest -n 2 --dist worksteal -m "slow and not network"

# The default tests with the lowest versions that pyproject.toml declares, on the lowest Python.
test-oldest: $(OLDEST)/.test
	$(OLDEST)/bin/python .ci/minima.py
	$(OLDEST)/bin/pytest -n 2 --dist worksteal

# FUZZ cases of each kind; seeds of the day, so that every day tries others, or from SEED on.
FUZZ ?= 1000
SEED ?= $(shell date +%Y%m%d)0000
fuzz: $(VENV)/.test
	$(BIN)/python -W ignore -m tests.fuzz --first $(SEED) --count $(FUZZ) --keep

benchmark: $(VENV)/.test
	$(BIN)/python -W ignore -m benchmarks --threads 1

# Reports of small datasets with planted defects, in build/gallery; `make docs` adds them to the site.
gallery: $(VENV)/.test
	$(BIN)/python -m docs.generate.gallery

# The site, in build/site: its pages need no torch, so that its environment is small.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(DOCS)/.docs
	$(DOCS)/bin/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) $(OLDEST) $(DOCS) build *.egg-info .mypy_cache .pytest_cache .ruff_cache

$(BIN)/python:
	@echo "Creating the virtual environment $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# torch first and by its pinned version: asked for through another package's range, pip would
# take the newest build with gigabytes of CUDA packages.
$(VENV)/.torch: constraints.txt | $(BIN)/python
	@echo "Installing $$(grep '^torch==' constraints.txt), the largest download: this takes minutes"
	@$(PIP) "$$(grep '^torch==' constraints.txt)"
	@touch $@

# An editable install compiles the extension, so a change of its source installs again.
BUILT_FROM = pyproject.toml setup.py $(wildcard offline_data/*/*.[ch] offline_data/*/*/*.[ch])

$(VENV)/.demo: $(BUILT_FROM) $(VENV)/.torch
	@echo "Installing offline-data with what the demo needs (gymnasium, pillow, h5py, …)"
	@$(PIP) --editable ".[demo]"
	@touch $@

$(VENV)/.test: $(BUILT_FROM) $(VENV)/.torch
	@echo "Installing offline-data with what its tests need: this takes minutes"
	@$(BIN)/python -m pip install --quiet "pip>=25.1" # the first with --group
	@$(PIP) --editable ".[all]" --group dev
	@touch $@

# torch is as in constraints.txt; where no CPU build for Python 3.10 is at hand, pip takes one with CUDA.
$(OLDEST)/.test: $(BUILT_FROM) constraints.txt
	$(OLDEST_PYTHON) -m venv --clear $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet uv
	$(OLDEST)/bin/uv pip install --quiet --python $(OLDEST)/bin/python --resolution lowest-direct \
		--constraint constraints.txt --editable ".[all]" --group dev
	@touch $@

$(DOCS)/.docs: pyproject.toml
	$(PYTHON) -m venv --clear $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet uv
	$(DOCS)/bin/uv pip install --quiet --python $(DOCS)/bin/python --group docs
	@touch $@
