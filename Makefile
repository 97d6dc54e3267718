.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help study ablation test test-slow lint format clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml
	@echo "setting up $(VENV) (once; torch is large)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

study: $(READY) ## Train CL²R and ER on the embedded icons, show both rows (minutes)
	@$(BIN)/python studies/ablation.py --cells er cl2r --seeds 0

ablation: $(READY) ## All six ablation cells, three seeds (the README's table)
	@$(BIN)/python studies/ablation.py --seeds 0 1 2

test: $(READY) ## Run the test suite
	@$(BIN)/python -m pytest -m "not slow"

test-slow: $(READY) ## Run the long checks (minutes)
	@$(BIN)/python -m pytest -m slow

lint: $(READY) ## Style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(READY) ## Let ruff rewrite what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean: ## Remove the virtual environment and caches; results stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
