# Two commands do everything: `make demo` to see it work, `make test` to prove it does.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --constraint constraints.txt

.PHONY: demo test lint types unit slow fuzz benchmark clean

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
unit slow: export PYTHONDONTWRITEBYTECODE =

unit: $(VENV)/.test
	$(BIN)/pytest -n 2

slow: $(VENV)/.test
	$(BIN)/pytest -m "slow and not network"

# FUZZ cases of each kind; seeds of the day, so that every day tries others, or from SEED on.
FUZZ ?= 1000
SEED ?= $(shell date +%Y%m%d)0000
fuzz: $(VENV)/.test
	$(BIN)/python -W ignore -m tests.fuzz --first $(SEED) --count $(FUZZ) --keep

benchmark: $(VENV)/.test
	$(BIN)/python -W ignore -m benchmarks --threads 1

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch first and by its pinned version: asked for through another package's range, pip would
# take the newest build with gigabytes of CUDA packages.
$(VENV)/.torch: constraints.txt | $(BIN)/python
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	@touch $@

# An editable install compiles the extension, so a change of its source installs again.
BUILT_FROM = pyproject.toml setup.py $(wildcard offline_data/buffers/*.[ch] offline_data/buffers/*/*.[ch])

$(VENV)/.demo: $(BUILT_FROM) $(VENV)/.torch
	$(PIP) --editable ".[demo]"
	@touch $@

$(VENV)/.test: $(BUILT_FROM) $(VENV)/.torch
	$(PIP) --editable ".[test]"
	@touch $@
