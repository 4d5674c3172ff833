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

.PHONY: demo test test-slim lint format audit bench bench-kernels bench-check docs peers clean

demo: .venv/run.stamp
	$(BIN)/python -m outpace.demo

test: lint
	$(BIN)/python -m pytest -n logical --dist loadfile

# A part of the suite in an environment without torch: the files that need it are left out. TESTS="tests/cli ..." chooses.
TESTS ?= tests/verify tests/engine/test_stream.py tests/cli/test_generate.py tests/test_without_torch.py
test-slim: .venv-slim/test.stamp
	.venv-slim/bin/python -m pytest -n logical --dist loadfile $(TESTS)

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

# The built-in prompts, plain and speculative in turns; BENCH="--limit 1 --peers llama_cpp" passes options on. A report
# and every run lie in build/bench afterwards.
bench: .venv/run.stamp
	@mkdir -p build/bench
	$(BIN)/python -m outpace bench --json build/bench/bench.json --html build/bench/bench.html $(BENCH)

# What passes cost on the real pair and what drafting brings, against the bars; the figures go into docs/results/.
bench-kernels: .venv/run.stamp
	$(BIN)/python -m outpace.bench.kernels --results docs/results/kernels.json $(BENCH)

# What got slower than the noise since another commit: make bench-check OLD=main
OLD ?= HEAD
bench-check: .venv/run.stamp
	$(BIN)/python -m outpace.bench.check $(OLD) $(NEW) $(BENCH)

# Writes the generated blocks of the pages anew, checks the pages' examples and links, and builds the site into
# build/site; any warning is an error.
docs: .venv/docs.stamp
	$(BIN)/python runs/generate_docs.py
	$(BIN)/python -m pytest tests/test_docs.py
	$(BIN)/python -m mkdocs build --strict --quiet --site-dir build/site
	@echo "The site is in build/site; $(BIN)/python -m mkdocs serve shows it while you write."

# Other engines for `outpace audit --engine NAME`, each in an environment of its own. One that cannot be installed says
# why, and the others go on.
PEERS ?= $(patsubst requirements/peers/%.txt,%,$(wildcard requirements/peers/*.txt))

peers:
	@mkdir -p .peers; for name in $(PEERS); do \
	  pins=requirements/peers/$$name.txt; \
	  if [ .peers/$$name/peer.stamp -nt $$pins ]; then echo "$$name: ready"; continue; fi; \
	  echo "$$name: installing what $$pins pins"; \
	  if { $(PYTHON) -m venv .peers/$$name && .peers/$$name/bin/python -m pip install --quiet \
	    --disable-pip-version-check $(PIP_ARGS) -r $$pins && { \
	    without=$$(sed -n 's/^# without: //p' $$pins); [ -z "$$without" ] || \
	    .peers/$$name/bin/python -m pip uninstall --quiet --yes $$without; }; } >.peers/$$name.log 2>&1; \
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

.venv-slim/test.stamp: requirements/run.txt requirements/dev.txt $(SOURCES)
	@echo "Making .venv-slim, which has no torch"
	$(PYTHON) -m venv .venv-slim
	.venv-slim/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -r requirements/run.txt \
	  -c requirements/dev.txt pytest pytest-xdist hypothesis openai httpx jsonschema_rs safetensors
	.venv-slim/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.venv/docs.stamp: requirements/docs.txt .venv/dev.stamp
	@echo "Installing what requirements/docs.txt pins"
	$(INSTALL) -r requirements/docs.txt
	@touch $@

.venv/dev.stamp: requirements/dev.txt .venv/run.stamp
	@echo "Installing what requirements/dev.txt pins"
	$(INSTALL) -r requirements/dev.txt
	@touch $@
