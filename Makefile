# make train                     train the Go2 with the defaults of examples/train_flashsac.py
# make train ARGS="task=..."     the same with Hydra overrides
# make test                      the test suite, without what is slow
# make test-all                  the whole suite: slow tests and the programs of docs/ too
# make check                     lint, types and import layers
# make docs-tables               rewrite the settings tables of docs/guide
# Each target sets up what it needs: a virtual environment in .venv with the pinned packages.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
# The suite is split over processes; each may then use one core.
WORKERS ?= auto

.PHONY: train test test-all check format docs-tables clean
.DELETE_ON_ERROR:

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "unilab needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing the pinned packages into $(VENV): some minutes the first time"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,export,plot,video,gym,dmc,rsl-rl,ray,mjwarp]'
	touch $@

train: $(VENV)/.installed
	$(BIN)/python examples/train_flashsac.py $(ARGS)

test: $(VENV)/.installed
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow and not docs" $(ARGS)

test-all: $(VENV)/.installed
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(ARGS)

check: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs-tables: $(VENV)/.installed
	$(BIN)/python docs/settings_tables.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
