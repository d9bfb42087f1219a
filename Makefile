# One command for each task. `make demo` and `make test` set up everything they need.

PYTHON ?= $(shell tools/find_python.sh)
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo dist docs plots test matrix exhaustive sweep combinations drawn ecosystem page lint types codegen check coverage patches bench bench-drawn profile clean help

help: ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(INSTALLED): pyproject.toml constraints.txt
	python="$(PYTHON)" && test -n "$$python" && "$$python" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test,lint,codegen,examples,docs]'
	touch $@

demo: $(INSTALLED) ## train a small GPT on real text under torch.compile(backend="jaten")
	$(BIN)/python examples/char_gpt.py

test: $(INSTALLED) ## the tests, with covering samples of the large tables: 15 minutes on 2 cores
	$(BIN)/python -m pytest -n auto tests

matrix: $(INSTALLED) ## the tests with each pair of versions of torch and JAX: hours, 40 GB; OPTIONS='PAIR ...' takes some
	$(BIN)/python -m tools.matrix $(OPTIONS)

exhaustive: $(INSTALLED) ## the rows of the test tables beyond that sample: hours; OPTIONS='tests/kernels' takes a part
	$(BIN)/python -m pytest -n auto -v -m exhaustive $(or $(OPTIONS),tests)

sweep: $(INSTALLED) ## every check over all of PyTorch's op database: hours; --resume takes it up again
	$(BIN)/python -m tests.sweep

combinations: $(INSTALLED) ## programs x ways to run them x what surrounds them: two hours; OPTIONS='--most 500' takes a draw
	$(BIN)/python -m tests.combinations $(OPTIONS)

drawn: $(INSTALLED) ## programs drawn at random, in each way to run them: an hour; OPTIONS='--first 5000 --ways compiled' takes others
	$(BIN)/python -m tests.drawn $(OPTIONS)

ecosystem: $(INSTALLED) ## programs of other libraries beside plain torch, in an environment of their own: hours; OPTIONS='timm ...' takes some
	$(BIN)/python -m tests.ecosystem $(OPTIONS)

page: $(INSTALLED) ## coverage and the last sweep as one page, build/coverage.html
	$(BIN)/python -m tools.codegen coverage --html $(addprefix --report ,$(wildcard build/sweep.json))

docs: $(INSTALLED) ## the documentation as a site, build/site/index.html
	rm -rf build/site
	$(BIN)/python -m sphinx -W --keep-going -E -q -b html -d build/doctrees docs build/site

plots: $(INSTALLED) ## run the tutorials, and write the plots that they draw
	$(BIN)/python -m tools.tutorial_plots

lint: $(INSTALLED) ## ruff: style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED) ## mypy
	$(BIN)/mypy

codegen: $(INSTALLED) ## refresh the generated rows, and the schema lines of kernels, from the installed torch
	$(BIN)/python -m tools.codegen refresh

check: $(INSTALLED) ## the generated rows, schema lines of kernels and docs/patches.md are up to date
	$(BIN)/python -m tools.codegen check
	$(BIN)/python -m tools.patches --check

coverage: $(INSTALLED) ## print and write the coverage table
	$(BIN)/python -m tools.codegen coverage

patches: $(INSTALLED) ## write docs/patches.md, what the import changes of torch and JAX
	$(BIN)/python -m tools.patches

bench: $(INSTALLED) ## jaten against eager, Inductor, hand-written JAX and, with TORCHAX_PYTHON=PATH, torchax: an hour, half of it with OPTIONS=--quick
	-$(BIN)/python -m benchmarks $(OPTIONS)
	$(BIN)/python -m benchmarks.report

bench-drawn: $(INSTALLED) ## jaten against eager and Inductor at 20 models of libraries that SEED draws; OPTIONS=--quick is shorter
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[drawn]'
	$(BIN)/python -m benchmarks --draw $(or $(SEED),$(shell date +%s)) $(OPTIONS)

profile: $(INSTALLED) ## what a call's time goes to in jaten and in Inductor, beside the last benchmarks: 20 minutes
	-$(BIN)/python -m benchmarks.profile $(OPTIONS)
	$(BIN)/python -m benchmarks.report

dist: $(INSTALLED) ## a wheel and an sdist in dist/, which `twine check` has passed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[release]'
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/python -m twine check --strict dist/*

clean: ## remove what the commands above made
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
