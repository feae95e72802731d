# Each target sets up .venv itself; nothing is done twice.
.PHONY: install demo test test-all lint bench clean
PY := .venv/bin/python

install:
	@scripts/install.sh

demo: install
	$(PY) -m scalebench sweep=demo

test: install lint
	$(PY) -m pytest -m "not slow"

test-all: install lint
	$(PY) -m pytest

lint: install
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

bench: install
	$(PY) -m benchmarks

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
