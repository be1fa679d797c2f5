# Everything a newcomer needs: `make run`, then `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ORACLE_STAMP := $(VENV)/.installed-jax
TORCH_VENV := .venv-torch
TORCH_STAMP := $(TORCH_VENV)/.installed
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)

.PHONY: help install run lint types test test-slow test-random mutation faults campaigns soak test-oracle test-torch test-mpi conformance golden reference man clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("python 3.11 or newer is needed, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) 2>/dev/null \
	  || { $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) .ci/bootstrap_pip.py $(BIN)/python; }
	$(BIN)/python -m pip --disable-pip-version-check install --quiet --editable '.[dev]'
	@$(BIN)/python -m compileall -q ncc_runtime ncc_compiler # as pip does with what it copies
	@touch $@

install: $(STAMP) ## create .venv and install both commands into it

MODEL := tests/data/hlo/mlp_train_dp2_tp4

run: $(STAMP) ## compile a real model, place it on trn2, run it, show what happened
	@mkdir -p build
	$(BIN)/nccc compile $(MODEL).hlo -o build/mlp.neff
	$(BIN)/nccrt run build/mlp.neff --topology trn2 --inputs $(MODEL).in.npz --outputs build/mlp.out.npz
	$(BIN)/nccrt list build/mlp.neff --topology trn2 --queue cc0.dma0 | head -n 16

lint: $(STAMP) ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## strict mypy
	$(BIN)/mypy

test: lint types ## lint, types and the whole quick test suite
	$(BIN)/python -m pytest -n $(WORKERS) -q -m "not slow and not oracle and not conformance and not torch and not mpi"

test-slow: $(STAMP) ## the tests behind the marker `slow`, and all examples of the property tests
	$(BIN)/python -m pytest -n $(WORKERS) -q -m slow
	$(BIN)/python -m pytest -n $(WORKERS) -q -m "hypothesis and not slow and not oracle and not conformance and not torch and not mpi" --hypothesis-profile=many

test-random: $(STAMP) ## the property tests, quick and slow, with examples that were not tried before
	$(BIN)/python -m pytest -n $(WORKERS) -q -m "hypothesis and not oracle" --hypothesis-profile=random

mutation: $(STAMP) ## kill rates of the proofs, by kind of mutation; takes some minutes
	$(BIN)/python -m tests.mutation

faults: $(STAMP) ## 10,000 random faults on random programs and places; takes about half an hour
	$(BIN)/python -m tests.faults.agreement 10000

campaigns: $(STAMP) ## every lost completion and dead rank of five algorithms on 16 and 64 ranks; 13 minutes of a processor
	$(BIN)/python benchmarks/campaigns.py

soak: $(STAMP) ## ten minutes of repeated runs, which must grow by nothing
	$(BIN)/python benchmarks/soak.py

$(ORACLE_STAMP): $(STAMP)
	$(BIN)/python -m pip --disable-pip-version-check install --quiet --editable '.[dev,jax,models]'
	@touch $@

test-oracle: $(ORACLE_STAMP) ## the tests against XLA; installs the extra `jax`
	$(BIN)/python -m pytest -n $(WORKERS) -q -m oracle tests/oracle
	$(BIN)/python -m pytest -q tests/test_docs.py -k jax.md

# an environment of its own: torch and what it brings take 7 GB, which no other target needs
$(TORCH_STAMP): pyproject.toml
	@$(PYTHON) -m venv --clear $(TORCH_VENV) 2>/dev/null \
	  || { $(PYTHON) -m venv --clear --without-pip $(TORCH_VENV) && $(PYTHON) .ci/bootstrap_pip.py $(TORCH_VENV)/bin/python; }
	$(TORCH_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --editable '.[dev,torch]' 'transformers>=5'
	@touch $@

test-torch: $(TORCH_STAMP) ## the tests against torch; installs the extra `torch` into .venv-torch
	$(TORCH_VENV)/bin/python -m pytest -q -m torch tests/torch

MPI_STAMP := $(VENV)/.installed-mpi
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

# mpi4py is loaded against the launcher's own library, so that comes first
$(MPI_STAMP): $(STAMP)
	@command -v mpirun >/dev/null 2>&1 || { $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq openmpi-bin libopenmpi-dev >/dev/null; }
	$(BIN)/python -m pip --disable-pip-version-check install --quiet --editable '.[dev,mpi]'
	@touch $@

test-mpi: $(MPI_STAMP) ## the tests of runs in several processes; installs Open MPI and the extra `mpi`
	$(BIN)/python -m pytest -q -m mpi tests/mpi

conformance: $(ORACLE_STAMP) ## small programs with the values they must give; installs the extra `jax`
	$(BIN)/python -m pytest -n $(WORKERS) -q -m conformance tests/conformance

golden: $(STAMP) ## rewrite the expected outputs; read the diff before you commit it
	$(BIN)/python -m pytest -q tests/test_golden.py tests/test_docs.py --update-golden

reference: $(STAMP) ## docs/reference.md, docs/commands.md and man pages, from docstrings and help texts
	$(BIN)/python -m tools.reference

man: reference ## the same; pip install puts the pages into share/man

clean: ## remove the environment and caches
	rm -rf $(VENV) $(TORCH_VENV) .mypy_cache .ruff_cache build dist
