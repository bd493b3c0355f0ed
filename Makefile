# Commands for people and CI. All use .venv, which tools/bootstrap builds from the lock files.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help up down test test-infra infra-cost kube check bench format lock clean audit sbom

PYTHON := .venv/bin/python
CODE := src tests bench examples
ARGS ?=
# Three workers on two cores: tests wait for processes a third of their time.
WORKERS ?= 3

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s%s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

up: ## Start the whole system on this machine and test it with a first dev server (ARGS="--timeout 600")
	@tools/bootstrap server
	@./gpu-dev up $(ARGS)
	@SSH_ONLY=1 tools/with-test-tools $(PYTHON) tools/first-server

down: ## Stop the system; its data stays
	@tools/bootstrap server
	@./gpu-dev down

test: ## Set everything up and run all tests (ARGS="tests/integration/system -k supervisor")
	@tools/bootstrap dev
	@tools/with-test-tools tools/run-tests -n $(WORKERS) --dist worksteal $(ARGS)

test-infra: ## Test infra/ with real providers and a local AWS; builds them first (an hour, once)
	@tools/bootstrap dev
	@$(PYTHON) tests/support/deploy/opentofu_programs.py all >/dev/null
	@GPU_DEV_TEST_INFRA=1 tools/with-test-tools $(PYTHON) -m pytest -rs tests/*/deploy/test_infra_*.py tests/unit/cluster/test_node_commands.py $(ARGS)

infra-cost: ## Print the hourly cost of the environments of infra/
	@tools/bootstrap dev
	@$(PYTHON) tools/infra-cost

kube: ## Build the Kubernetes binaries for the tests (10 minutes, once per machine)
	@tools/bootstrap dev
	@$(PYTHON) tests/support/builds.py

check: ## Format, lint, strict types, layers and the fast tests
	@tools/bootstrap dev
	$(PYTHON) -m ruff format --check $(CODE)
	$(PYTHON) -m ruff check $(CODE)
	$(PYTHON) -m mypy
	.venv/bin/lint-imports
	@tools/with-test-tools $(PYTHON) -m pytest -n 2 -q -m "not slow" $(ARGS)

bench: ## Run the benchmarks (ONLY=name for one)
	@tools/bootstrap dev
	@$(PYTHON) -m bench $(ONLY)

format: ## Format the code
	@tools/bootstrap dev
	$(PYTHON) -m ruff format $(CODE)
	$(PYTHON) -m ruff check --fix $(CODE)

lock: ## Lock the newest allowed versions of all packages
	@tools/bootstrap dev
	@tools/lock

audit: ## Check every locked package for known vulnerabilities (exit code 2: not checked)
	@tools/bootstrap dev
	@$(PYTHON) tools/packages audit

sbom: ## Write the server's components to build/sbom.cdx.json (CycloneDX)
	@tools/bootstrap dev
	@mkdir -p build
	@$(PYTHON) tools/packages sbom >build/sbom.cdx.json
	@echo build/sbom.cdx.json

clean: ## Remove all build outputs
	rm -rf .venv .venv.lock .venv.lock.d build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
