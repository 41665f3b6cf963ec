# `make help` lists targets and variables. Nothing is needed before `make train` or `make test`.

CONFIG     ?= configs/digits.yaml
GPUS       ?=
CPUS       ?=
PRECISION  ?= no
ACCELERATE ?=
CUDA       ?= auto
RUN        ?=
ARGS       ?=

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# CUDA 13 needs driver 580; from 525 on, CUDA 12 will do. Without a driver nothing speaks against 13.
driver := $(shell nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 | cut -d. -f1)
older  := $(shell [ -n "$(driver)" ] && [ "$(driver)" -lt 580 ] 2>/dev/null && echo yes)
line  := $(if $(filter auto,$(CUDA)),$(if $(older),cuda12,cuda13),$(CUDA))

# A lock is installed when a stamp with its checksum exists: touching the file changes nothing.
stamp  = .venv/.lock-$(1)-$(shell cksum requirements/$(1).txt 2>/dev/null | cut -d' ' -f1)
ENV   := $(call stamp,$(line))
DEV   := $(call stamp,dev)
BIN   := .venv/bin
# exec: a signal to the recipe's shell must reach what it runs.
LAUNCH = exec env GPUS="$(GPUS)" CPUS="$(CPUS)" PRECISION="$(PRECISION)" ACCELERATE="$(ACCELERATE)" $(BIN)/python -m train.launch

$(ENV):
	@requirements/install.sh $(line)
	@touch $@

$(DEV): $(ENV)
	@requirements/install.sh dev
	@touch $@

.PHONY: help train eval reproduce tensorboard test test-slow test-fault bench conformance coverage lint format schema lock shell clean

train: $(ENV)  ## train CONFIG; with RUN= into that directory, ARGS=--resume to go on
	@$(LAUNCH) fit --config $(CONFIG) $(if $(RUN),--run $(RUN)) $(ARGS)

eval: $(ENV)  ## measure the newest weights of RUN on the validation set
	@$(if $(RUN),,echo 'error: which run? → make eval RUN=runs/NAME/TIME' >&2; exit 2;) $(LAUNCH) evaluate --run $(RUN) $(ARGS)

reproduce: $(ENV)  ## train RUN again from its record and compare the bits; CPUS= and GPUS= are free
	@$(if $(RUN),,echo 'error: which run? → make reproduce RUN=runs/NAME/TIME' >&2; exit 2;) exec $(BIN)/python -m train reproduce $(RUN) $(if $(CPUS),--cpus $(CPUS)) $(if $(GPUS),--gpus $(GPUS)) $(ARGS)

tensorboard: $(ENV)  ## show all runs at http://127.0.0.1:6006
	@$(BIN)/tensorboard --logdir runs --host 127.0.0.1 --port 6006

test: $(DEV)  ## run the quick tests; ARGS= goes to pytest
	@$(BIN)/python -m pytest -m 'not slow' $(ARGS)

test-slow: $(DEV)  ## run the tests that take minutes
	@$(BIN)/python -m pytest -m slow $(ARGS)

test-fault: $(DEV)  ## kill and resume hundreds of times; half an hour
	@FAULT_KILLS=200 FAULT_SCHEDULES=50 $(BIN)/python -m pytest -s tests/fault $(ARGS)

bench: $(ENV)  ## what the levels of reproducibility cost, side by side
	@$(BIN)/python benchmarks/lockstep.py $(ARGS)

PEERS := .venv-peers/.lock-$(shell cat requirements/cuda13.txt requirements/peers.txt | cksum | cut -d' ' -f1)
$(PEERS): $(ENV)
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv-peers
	@$(BIN)/uv pip install --quiet --python .venv-peers --require-hashes \
	  --requirement requirements/cuda13.txt --requirement requirements/peers.txt
	@touch $@

conformance: $(PEERS)  ## kill and resume this trainer and others alike; who repeats or loses samples
	@.venv-peers/bin/python benchmarks/conformance.py

coverage: $(DEV)  ## run all tests and say which lines of train/ they do not reach
	@$(BIN)/python -m pytest --cov --cov-report=term-missing $(ARGS)

lint: $(DEV)  ## check style, formatting and types
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

format: $(DEV)  ## reformat, and mend what can be mended
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

schema: $(ENV)  ## write configs/schema.json anew from train/config.py
	@$(BIN)/python -m train.config >configs/schema.json

# Universal: one lock for all systems and Pythons from 3.11 on; hashes, and no addresses.
lock: $(ENV)  ## make requirements/*.txt anew from requirements/*.in
	@for name in cuda13 cuda12 dev peers; do \
	  (cd requirements && ../$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
	    --generate-hashes --no-emit-index-url --no-emit-find-links \
	    --custom-compile-command 'make lock' $$name.in -o $$name.txt) || exit; done

shell: $(DEV)  ## a shell in the environment
	@PATH="$$PWD/$(BIN):$$PATH" VIRTUAL_ENV="$$PWD/.venv" $${SHELL:-sh}

clean:  ## remove the environment and caches; runs stay
	@rm -rf .venv .venv-peers .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.*
	@find train tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

help:  ## this list
	@echo 'targets:'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo 'variables:'
	@echo '  CONFIG=FILE      the experiment                    [$(CONFIG)]'
	@echo '  GPUS=N|all       how many GPUs                     [all visible; CPU where there are none]'
	@echo '  CPUS=N           N processes on the CPU instead'
	@echo '  PRECISION=P      no, fp16 or bf16                  [$(PRECISION)]'
	@echo '  ACCELERATE=NAME  a file of configs/accelerate instead of these three'
	@echo '  CUDA=LINE        auto, cuda13 or cuda12            [$(CUDA): $(line)]'
	@echo '  RUN=DIR          the run directory                 [runs/<name>/<time>-<signature>]'
	@echo '  ARGS="..."       more arguments, as ARGS="--optim.lr 0.05 --epochs 20"'
