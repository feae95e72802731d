# Each target sets up .venv itself; nothing is done twice.
.PHONY: install horovod demo test test-all lint bench clean
PY := .venv/bin/python

install:
	@scripts/install.sh

# Builds Horovod anew where it was built for other versions than are installed: see docs/horovod.md.
horovod:
	@SCALEBENCH_HOROVOD=no scripts/install.sh
	@scripts/install_horovod.sh

# Without Horovod, which takes longer to build than the demo to run, and is not in it.
demo:
	@SCALEBENCH_HOROVOD=no scripts/install.sh
	$(PY) -m scalebench sweep=demo

test: install lint
	$(PY) -m pytest -m "not slow"

test-all: install lint
	@scripts/install_browser.sh
	$(PY) -m pytest

lint: install
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

bench: install
	$(PY) -m benchmarks

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
