# The two commands are `make demo` and `make test`. Each first makes .venv and installs what is pinned in
# requirements/, again whenever that changes.
#   PYTHON=python3.12     the Python that .venv is made with (3.11 or later: what is pinned needs it)
#   PIP_ARGS="..."        passed to every pip install, for instance an index with another build of torch
PYTHON ?= python3
PIP_ARGS ?=

BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS)
# What an editable install is made from; Python files are not among it, they are read where they are.
SOURCES := pyproject.toml $(wildcard setup.py src/outpace/kernels/csrc/*)

.PHONY: demo test lint format audit bench docs peers clean

demo: .venv/run.stamp
	$(BIN)/python -m outpace.demo

test: lint
	$(BIN)/python -m pytest

lint: .venv/dev.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: .venv/dev.stamp
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# The slow tests, then the whole audit of the tiny pair (2,000 soak cases) and, where it has been pulled, of a real model
# that its own rounded weights draft for.
audit: .venv/dev.stamp
	$(BIN)/python -m pytest -m audit
	$(BIN)/outpace audit
	@if $(BIN)/outpace models path smollm2-135m >/dev/null 2>&1; then set -x; \
	  $(BIN)/outpace audit --only equality --only statistical --target smollm2-135m --weights f32 \
	    --draft smollm2-135m --draft-weights q4; fi

bench: .venv/run.stamp
	$(BIN)/outpace generate "Write a Python class for a least-recently-used cache." --compare --repeat 5

docs: .venv/dev.stamp
	$(BIN)/python -m pytest tests/test_docs.py

# Other engines for `outpace audit --engine NAME`, each in an environment of its own. One that cannot be installed says
# why, and the others go on.
PEERS ?= $(patsubst requirements/peers/%.txt,%,$(wildcard requirements/peers/*.txt))

peers:
	@mkdir -p .peers; for name in $(PEERS); do \
	  pins=requirements/peers/$$name.txt; \
	  if [ .peers/$$name/peer.stamp -nt $$pins ]; then echo "$$name: ready"; continue; fi; \
	  echo "$$name: installing what $$pins pins"; \
	  if { $(PYTHON) -m venv .peers/$$name && .peers/$$name/bin/python -m pip install --quiet \
	    --disable-pip-version-check $(PIP_ARGS) -r $$pins; } >.peers/$$name.log 2>&1; \
	  then touch .peers/$$name/peer.stamp; echo "$$name: ready"; \
	  else echo "$$name: could not be installed; .peers/$$name.log ends with:"; tail -n 3 .peers/$$name.log; fi; \
	done

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "The pinned packages need Python 3.11 or later; name one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || \
	  { echo "$(PYTHON) cannot make virtual environments: install the package python3-venv (Debian, Ubuntu)," \
	    "or name another Python: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/run.stamp: requirements/run.txt $(SOURCES) | $(BIN)/python
	@echo "Installing what requirements/run.txt pins (a minute or two the first time)"
	$(INSTALL) -r requirements/run.txt
	$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

.venv/dev.stamp: requirements/dev.txt .venv/run.stamp
	@echo "Installing what requirements/dev.txt pins"
	$(INSTALL) -r requirements/dev.txt
	@touch $@
