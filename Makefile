# `make` lists the targets. Each one sets up .venv by itself when it is missing or out of date.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RIVALS := .venv-rivals
PIP = $(@D)/bin/python -m pip --disable-pip-version-check --quiet --quiet
WORKERS ?= 2
CASES ?= 10000
SEED ?= 0

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL: # two pips must not write to one environment at once
.PHONY: help venv rivals demo test test-slow test-rivals lint format benchmark docs clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s  %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- the environment: one .venv, one stamp per extra -------------------------------------------

$(VENV)/.created $(RIVALS)/.created:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "error: '$(PYTHON)' not found; give Python 3.11 or newer: make PYTHON=/path/to/python ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: proxlin needs Python 3.11 or newer, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1);" \
	  "choose another one: make PYTHON=python3.11 ..." >&2; exit 1; }
	@echo "creating $(@D) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(@D)
	@touch $@

$(VENV)/.installed-bench: pyproject.toml | $(VENV)/.created
	@echo "installing proxlin[bench]"
	@$(PIP) install --editable ".[bench]"
	@touch $@

# test includes bench, so it sets both stamps
$(VENV)/.installed-test: pyproject.toml | $(VENV)/.created
	@echo "installing proxlin[test]"
	@$(PIP) install --editable ".[test]"
	@touch $(VENV)/.installed-bench $@

$(VENV)/.installed-docs: pyproject.toml | $(VENV)/.created
	@echo "installing proxlin[docs]"
	@$(PIP) install --editable ".[docs]"
	@touch $@

# kfac-jax 0.0.8 does not work with JAX 0.10, so it has its own environment, with pytest for
# test-rivals.
$(RIVALS)/.installed: pyproject.toml | $(RIVALS)/.created
	@echo "installing proxlin[bench,rivals] with JAX 0.9.1"
	@$(PIP) install --editable ".[bench,rivals]" "jax==0.9.1" "jaxlib==0.9.1" "pytest>=9"
	@touch $@

venv: $(VENV)/.installed-test $(VENV)/.installed-docs ## set up .venv with everything

rivals: $(RIVALS)/.installed ## set up .venv-rivals, for KFAC

# ---- use ---------------------------------------------------------------------------------------

demo: $(VENV)/.installed-bench ## train on a small problem and compare, in a minute
	@$(BIN)/proxlin demo

benchmark: $(VENV)/.installed-bench ## speed of the directions, as ratios to a gradient
	@$(BIN)/python benchmarks/directions.py

# ---- checks ------------------------------------------------------------------------------------

# Python code besides src/, if it exists.
CODE := src $(wildcard tests docs/*.py benchmarks examples)
TEXT := $(CODE) $(wildcard *.md docs/*.md docs/*/*.md results/*.md)

lint: $(VENV)/.installed-test ## style (ruff), types (mypy), spelling (codespell)
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/mypy
	@$(BIN)/codespell $(TEXT)

format: $(VENV)/.installed-test ## rewrite the code in the house style
	@$(BIN)/ruff check --fix-only --quiet $(CODE)
	@$(BIN)/ruff format $(CODE)

# Each worker starts with neighboring tests, which share compiled programs, and helps others at the end.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# Doctests run separately: tests/conftest.py turns on double precision, docstrings use the default.
test: lint ## lint, then all fast tests and the doctests
	@$(PYTEST) -m "not slow" tests
	@$(PYTEST) --doctest-modules src

test-slow: $(VENV)/.installed-test ## the tests marked slow, and ten thousand directions
	@$(PYTEST) -m slow tests
	@$(BIN)/python -m tests.hunt --cases $(CASES) --seed $(SEED)

# Without tests/conftest.py, because kfac-jax promotes dtypes; it also uses what JAX deprecates.
test-rivals: $(RIVALS)/.installed ## the tests of the adapter to kfac-jax
	@$(RIVALS)/bin/python -m pytest -W ignore::DeprecationWarning --confcutdir tests/rivals tests/rivals

# ---- documentation -----------------------------------------------------------------------------

docs: $(VENV)/.installed-docs ## build docs/_build/html; it works without a network
	@rm -rf docs/_build docs/gallery
	@$(BIN)/python -m sphinx -W --keep-going -q -b html -d docs/_build/doctrees docs docs/_build/html
	@$(BIN)/python docs/check_offline.py docs/_build/html

# ---- cleaning ----------------------------------------------------------------------------------

clean: ## remove builds and caches, keep the environments
	@rm -rf build dist docs/_build docs/gallery .mypy_cache .ruff_cache .pytest_cache .hypothesis
	@find . -path "./$(VENV)*" -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean ## remove .venv and .venv-rivals too
	@rm -rf $(VENV) $(RIVALS)
