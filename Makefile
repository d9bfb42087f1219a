# One command for each task. `make demo` and `make test` set up everything they need.

PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-all lint types codegen check coverage bench clean help

help: ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test,lint,codegen,examples]'
	touch $@

demo: $(INSTALLED) ## train a small GPT on real text under torch.compile(backend="jaten")
	$(BIN)/python examples/char_gpt.py

test: $(INSTALLED) ## the tests, a stratified sample of the op sweep among them
	$(BIN)/python -m pytest -n auto tests

test-all: $(INSTALLED) ## the exhaustive sweep over PyTorch's op database
	$(BIN)/python -m pytest -n auto -m exhaustive tests

lint: $(INSTALLED) ## ruff: style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED) ## mypy
	$(BIN)/mypy

codegen: $(INSTALLED) ## refresh the generated rows from the installed torch
	$(BIN)/python -m tools.codegen refresh

check: $(INSTALLED) ## the generated rows match the installed torch
	$(BIN)/python -m tools.codegen check

coverage: $(INSTALLED) ## print and write the coverage table
	$(BIN)/python -m tools.codegen coverage

bench: $(INSTALLED) ## jaten against eager, Inductor and hand-written JAX
	$(BIN)/python -m benchmarks

clean: ## remove what the commands above made
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
