# `make help` lists targets and variables. Nothing is needed before `make train` or `make test`.

CONFIG     ?= configs/digits.yaml
GPUS       ?=
CPUS       ?=
SHARES     ?=
STAGES     ?=
PRECISION  ?=
ACCELERATE ?=
NODES      ?=
NODE_RANK  ?=
MASTER_ADDR ?=
MASTER_PORT ?=
NODE_WAIT  ?=
NODE_SILENCE ?=
ENGINE     ?= auto
CUDA       ?= auto
BASE_IMAGE ?=
DATA       ?=
DOCTOR     ?= 1
RUN        ?=
ARGS       ?=
PYTHON     ?= python3

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# A misspelt variable would be ignored in silence, and another experiment trained.
known := CONFIG GPUS CPUS SHARES STAGES PRECISION ACCELERATE ENGINE CUDA BASE_IMAGE APT_SNAPSHOT DATA CACHE CODE DOCTOR RUN ARGS N \
         NODES NODE_RANK MASTER_ADDR MASTER_PORT NODE_WAIT NODE_SILENCE SHM_SIZE READ_ONLY MEMLOCK TENSORBOARD_PORT CDI_GPU PYTHON SHELL MAKEFLAGS WANDB_API_KEY_FILE HF_TOKEN_FILE
stray := $(firstword $(filter-out $(known),$(foreach v,$(.VARIABLES),$(if $(filter command,$(origin $(v))),$(v)))))
ifneq ($(stray),)
near  := $(shell $(PYTHON) -m host.strays '$(subst ','\'',$(stray))' $(known) 2>/dev/null)
# Before make, any other word would be ignored in silence.
others := NCCL_% GLOO_% TORCH% PYTORCH_% TRITON_% OMP_% MKL_% KMP_% CUDA_% CUBLAS_% CUDNN_% NVIDIA_% ACCELERATE_% HF_% WANDB_% \
          PYTHON% LD_% LC_% XDG_% UV_% PIP_% DOCKER_% COMPOSE_% BUILDKIT_% SLURM_% %_PROXY %_proxy HOME LANG TMPDIR
$(error make has no variable $(stray)$(near) → see `make help`; knobs go into ARGS (ARGS="--lanes 4")$(if $(filter $(others),$(stray)),; \
  what is for PyTorch and other libraries stands before make: $(stray)=… make))
endif

# What stands before make may be for others, so it is no error.
unread := $(strip $(foreach v,BATCH_SIZE CPU EPOCHS GPU LANES LR MAX_STEPS SEED,$(if $(filter environment,$(origin $(v))),$(v))))
ifneq ($(and $(unread),$(filter train tune sweep seeds,$(MAKECMDGOALS))),)
$(shell echo 'warning: nothing here reads $(unread), which stands before make or is exported →' \
  'see `make help`; knobs go into ARGS (ARGS="--lanes 4")' >&2)
endif

# A word that is no target would be "up to date" where a folder has that name.
# A verb is a file of train/verbs. Those without a target of their own are passed on as they are.
verbs   := $(filter-out __init__ data fit evaluate knobs tune reproduce predict export report runs compare scaling sweep,$(notdir $(basename $(wildcard train/verbs/*.py))))
targets := help doctor report-machine train data tune eval predict export reproduce report runs compare scaling sweep seeds knobs $(verbs) tensorboard test test-slow test-crowd test-alone \
           test-fault test-gpu test-portable test-nodes test-container bench conformance coverage ready lint format schema lock \
           shell image image-twice pin-images clean
strange := $(firstword $(filter-out $(targets),$(MAKECMDGOALS)))
ifneq ($(strange),)
near  := $(shell $(PYTHON) -c 'import sys; from host.errors import nearest; \
  print(nearest(sys.argv[1], sys.argv[2:]))' '$(subst ','\'',$(strange))' $(targets) 2>/dev/null)
$(error make has no target $(strange)$(if $(findstring /,$(strange)),,$(near)) → $(if $(wildcard $(strange)),name it with $(if $(filter %.yaml %.yml,$(strange)),CONFIG=$(strange),$(if $(wildcard $(strange)/run.json),RUN=$(strange),ARGS="$(strange)")); or )$(if $(filter command,$(origin ARGS)),quote what has spaces: ARGS="…"; or )see `make help`)
endif

# Values are text: neither make nor the shell is to run what stands in one. So each is taken as it
# was written, stands in single quotes wherever a shell reads it, and is one line.
define break


endef
user := $(filter-out PYTHON SHELL MAKEFLAGS,$(known))
set  := $(foreach v,$(user),$(if $(filter command environment,$(firstword $(origin $(v)))),$(v)))
told := $(foreach v,$(set),$(if $(filter command,$(firstword $(origin $(v)))),$(v)))
$(foreach v,$(set),$(if $(findstring $(break),$(value $(v))),$(error $(v) holds a line break → write it on one line)))
$(foreach v,$(set),$(eval override $(v) := $$(value $(v))))
quoted   = '$(subst ','\'',$($(1)))'
# Compose reads these from its environment, from which `override` has taken what make was told.
compose := APT_SNAPSHOT BASE_IMAGE CACHE CODE DATA SHM_SIZE READ_ONLY MEMLOCK TENSORBOARD_PORT CDI_GPU
$(foreach v,$(filter $(compose) WANDB_API_KEY_FILE HF_TOKEN_FILE,$(told)),$(eval export $(v)))
unexport CONFIG RUN ARGS
# What is to be said again by who goes on with a run that was stopped; the rest stands in its record.
LOCKSTEP_TOLD := $(foreach v,$(filter-out CONFIG RUN ARGS,$(told)),$(v)=$(call quoted,$(v)))
export LOCKSTEP_TOLD

# Targets that look after the host themselves; for the others it is looked up what the host has.
apart  := help doctor report-machine clean image image-twice pin-images test-container
goals  := $(filter-out $(apart),$(MAKECMDGOALS))
found  := $(shell $(PYTHON) -c 'import sys; print("yes" * (sys.version_info >= (3, 8)))' 2>/dev/null)
ifneq ($(and $(wildcard .env),$(goals)),)
ifeq ($(found),)
$(error .env needs Python 3.8 to be read → install it, or remove .env)
endif
endif

# What nobody said may stand in .env. What is wrong with that file is said by those that read all of it.
filed := $(if $(wildcard .env),CONFIG ENGINE DOCTOR TENSORBOARD_PORT DATA NODES)
$(foreach v,$(filter-out $(set),$(filed)),$(eval \
  $(v) := $$(or $$(shell $(PYTHON) -m host.settings $(v) 2>/dev/null),$$($(v)))))

# exec: a signal to the recipe's shell must reach what it runs.
# What nobody set is for .env to say.
given    = $(if $(filter file default undefined,$(origin $(1))),,$(1)=$(call quoted,$(1)))
SETTINGS = $(call given,GPUS) $(call given,CPUS) $(call given,SHARES) $(call given,STAGES) $(call given,PRECISION) $(call given,ACCELERATE) \
           $(foreach v,NODES NODE_RANK MASTER_ADDR MASTER_PORT NODE_WAIT NODE_SILENCE,$(call given,$v))
HOST     = env $(call given,CUDA) $(call given,BASE_IMAGE) $(call given,DATA) $(SETTINGS) $(PYTHON) -m
COMPOSE  = @exec $(HOST) container.compose

# Without it there is no looking: local, where that was not ruled out.
marks   = ; & | < > ( ) { } ` " ' \ $$ * ? [ ] ~ ! \#
plain   = $(if $(strip $(foreach c,$(marks),$(findstring $(c),$(ARGS)))),$(error ARGS needs Python 3.8 for quotes \
  and marks → install it),$(ARGS))
bare    = $(if $(filter docker,$(ENGINE)),$(shell \
  echo 'error: make needs Python 3.8 for ENGINE=docker → install it, or `docker compose run --rm train`' >&2; \
  echo refused:6),local)
# Inside one of our images all is there already.
inside := $(wildcard /etc/lockstep-image.json)
VENV   := $(if $(inside),/opt/venv,.venv)
BIN    := $(VENV)/bin
engine := $(if $(goals),$(if $(found),$(shell $(HOST) host.docker $(call quoted,ENGINE) || echo refused:$$?),$(bare)),local)
lines  := $(patsubst requirements/%.txt,%,$(wildcard requirements/cuda*.txt))
ifneq ($(and $(goals),$(CUDA),$(or $(filter-out auto $(lines),$(CUDA)),$(word 2,$(CUDA)))),)
$(error CUDA=$(CUDA) is none of auto $(lines) → choose one of them)
endif
line   := $(if $(inside),$(CUDA_LINE),$(firstword $(filter $(lines),$(CUDA)) cuda13))
# Where nothing trains, GPUs that no line fits are no reason to refuse.
any    := $(if $(filter train tune eval reproduce bench seeds $(notdir $(basename $(wildcard train/verbs/*.py))),$(goals)),,any)
ifneq ($(and $(goals),$(found),$(filter local,$(engine))),)
  line := $(if $(inside),$(CUDA_LINE),$(shell $(HOST) host.cuda $(any) || echo refused:$$?))
endif

# A list of GPUs, or those that are free, by name.
chosen := $(if $(and $(goals),$(found),$(filter local,$(engine)),$(GPUS)),$(shell $(HOST) host.selection || echo refused:$$?))
SETTINGS += $(chosen)

# ARGS as words that a shell takes for words. Without a Python to split them they must be plain ones.
args   := $(if $(value ARGS),$(if $(found),$(shell ARGS=$(call quoted,ARGS) $(PYTHON) -m host.words || echo refused:$$?),$(plain)))

ifneq ($(filter-out 0 1,$(DOCTOR)),)
$(error DOCTOR=$(DOCTOR) is neither 0 nor 1 → DOCTOR=0 trains without looking at the machine first)
endif

# What is about containers does nothing without one.
elsewhere := $(if $(filter DATA,$(told)),; data that is elsewhere: ARGS="--data.root DIR")$(if $(filter CODE,$(told)),; a package in this folder or a link to one (ln -s PACKAGE .) is found without it)
runs   := $(filter train data tune eval predict export reproduce report runs compare scaling sweep seeds tensorboard $(verbs),$(goals))
idle   := $(filter-out $(if $(filter tensorboard,$(goals)),TENSORBOARD_PORT),$(filter $(compose),$(told)))
ifneq ($(and $(filter local,$(engine)),$(runs),$(idle)),)
$(error $(firstword $(idle)) is about containers, and this is ENGINE=local → take it away$(elsewhere))
endif

# Not refused, since what serves the containers may stand in .env for good.
ifneq ($(and $(filter local,$(engine)),$(runs),$(DATA),$(if $(inside)$(filter DATA,$(told)),,yes)),)
$(shell printf '%s\n' 'warning: DATA='$(call quoted,DATA)' is about containers, and does nothing here: ENGINE=local → ARGS="--data.root DIR" names a folder' >&2)
endif

# A run has an experiment of its own.
past   := eval predict export reproduce report runs compare scaling
ifneq ($(and $(filter CONFIG,$(told)),$(filter $(past),$(goals))),)
ifeq ($(filter-out $(past),$(goals)),)
$(error CONFIG does nothing with make $(firstword $(goals)), since a run has an experiment of its own → take it away)
endif
endif

none   := clean conformance format image image-twice lint pin-images schema shell tensorboard
idle   := $(if $(and $(filter ARGS,$(told)),$(value ARGS),$(if $(filter-out $(none),$(MAKECMDGOALS)),,no)),ARGS)
idle   := $(or $(idle),$(if $(and $(filter CONFIG,$(told)),$(if $(filter-out $(none) knobs,$(MAKECMDGOALS)),,no)),CONFIG))
ifneq ($(and $(MAKECMDGOALS),$(idle)),)
$(error $(idle) does nothing with make $(firstword $(MAKECMDGOALS)) → take it away)
endif

# Neither trains nor measures anything on several processes, on GPUs or in another precision.
# (CPUS=1 keeps GPUs out of a container.)
still  := data export runs compare report scaling knobs tensorboard
where  := $(firstword $(filter GPUS $(if $(filter docker,$(engine)),,CPUS) PRECISION ACCELERATE,$(told)))
ifneq ($(and $(where),$(filter $(still),$(goals))),)
ifeq ($(filter-out $(still),$(goals)),)
$(error $(where) does nothing with make $(firstword $(goals)), which works in one process on the CPU, in FP32 → take it away)
endif
endif

# They look at an experiment, or at none.
anyrun := data tune knobs tensorboard
ifneq ($(and $(filter RUN,$(told)),$(filter $(anyrun),$(goals))),)
ifeq ($(filter-out $(anyrun),$(goals)),)
$(error RUN does nothing with make $(firstword $(goals)) → take it away; CONFIG=RUN/config.yaml is the experiment of a run)
endif
endif

# What serves all of a cluster's jobs may stand in the environment of those on one machine.
waits  := $(firstword $(filter NODE_WAIT NODE_SILENCE,$(told)))
ifneq ($(and $(waits),$(filter train,$(goals)),$(if $(NODES)$(SLURM_JOB_ID)$(PET_NNODES)$(SKYPILOT_NODE_RANK)$(OMPI_COMM_WORLD_SIZE)$(PMI_SIZE),,alone)),)
$(error $(waits) does nothing where one machine trains alone → say how many there are, NODES=2, or take it away)
endif

ifneq ($(and $(filter CDI_GPU,$(told)),$(goals)),)
$(error CDI_GPU is for Compose without make → GPUS=1,3 or CUDA_VISIBLE_DEVICES chooses GPUs)
endif

many   := $(firstword $(filter NODES NODE_RANK MASTER_ADDR MASTER_PORT NODE_WAIT NODE_SILENCE,$(told)))
ifneq ($(and $(many),$(goals)),)
ifneq ($(goals),train)
$(error $(many) is for make train, and does nothing with make $(firstword $(filter-out train,$(goals))) → take it away)
endif
endif

among  := $(firstword $(filter SHARES STAGES,$(told)))
ifneq ($(and $(among),$(goals)),)
ifneq ($(filter-out train doctor,$(goals)),)
$(error $(among) is for make train, and does nothing with make $(firstword $(filter-out train doctor,$(goals))) → take it away)
endif
endif

ifneq ($(and $(filter N,$(told)),$(goals)),)
ifneq ($(goals),seeds)
$(error N is the number of seeds of make seeds, and does nothing with make $(firstword $(filter-out seeds,$(goals))) → take it away)
endif
endif
# An empty one of the environment is none.
counts  := $(or $(filter N,$(told)),$(and $(filter N,$(set)),$(value N)))
ifneq ($(and $(filter seeds,$(goals)),$(counts),$(or $(filter 0,$(value N)),$(filter-out $(shell printf %s $(call quoted,N) | tr -cd 0-9),$(value N)),$(if $(value N),,empty))),)
$(error N=$(value N) is no number from 1 → make seeds N=5)
endif
ifneq ($(and $(filter seeds,$(goals)),$(findstring --seeds,$(value ARGS))),)
$(error make seeds has N= for the number of seeds → take --seeds away)
endif

.PHONY: $(targets)

# A lock is installed when a stamp with its checksum exists: touching the file changes nothing.
stamp  = $(VENV)/.installed-$(1)-$(shell cksum requirements/$(1).txt 2>/dev/null | cut -d' ' -f1)
docker := $(filter docker,$(engine))
ENV    := $(if $(docker),,$(call stamp,$(line)))
DEV    := $(if $(docker),,$(call stamp,dev))
# Runs a verb: in a container, or in the local environment.
VERB    = $(if $(docker),$(COMPOSE) run --rm train,@exec env $(SETTINGS) $(BIN)/python -m train.launch)

refusal := $(firstword $(filter refused:%,$(engine) $(line) $(chosen) $(args)))
ifneq ($(refusal),)

$(goals):
	@exit $(refusal:refused:%=%)

else

# A run that goes on has an experiment of its own, where nobody says another.
usual   = $(filter file default undefined,$(origin CONFIG))
resumed = $(and $(RUN),$(findstring --resume,$(value ARGS)),$(usual))
# Nor does a misspelt run, or one that ended at once, become one of digits: fit refuses it.
# Of several machines one may have the run's folder.
unsaid  = $(and $(resumed),$(filter configs/digits.yaml,$(CONFIG)),$(if $(NODES),,one))
own     = $(if $(resumed),$(shell test -f $(call quoted,RUN)/run.json || test -f $(call quoted,RUN)/sweep.json && echo yes))

train: checked $(ENV)  ##1 train CONFIG; with RUN= into that directory, ARGS=--resume to go on
	$(VERB) fit $(if $(or $(own),$(unsaid)),,--config $(call quoted,CONFIG)) $(if $(RUN),--run $(call quoted,RUN)) $(args)

data: $(ENV)  ##1 show what CONFIG trains on: classes, what is damaged or left out, a picture
	$(VERB) data --config $(call quoted,CONFIG) $(args)

tune: checked $(ENV)  ##2 measure what CONFIG can do here, and write an experiment to use; ARGS="--what batch,workers,speed,lr"
	$(VERB) tune --config $(call quoted,CONFIG) $(args)

eval: $(ENV)  ##1 measure the newest weights of RUN, or of the newest run, on the validation set
	$(VERB) evaluate $(if $(RUN),--run $(call quoted,RUN)) $(args)

# The newest sweep, where no RUN is named, has an experiment of its own too.
older   = $(or $(own),$(and $(findstring --resume,$(value ARGS)),$(usual),$(if $(RUN),,newest)))
sweep: checked $(ENV)  ##2 train CONFIG with other knobs: ARGS="--over optim.lr=0.03,0.1,0.3"; killed, ARGS=--resume goes on
	$(VERB) sweep $(if $(older),,--config $(call quoted,CONFIG)) $(if $(RUN),--run $(call quoted,RUN)) $(args)

seeds: checked $(ENV)  ##2 train CONFIG with N seeds: mean, standard deviation and each one's weights
	$(VERB) sweep $(if $(older),,--config $(call quoted,CONFIG)) $(if $(counts),--seeds $(call quoted,N),$(if $(older),,--seeds 3)) $(if $(RUN),--run $(call quoted,RUN)) $(args)

reproduce: named $(ENV)  ##1 train RUN again from its record and compare the bits; on any CPUS= or GPUS=
	$(VERB) reproduce $(call quoted,RUN) $(args)

knobs: $(ENV)  ##2 list every knob of an experiment, or those with a word: ARGS=warmup
	$(VERB) knobs $(args)

predict: $(ENV)  ##1 say what RUN, or the newest run, sees in pictures: ARGS=data/new
	$(VERB) predict $(if $(RUN),--run $(call quoted,RUN)) $(args)

export: $(ENV)  ##1 write weights for others: safetensors, ONNX, torch.export, each checked on pictures
	$(VERB) export $(if $(RUN),--run $(call quoted,RUN)) $(args)

report: $(ENV)  ##1 write report.html of RUN, or of the newest run: result, proof, curves, mistakes
	$(VERB) report $(if $(RUN),--run $(call quoted,RUN)) $(args)

runs: $(ENV)  ##2 list the runs in runs/: status, accuracy, weights; ARGS="--sort best"
	$(VERB) runs $(if $(RUN),$(call quoted,RUN)) $(args)

compare: $(ENV)  ##2 say what differs between runs, and the first step that does: ARGS="runs/a runs/b"
	$(VERB) compare $(if $(RUN),$(call quoted,RUN)) $(args)

scaling: $(ENV)  ##2 say what a step of RUN would take on more machines: a model, beside what was measured
	$(VERB) scaling $(if $(RUN),--run $(call quoted,RUN)) $(args)

$(verbs): $(ENV)
	$(VERB) $@ $(if $(RUN),--run $(call quoted,RUN)) $(if $(and $(usual),$(filter configs/digits.yaml,$(CONFIG))),,--config $(call quoted,CONFIG)) $(args)

ifneq ($(docker),)

tensorboard:
	$(COMPOSE) run --rm --service-ports tensorboard

shell:
	$(COMPOSE) run --rm dev

test test-slow test-crowd test-alone test-fault test-gpu test-portable test-nodes bench conformance coverage lint format schema lock:
	$(COMPOSE) run --rm dev make $@ $(if $(ARGS),ARGS=$(call quoted,ARGS))

else

$(ENV):
	@VENV=$(VENV) sh requirements/install.sh $(line)
	@touch $@

$(DEV): $(ENV)
	@VENV=$(VENV) sh requirements/install.sh dev
	@touch $@

tensorboard: $(ENV)  ##2 show all runs at http://127.0.0.1:6006
	@$(HOST) host.port $(if $(TENSORBOARD_PORT),$(call quoted,TENSORBOARD_PORT),6006)
	@exec $(BIN)/tensorboard --logdir runs --host 127.0.0.1 --port $(if $(TENSORBOARD_PORT),$(call quoted,TENSORBOARD_PORT),6006)

shell: $(DEV)  ##3 a shell in the environment
	@PATH="$(if $(inside),,$$PWD/)$(BIN):$$PATH" VIRTUAL_ENV="$(if $(inside),,$$PWD/)$(VENV)" $${SHELL:-sh}

# Compiled once, for each of the processes that share the tests.
pytest = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

test: $(DEV)  ## run the quick tests; ARGS= goes to pytest
	@$(pytest) -m 'not slow and not more and not container and not gpu and not portable' -n 3 --dist worksteal $(args)

test-slow: test-crowd test-alone  ## run the tests that take minutes

# Side by side, since they wait more than they compute; and those that need a quiet machine after them.
test-crowd: $(DEV)
	@$(pytest) -m 'slow and not container and not alone' -n 4 --dist worksteal $(args)

test-alone: $(DEV)
	@$(pytest) -m 'slow and not container and alone' $(args)

# A machine with a GPU may have a torch of its own and no network: that one will do.
has_torch = $(if $(filter test-gpu,$(goals)),$(shell $(PYTHON) -c 'import torch, pytest; print("yes")' 2>/dev/null))
# pytest-benchmark, where somebody has it, warns under -n, and a warning is an error here.
test-gpu: $(if $(has_torch),,$(DEV))  ## test on a GPU; benchmarks/gpu.py writes the table
	@$(if $(has_torch),$(PYTHON),$(BIN)/python) benchmarks/gpu.py --check
	@$(if $(has_torch),$(PYTHON),$(BIN)/python) -m pytest -p no:benchmark -m gpu tests/gpu $(args)

# Half an hour; ARGS='-k quick' takes five minutes.
test-portable: $(DEV)  ## train as a dozen other CPUs and on two emulated ones, and compare the bits; half an hour
	@command -v qemu-x86_64 >/dev/null || { echo 'error: no qemu-x86_64 → apt-get install qemu-user' >&2; exit 6; }
	@$(pytest) -m portable tests/portable -n 2 --dist worksteal -rP -k 'cpus or quick' $(args)

test-nodes: $(DEV)  ## harm machines of a network that train together, 60 times; half an hour, needs root
	@FAULTS=60 $(pytest) tests/nodes -n 2 --dist worksteal -rP $(args)

test-fault: $(DEV)  ## kill and resume hundreds of times; half an hour
	@FAULT_KILLS=200 FAULT_SCHEDULES=50 FAULT_FLIPS=20 SWEEP_SEEDS=2 $(pytest) -s tests/fault tests/test_sweep.py $(args)

bench: $(ENV)  ## what the levels of reproducibility cost, side by side
	@$(BIN)/python benchmarks/lockstep.py $(args)

OTHERS := .venv-peers$(if $(inside),-container)
PEERS := $(OTHERS)/.lock-$(shell cat requirements/cuda13.txt requirements/peers.txt | cksum | cut -d' ' -f1)
$(PEERS): $(ENV)
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(OTHERS)
	@$(BIN)/uv pip install --quiet --python $(OTHERS) --require-hashes \
	  --requirement requirements/cuda13.txt --requirement requirements/peers.txt
	@touch $@

conformance: $(PEERS)  ## kill and resume this trainer and others alike; who repeats or loses samples
	@$(OTHERS)/bin/python benchmarks/conformance.py

coverage: $(DEV)  ## run all tests and say which lines of train/ they do not reach
	@$(pytest) -m 'not container and not gpu and not portable' --cov --cov-report=term-missing $(args)

ready: $(DEV)

lint: $(DEV)  ## check style, formatting, types, shell scripts and the Dockerfile
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports
	@$(BIN)/shellcheck $$(git grep -l '^#!/bin/sh\|^#!/usr/bin/env bash\|^# shellcheck shell=')
	@$(BIN)/hadolint Dockerfile

format: $(DEV)  ## reformat, and mend what can be mended
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

schema: $(ENV)  ## write configs/schema.json anew from train/config/
	@$(BIN)/python -m train.config >configs/schema.json

# Universal: one lock for all systems and Pythons from 3.11 on; hashes, and no addresses.
lock: $(ENV)  ## make requirements/*.txt from requirements/*.in; ARGS=--upgrade takes newer versions
	@for name in $(filter-out common,$(basename $(notdir $(wildcard requirements/*.in)))); do \
	  (cd requirements && $(if $(inside),,../)$(BIN)/uv pip compile --quiet $(args) --universal --python-version 3.11 \
	    --generate-hashes --no-emit-index-url --no-emit-find-links \
	    --custom-compile-command 'make lock' $$name.in -o $$name.txt) || exit; done

endif
endif

# What would stand in the way is said before anything is built or installed.
.PHONY: checked
checked:
	@$(if $(and $(found),$(filter-out 0,$(DOCTOR))),ENGINE=$(engine) $(HOST) doctor --quick,:)

doctor:  ##2 look at driver, GPUs, engine, disks, …: what is wrong, and the command that mends it; does CONFIG= fit?
	@$(if $(filter refused:%,$(args)),exit $(args:refused:%=%),:)
	@$(if $(found),ENGINE=$(call quoted,ENGINE) $(HOST) doctor $(if $(filter CONFIG,$(told)),--verify $(call quoted,CONFIG)) $(if $(filter RUN,$(told)),--like $(call quoted,RUN)) $(args),echo 'error: the doctor needs Python 3.8 → install it' >&2; exit 6)

report-machine:  ##2 the same as text to paste into an issue, with nothing private in it
	@$(if $(filter refused:%,$(args)),exit $(args:refused:%=%),:)
	@$(if $(found),ENGINE=$(call quoted,ENGINE) $(HOST) doctor --markdown $(args) || test $$? = 6,echo 'error: the doctor needs Python 3.8 → install it' >&2; exit 6)

.PHONY: named
named:
	@$(if $(RUN),:,echo 'error: which run? → make $(MAKECMDGOALS) RUN=runs/NAME/TIME' >&2; exit 2)

# In a folder of its own: another session of pytest would close the usual one to other users.
test-container:  ## build the images and test them; needs a Docker engine
	@$(MAKE) ENGINE=local ready
	@folder=$$(mktemp -d -t pytest-container-XXXXXX) && trap 'rm -rf "$$folder"' EXIT && \
	  BASE_IMAGE=$(call quoted,BASE_IMAGE) $(pytest) -m container -n 2 --dist loadfile --basetemp "$$folder/checkouts" $(args)

image:  ##3 build the image with all that is in it, as for a cluster
	$(COMPOSE) build train

image-twice:  ##3 build the image twice from nothing, and name each file that differs
	@exec $(HOST) container.twice

pin-images:  ##3 record the digests of the base images in the Dockerfile
	@exec $(HOST) container.pin

clean:  ##3 remove this checkout's environment, caches, containers and images; runs stay
	@rm -rf .venv .venv-peers .venv-peers-container .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.*
	@find host container doctor train tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
	@if [ -n "$(found)" ]; then $(HOST) container.clean; fi

help:  ## this list
	@awk -F ':.*##' 'BEGIN { title[1] = "begin:"; title[2] = "look:"; title[3] = "containers and this checkout:"; \
	    title[4] = "develop:" } \
	  /^[a-z-]+:.*##/ { group = $$2 ~ /^[1-3] / ? substr($$2, 1, 1) : 4; sub(/^[1-3]? /, "", $$2); \
	    lines[group] = lines[group] sprintf("  %-14s %s\n", $$1, $$2) } \
	  END { for (n = 1; n <= 4; n++) printf("%s%s\n%s", (n == 1 ? "" : "\n"), title[n], lines[n]) }' \
	  $(firstword $(MAKEFILE_LIST))
	$(if $(verbs),@echo; echo 'your own:'; for verb in $(verbs); do \
	  printf '  %-14s %s\n' "$$verb" "$$(sed -n '/"""/{s/"""//g;p;q;}' "train/verbs/$$verb.py")"; done)
	@echo
	@echo 'variables:'
	@echo '  CONFIG=FILE      the experiment                    ['$(call quoted,CONFIG)']'
	@echo '  GPUS=N|all|1,3|free|free:N   how many GPUs, which, or those nobody uses [as many as share its lanes; digits: none]'
	@echo '  CPUS=N           N processes on the CPU instead'
	@echo '  SHARES=auto      fewer lanes for a slow process; SHARES=5,3 tells how many  [as many for each]'
	@echo '  STAGES=N|A,B     cut the model into N stages, one on each process (CPUS=N or GPUS=N), or where modules A and B begin'
	@echo '  NODES=N|MIN:MAX  N machines train together, or as many of MAX as are there; docs/nodes.md'
	@echo '  NODE_RANK=N      the number of this machine, from 0'
	@echo '  MASTER_ADDR=A    the address of number 0, the same on all'
	@echo '  MASTER_PORT=P    where they meet there             [29500]'
	@echo '  NODE_WAIT=S      seconds that one waits for another to start              [600]'
	@echo '  NODE_SILENCE=S   seconds without a word from one until the run ends       [60]'
	@echo '  PRECISION=P      no, fp16 or bf16                  [no]'
	@echo '  ACCELERATE=NAME  a file of configs/accelerate, by name'
	@echo '  ENGINE=E         docker, local, or auto: Docker where an engine answers   ['$(call quoted,ENGINE)']'
	@echo '  CUDA=LINE        cuda13, cuda12, or auto: the newest that fits the driver ['$(call quoted,CUDA)']'
	@echo '  BASE_IMAGE=NAME  another base image, of a mirror perhaps'
	@echo '  DATA=DIR         the folder that a container sees as data/                [data]'
	@echo '  CODE=DIR         your own package, if it is not in this folder, for a container'
	@echo '  DOCTOR=0         train without looking at the machine first'
	@echo '  N=5              how many seeds: make seeds        [3]'
	@echo '  RUN=DIR          the run directory                 [runs/<name>/<time>-<signature>]'
	@echo '  ARGS="..."       more arguments, as ARGS="--optim.lr 0.05 --epochs 20"'
