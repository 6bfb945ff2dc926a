# Every target sets up its own environment in .venv; nothing else is needed but Python and make.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-attack lint format clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | column -t -s '	'

demo: .venv/train.stamp  ## compare real, quaternion and PH networks on the embedded digits
	$(BIN)/phnn compare digits --out demo
	$(BIN)/phnn report demo

test: lint .venv/dev.stamp  ## linters, types, import contracts, tests
	$(BIN)/pytest -n auto

test-slow: .venv/dev.stamp  ## what takes longer than a few seconds: the full model matrix, inductor
	$(BIN)/pytest -n auto -m slow

test-attack: .venv/dev.stamp  ## kills, hostile files, random models: a sample; FULL=1 for all of them
	PYTHONPATH=tests nice -n 5 $(BIN)/python -m attack $(if $(FULL),--full)

lint: .venv/dev.stamp  ## linters, types and import contracts alone
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/dev.stamp  ## write the code the way `make lint` wants it
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:  ## remove the environment and every cache
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.venv/%.stamp: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	touch $@
