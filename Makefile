# Everything a newcomer needs: `make run`, then `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ORACLE_STAMP := $(VENV)/.installed-jax
DOCS_STAMP := $(VENV)/.installed-docs
SITE := build/docs/html
CHAKRA_STAMP := $(VENV)/.installed-chakra
DASK_STAMP := $(VENV)/.installed-dask
BROWSER_STAMP := $(VENV)/.installed-browser
MPI_STAMP := $(VENV)/.installed-mpi
TORCH_VENV := .venv-torch
TORCH_STAMP := $(TORCH_VENV)/.installed
# tests that need no more than `make install` gives
HERE := not oracle and not conformance and not torch and not chakra and not dask and not browser and not site and not mpi
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)

.PHONY: help install run lint types test test-slow test-random mutation faults campaigns soak test-dask test-oracle test-torch test-chakra test-browser test-mpi conformance docs test-site golden reference man pictures clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

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
	$(BIN)/python -m pytest -n $(WORKERS) -q -m "not slow and $(HERE)"

$(DASK_STAMP): $(STAMP)
	$(BIN)/python -m pip --disable-pip-version-check install --quiet --editable '.[dev,dask]'
	@touch $@

test-dask: $(DASK_STAMP) ## the tests with a Dask cluster, which they start; installs the extra `dask`
	$(BIN)/python -m pytest -q -m dask tests/sweep

test-slow: $(STAMP) ## the tests behind the marker `slow`, and all examples of the property tests
	$(BIN)/python -m pytest -n $(WORKERS) -q -m slow
	$(BIN)/python -m pytest -n $(WORKERS) -q -m "hypothesis and not slow and $(HERE)" --hypothesis-profile=many

test-random: $(STAMP) ## the property tests, quick and slow, with examples that were not tried before
	$(BIN)/python -m pytest -n $(WORKERS) -q -m "hypothesis and $(HERE)" --hypothesis-profile=random

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
	$(BIN)/python -m pytest -n $(WORKERS) -q -m oracle tests/oracle tests/test_docs.py

# an environment of its own: torch and what it brings take 7 GB, which no other target needs
$(TORCH_STAMP): pyproject.toml
	@$(PYTHON) -m venv --clear $(TORCH_VENV) 2>/dev/null \
	  || { $(PYTHON) -m venv --clear --without-pip $(TORCH_VENV) && $(PYTHON) .ci/bootstrap_pip.py $(TORCH_VENV)/bin/python; }
	$(TORCH_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --editable '.[dev,torch]' 'transformers>=5'
	@touch $@

test-torch: $(TORCH_STAMP) ## the tests against torch; installs the extra `torch` into .venv-torch
	$(TORCH_VENV)/bin/python -m pytest -q -m torch tests/torch

# without what only its reader of PyTorch's profiles needs, which is Jupyter and half a gigabyte
$(CHAKRA_STAMP): $(STAMP)
	$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps 'mlc-chakra==1.0.0' graphviz
	@touch $@

test-chakra: $(CHAKRA_STAMP) ## execution traces and MLCommons' own tools; installs mlc-chakra
	$(BIN)/python -m pytest -q -m chakra tests/chakra/tools

$(BROWSER_STAMP): $(STAMP)
	$(BIN)/python -m pip --disable-pip-version-check install --quiet --editable '.[dev,browser]'
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq chromium; } \
	  || { echo 'error: the tests in a browser need chromium: apt-get install chromium' >&2; exit 1; }
	@touch $@

test-browser: $(BROWSER_STAMP) ## the page of nccrt report in chromium; installs it (as root) and the extra `browser`
	$(BIN)/python -m pytest -q -m browser tests/browser

pictures: $(BROWSER_STAMP) ## docs/images/report*.png, as chromium shows a report
	$(BIN)/python -m tools.report_picture
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

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip --disable-pip-version-check install --quiet --editable '.[dev,docs,jax]'
	@touch $@

docs: $(DOCS_STAMP) ## build/docs/html, the site of docs/: examples executed, pictures made, links checked
	$(BIN)/python -m pytest -n $(WORKERS) -q tests/test_docs.py --pictures
	@rm -rf $(SITE) # pages that are gone would stay
	$(BIN)/sphinx-build -W --keep-going -n -q -b html docs $(SITE)
	@echo "$(SITE)/index.html"

test-site: docs $(BROWSER_STAMP) ## the site in chromium, from disk and without a network; installs what test-browser does
	$(BIN)/python -m pytest -q -m site tests/site

golden: $(STAMP) ## rewrite the expected outputs; read the diff before you commit it
	$(BIN)/python -m pytest -q tests/test_golden.py tests/test_docs.py --update-golden

reference: $(STAMP) ## docs/commands.md and man pages, from help texts
	$(BIN)/python -m tools.reference

man: reference ## the same; pip install puts the pages into share/man

clean: ## remove the environment and caches
	rm -rf $(VENV) $(TORCH_VENV) .mypy_cache .ruff_cache build dist
