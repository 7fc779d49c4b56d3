# make demo   set everything up and run the main job: profile, plan, launch, measure, refit
# make test   set everything up and run all tests
# Needs Python 3.11 or newer, gcc and make; everything else goes into .venv.

SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
KERNELS := $(VENV)/.kernels
WORKERS ?= auto

# The first of these that is new enough; make PYTHON=/path/to/python3 chooses another.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

INSTALL_INPUTS := pyproject.toml setup.py packaging/install.sh \
	$(wildcard requirements/*.txt packaging/absent/*/pyproject.toml)
KERNEL_SOURCES := $(shell find kernels -name "*.pyx" -o -name "*.pxd" -o -name "*.h")

.PHONY: help demo test test-unit test-all asan venv check format docs clean distclean FORCE

help: ## say what the targets do
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 20

demo: venv ## run the main job on this machine: profile, plan, launch, measure, refit, re-plan (some ten minutes)
	$(BIN)/python -m benchmarks.loop

test: test-unit test-all ## run all tests: the unit suite, then the slow ones and those with real workers

test-unit: venv ## run the unit suite (under two minutes)
	$(BIN)/python -m pytest -n $(WORKERS)

test-all: venv ## run the slow tests and those with real workers, one after the other
	$(BIN)/python -m pytest -m "slow or runtime or gpu"

asan: venv ## run the tests of the kernels with AddressSanitizer (builds them into build/asan)
	packaging/asan.sh $(abspath $(BIN))/python tests/unit/search/test_kernels.py tests/unit/search/test_plan_anneal.py tests/unit/search/test_orders.py

check: venv ## run ruff and mypy
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

format: venv ## format the code and repair what ruff can
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

docs: venv ## build the documentation into build/site/
	$(BIN)/python -m mkdocs build --strict

# The editable install compiles the kernels; after that only those that changed are compiled again.
venv: $(STAMP) ## make .venv with everything in it; does nothing when it is up to date
	@if ! test -e $(KERNELS) || test -n "$$(find $(KERNEL_SOURCES) -newer $(KERNELS))"; then \
		touch $(KERNELS).new && $(BIN)/python setup.py --quiet build_ext --inplace && mv $(KERNELS).new $(KERNELS); fi

# A virtual environment belongs to one place: when the checkout moved, it is installed again.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
$(STAMP): FORCE
endif
$(STAMP): $(INSTALL_INPUTS)
	@test -n "$(PYTHON)" || { echo "hetrl needs Python 3.11 or newer: install it, or name one with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "hetrl needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)" >&2; exit 1; }
	@test "$$(cat $@ 2>/dev/null || echo $(CURDIR))" = "$(CURDIR)" && \
		$(BIN)/python -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		$(PYTHON) -m venv --clear $(VENV) || { \
		echo "python's venv module failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	packaging/install.sh $(VENV)
	@touch $(KERNELS)
	@echo "$(CURDIR)" > $@

clean: ## remove what builds and tools leave, but not .venv
	rm -rf build dist site *.egg-info packaging/absent/*/*.egg-info packaging/absent/*/build
	rm -rf .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find kernels -name '*.so' -delete
	find hetrl kernels profiler tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	rm -f $(KERNELS)

distclean: clean ## remove .venv as well
	rm -rf $(VENV)
