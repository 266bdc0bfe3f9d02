# make demo   sets everything up and answers the essay's questions on a real model file
# make test   sets everything up and runs every check
# make oracle compares the model reader with transformers itself, tensor by tensor and cache by cache
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# an editable install has no bytecode, and start-up without it takes twice the time
COMPILE = $(BIN)/python -m compileall -q capplan capacity hardware models probes

.PHONY: demo test oracle check bench clean

demo: $(VENV)/.installed
	@$(BIN)/capplan whiteboard examples/llama-3.1-70b/config.json --gpu h200-sxm --weights fp8 --kv fp16

test: $(VENV)/.installed-dev
	@$(MAKE) --no-print-directory check

oracle: $(VENV)/.installed-dev
	$(BIN)/python -m pytest tests/oracle

check:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest

bench: $(VENV)/.installed-dev
	for script in benchmarks/*.py; do $(BIN)/python $$script; done

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	$(COMPILE)
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	$(COMPILE)
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist *.egg-info
