.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready-run
DEV := $(VENV)/.ready-dev
# An index that has torch without CUDA. It is used for torch and torchvision only, when $(VENV) is made.
CPU_INDEX := https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
SIZES := about 3.4 GB to download and 7 GB on disk (2.4 and 4.3 of it are CUDA; TORCH_INDEX=$(CPU_INDEX) leaves it out)
ifneq ($(TORCH_INDEX),)
SIZES := without CUDA about 0.6 GB to download and 2.3 GB on disk
endif
# 8 of the preset's 20 epochs: two cores are done in six minutes.
SHORT := --set optim.epochs=8 --set 'optim.milestones=[5,7]'
SMALL_STUDY := tests/studies/test_ablation.py
HALF := --set optim.epochs=10 --set 'optim.milestones=[7,9]'
BROWSERS := chromium chromium-browser google-chrome google-chrome-stable

.PHONY: help study ablation methods report browser bench-methods bench-losses bench-fsck bench-ray bench-pairs bench-recall bench-decoding bench-report bench-search bench-speed bench-peak bench-tricks bench-scaling search soak record same test test-ray test-slow lint audit format dist clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# An older checkout has $(VENV)/.ready and every package; both rules then only find that nothing is missing.
$(READY): pyproject.toml
	@echo "setting up $(VENV), once: $(SIZES), a few minutes"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
ifneq ($(TORCH_INDEX),)
	@.ci/install $(VENV) --index-url $(TORCH_INDEX) 'torch>=2.6,<3' 'torchvision>=0.21,<1'
endif
	@.ci/install $(VENV) --editable .
	@touch $@

$(DEV): $(READY)
	@echo "adding what tests and checks need, once: about 0.2 GB to download and 0.7 GB on disk, a minute"
	@.ci/install $(VENV) --editable '.[dev]'
	@touch $@

study: $(READY) ## The ablation study on the embedded icons: six methods, six tasks, three seeds (about 6 minutes on 2 cores)
	@$(BIN)/python studies/ablation.py $(SHORT)

ablation: $(READY) ## The same with all epochs of the preset (about 15 minutes on 2 cores)
	@$(BIN)/python studies/ablation.py

methods: $(READY) ## All methods and adapters, three seeds, half the preset's epochs (about 40 minutes on 2 cores)
	@$(BIN)/python studies/methods.py --seeds 0 1 2 $(HALF)

search: $(READY) ## Search after upgrades: ER and CL²R, three seeds, half the preset's epochs
	@$(BIN)/python studies/search.py --seeds 0 1 2 $(HALF)

report: $(READY) ## The page of the newest study below results, or of STUDY=name
	@study="$$STUDY"; \
	[ -n "$$study" ] || study="$$(ls -t results/studies/*/runs.parquet 2>/dev/null | head -n 1)"; \
	study="$${study%/runs.parquet}"; \
	$(BIN)/cl2r report $${study:+"$$study"}

bench-methods: $(DEV) ## Cost of each method relative to ER (minutes)
	@$(BIN)/python tests/benchmarks/method_cost.py

bench-losses: $(DEV) ## Share of each method's own terms in its loss (minutes)
	@$(BIN)/python -m tests.benchmarks.loss_shares --out studies/results/loss_shares

bench-fsck: $(DEV) ## Seconds and memory of `cl2r fsck` on 1, 100 and 1,000 links (a minute)
	@$(BIN)/python -m tests.benchmarks.fsck

bench-ray: $(DEV) ## Overhead of Ray per trial (minutes)
	@$(BIN)/python tests/benchmarks/ray_overhead.py

bench-pairs: $(DEV) ## Distances and TAR@FAR of IJB-C's 15.7 million pairs (a minute)
	@$(BIN)/python tests/benchmarks/tar_at_far.py

bench-recall: $(DEV) ## Seconds that recall@1 adds to the evaluation of ten tasks and 10,000 open images (seconds)
	@OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m tests.benchmarks.recall

bench-decoding: $(DEV) ## Speed of decoding large JPEGs (a minute)
	@$(BIN)/python tests/benchmarks/decoding.py

bench-report: $(DEV) ## Seconds and size of the page of 500 runs (a minute)
	@$(BIN)/python tests/benchmarks/report_page.py

bench-search: $(DEV) ## Indexes of a million vectors: build time, memory, queries per second, recall (long)
	@$(BIN)/python -m tests.benchmarks.search_scale

bench-speed: $(DEV) ## The engine compared with a plain pipeline (long)
	@$(BIN)/python -m tests.benchmarks.throughput --out studies/results/throughput

bench-peak: $(DEV) ## Share of the machine's peak that a training step reaches, and where the rest goes (minutes)
	@$(BIN)/python -m tests.benchmarks.peak --out studies/results/peak

bench-tricks: $(DEV) ## Losses and matrices with and without each trick (long)
	@$(BIN)/python -m tests.benchmarks.tricks --out studies/results/tricks

bench-scaling: $(DEV) ## Workers that share a step, trials side by side, the cost model, metrics by number of workers (long)
	@$(BIN)/python studies/scaling.py --drift --out studies/results/scaling

soak: $(DEV) ## 200 trials while processes, nodes, files and clocks are disturbed (15 minutes on 2 busy cores)
	@$(BIN)/python tests/faults/soak.py

record: $(DEV) ## Record what this tree does: tensors, keys, frames, tables, commands (4 minutes; results/record.json)
	@$(BIN)/python tests/support/record.py --out results/record.json

same: $(DEV) ## Record the commit BASE=... and this tree, and list what differs (6 minutes on 2 cores; PARTS=a,b,c,d,e)
	@test -n "$$BASE" || { echo "same: with which commit? e.g. make same BASE=516e7e5" >&2; exit 2; }
	@$(BIN)/python tests/support/record.py --same "$$BASE" $${PARTS:+--parts "$$PARTS"}

browser: ## Install Chromium for the tests of the report, if there is none and this is a Debian with root
	@for name in $(BROWSERS); do command -v $$name >/dev/null && exit 0; done; \
	without="tests in a browser will $$([ -n "$$CI" ] && echo fail || echo be skipped)"; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing chromium (once)"; \
		export DEBIAN_FRONTEND=noninteractive; \
		apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium >/dev/null \
			|| echo "chromium could not be installed: $$without"; \
	else \
		echo "no browser: install chromium (Debian: sudo apt-get install chromium), or $$without"; \
	fi

test: $(DEV) browser ## Run the tests: unit, contract, golden, resume, browser and one small study on Ray (10 minutes)
	@$(BIN)/python -m pytest -m "not slow" -n 2 --dist loadfile --ignore tests/studies --ignore tests/faults
	@$(BIN)/python -m pytest -m "not slow" $(SMALL_STUDY)

# These run alone: some of them watch how Ray's processes start side by side.
test-ray: $(DEV) browser ## Run the other studies and all faults on Ray (25 minutes)
	@$(BIN)/python -m pytest -m "not slow" tests/studies
	@$(BIN)/python -m pytest -m "not slow" tests/faults

test-slow: $(DEV) ## Run the long checks
	@$(BIN)/python -m pytest -m slow --ignore tests/faults
	@$(BIN)/python -m pytest -m slow tests/faults

lint: $(DEV) ## Check style, types and layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache >$(VENV)/layers.log || { cat $(VENV)/layers.log; exit 1; }

# --strict: without it, packages that the service does not know, or does not answer about, count as safe. The local part
# of a version (torch 2.9+cpu) is not known there, and this project is not one of its packages.
audit: $(DEV) ## Look for known vulnerabilities of installed packages (asks PyPI; fails if it gets no answer)
	@$(BIN)/python -m pip list --format freeze --exclude-editable >$(VENV)/installed.txt
	@sed 's/+.*//' $(VENV)/installed.txt >$(VENV)/audited.txt
	@grep -q == $(VENV)/audited.txt || { echo "audit: nothing is installed in $(VENV)" >&2; exit 1; }
	@$(BIN)/pip-audit --strict --no-deps --disable-pip --progress-spinner off --requirement $(VENV)/audited.txt \
		2>$(VENV)/audit.log; code=$$?; tail -n 1 $(VENV)/audit.log >&2; \
	if [ $$code -ne 0 ] && ! grep -q '^Found ' $(VENV)/audit.log; then \
		echo "audit: not done, so nothing is known: the service gave no answer, see $(VENV)/audit.log" >&2; \
	fi; exit $$code

format: $(DEV) ## Let ruff rewrite what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# The wheel is tried in a folder without the checkout, by an interpreter that finds the packages of $(VENV), but not this
# project, through a path file.
dist: $(DEV) ## Build sdist and wheel, check them, and run the wheel in an empty folder (2 minutes)
	@rm -rf dist build
	@$(BIN)/python -m build --outdir dist . >$(VENV)/dist.log 2>&1 || { tail -n 20 $(VENV)/dist.log >&2; exit 1; }
	@$(BIN)/python -m twine check --strict dist/*
	@$(BIN)/python tests/support/try_wheel.py dist/*.whl

clean: ## Remove the virtual environment and caches; results stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info build dist
