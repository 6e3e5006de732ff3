# Only sets up and starts: the work is in scripts/build.py, .ci/run and the `physis` command.
PYTHON ?= python3
PHYSIS := .venv/bin/physis

.PHONY: build demo test bench docs clean
.DEFAULT_GOAL := build

build:
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found: apt install python3 python3-venv" >&2; exit 2; }
	@$(PYTHON) scripts/build.py

demo: build
	@$(PHYSIS) demo $(ARGS)

test:
	@PYTHON=$(PYTHON) bash .ci/run

bench: build
	@$(PHYSIS) bench $(ARGS)

docs:
	@$(PYTHON) scripts/docs.py

clean:
	rm -rf .venv-docs site .venv build install log .build.lock .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
