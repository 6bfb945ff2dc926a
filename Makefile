# Every target sets up its own environment in .venv; nothing else is needed but Python and make.
PYTHON ?= python3
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-attack lint claims format docs docs-links dist clean
SPHINX := $(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -c docs -d build/site-state

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | column -t -s '	'

DEMO := $(BIN)/phnn
demo: .venv/train,export.stamp  ## train a real and a PH network, shrink the real one, ship both, report
	@echo "1. Train a real network and a PH network with a quarter of its parameters (two minutes or more)."
	$(DEMO) compare demo --out demo
	@echo "2. Shrink the trained real network to 30 %, without training."
	$(DEMO) convert demo/runs/demo-real-seed0 --budget 0.3 --calibration training --samples 256 --refine 1 -o demo/shrunk.safetensors
	@echo "3. Ship both trained networks as programs that need neither phnn nor torch."
	$(DEMO) export demo/runs/demo-real-seed0 -o demo/real.onnx
	$(DEMO) export demo/runs/demo-n=4-seed0 --storage int8 -o demo/ph.onnx
	@echo "4. Report: what came out, what the networks learned, the shrunk and shipped ones."
	$(DEMO) report demo
	@echo "Open demo/report.html in a browser."

test: lint claims .venv/dev.stamp  ## linters, types, import contracts, claims, tests
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

claims:  ## the numbers on README and the pages are those of the result files
	$(PYTHON) tools/claims.py

format: .venv/dev.stamp  ## write the code the way `make lint` wants it
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: .venv/docs.stamp  ## build the documentation site in build/site; executes the notebooks
	$(SPHINX) -b html . build/site
	@echo "open build/site/index.html"

docs-links: .venv/docs.stamp  ## ask the servers of all external links in the documentation
	$(SPHINX) -b linkcheck . build/links

dist: .venv/dev.stamp  ## build the source archive and the wheel in dist
	rm -rf dist
	$(BIN)/python -m build

clean:  ## remove the environment and every cache
	rm -rf .venv build dist docs/api .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.venv/%.stamp: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	touch $@
