# Everything a contributor runs, from a fresh clone: each target makes what it needs first.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip --disable-pip-version-check
USER_STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
CODE := proxy tests grafana docs
# The real-SGLang suite is left out of `make test` (pyproject.toml); here it is the only one, and slow.
SGLANG_PYTEST := -o addopts="-ra --strict-markers --strict-config --import-mode=importlib" --timeout=900 --durations=10
BENCH ?= all
MINUTES ?= 30

.DEFAULT_GOAL := help
.PHONY: help demo test test-sglang test-deploy docs bench bench-overhead fuzz soak lint format clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(USER_STAMP) ## Replay the 186,624-token story, directly and through the proxy (no GPU, two minutes)
	$(RUN) -m proxy demo

test: $(DEV_STAMP) ## Run the tests: unit, property, scenario, end to end on real sockets
	$(RUN) -m pytest

test-sglang: $(DEV_STAMP) ## Run the end-to-end suite against a real SGLang on the CPU (3 GB, installed once)
	$(RUN) -m tests.sglang.install
	$(RUN) -m pytest tests/sglang $(SGLANG_PYTEST)

test-deploy: $(DEV_STAMP) ## Let hadolint, kubectl, helm and the schemas judge deploy/ (200 MB of tools, fetched once)
	$(PIP) install --quiet --group deploy
	$(RUN) -m tests.deploy.install
	$(RUN) -m pytest tests/deploy

docs: $(DEV_STAMP) ## Build the documentation as a site into site/; a dead link is an error
	$(PIP) install --quiet --group docs
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --quiet --strict --config-file docs/mkdocs/mkdocs.yml
	$(RUN) -m pytest --quiet tests/operations/test_site.py
	@echo "site/index.html"

bench: $(DEV_STAMP) ## Full-size loads on a real SGLang, direct against proxied (BENCH=story, BENCH='true-speed --rivals' ...)
	$(RUN) -m tests.sglang.install
	$(RUN) -m tests.load.compare $(BENCH)

bench-overhead: $(DEV_STAMP) ## What the proxy costs against a fast engine, direct and proxied in turns (seven minutes)
	$(RUN) -m tests.bench.overhead

fuzz: $(DEV_STAMP) ## Send the proxy 50,000 mutated requests: none may break it (two minutes)
	$(RUN) -m tests.fuzz

soak: $(DEV_STAMP) ## Half an hour of mixed load with random faults on a real SGLang (MINUTES=30)
	$(RUN) -m tests.sglang.install
	$(RUN) -m tests.soak --minutes $(MINUTES)

lint: $(DEV_STAMP) ## Check style and types
	$(RUN) -m ruff check $(CODE)
	$(RUN) -m ruff format --check $(CODE)
	$(RUN) -m mypy

format: $(DEV_STAMP) ## Put the code into its form
	$(RUN) -m ruff check --fix $(CODE)
	$(RUN) -m ruff format $(CODE)

clean: ## Remove all that these targets made, the installed SGLang included
	rm -rf $(VENV) .cache out site build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUN):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

$(USER_STAMP): pyproject.toml | $(RUN)
	@echo "Installing the proxy into $(VENV) ..."
	$(PIP) install --quiet --editable '.[demo]'
	@touch $@

$(DEV_STAMP): pyproject.toml | $(RUN)
	@echo "Installing the proxy and its development tools into $(VENV) ..."
	$(PIP) install --quiet --upgrade 'pip>=25.1'  # the first that knows --group
	$(PIP) install --quiet --editable '.[demo]' --group dev
	@touch $@ $(USER_STAMP)
