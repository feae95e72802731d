# Each target sets up .venv itself; nothing is done twice.
.PHONY: install extras horovod demo docs test test-tensorflow test-program test-torch test-extras test-all lint bench cluster-up cluster-down clean
PY := .venv/bin/python
# Hundreds of processes of the tests import scalebench: compiled once, though the environment may ask for no such files.
export PYTHONDONTWRITEBYTECODE :=

install:
	@scripts/install.sh

# Libraries that a few strategies, the exports and the notebook need; without them their tests are skipped.
extras: install
	$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[accelerate,hf,notebook,trackers]'
	@# DeepSpeed compiles its own operations where they are used; its installation asks for the PyTorch that is here.
	DS_BUILD_OPS=0 $(PY) -m pip install --quiet --constraint constraints.txt --no-build-isolation 'deepspeed>=0.16' || \
	  echo "DeepSpeed cannot be installed here; make test-extras fails at its contracts"

# Builds Horovod anew where it was built for other versions than are installed.
horovod:
	@scripts/install.sh --light
	@PIP_CONSTRAINT=constraints.txt $(PY) -m scalebench install horovod

# With PyTorch and Lightning alone: TensorFlow, Horovod and the tools of the tests take longer to come than it to run.
demo:
	@scripts/install.sh --light
	$(PY) -m scalebench sweep=demo

# The site of docs/ in site/, with every warning as an error; tables of docs/reference are of the code as it is now.
docs: install
	@$(PY) -m scripts.docs
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict

# Three lanes side by side, and mypy beside them: of TensorFlow, of what starts the program, and of PyTorch and the rest.
# A lane collects and imports its own tests once, and one process with its framework imported forks the ranks of its
# contracts. Many tests wait for processes, so that three lanes are busy enough for two cores.
TENSORFLOW_LANE := tests/strategies/tensorflow tests/strategies/contracts/test_contract_tensorflow.py \
  tests/strategies/test_framework_parity.py tests/strategies/test_network_operations.py \
  tests/report tests/docs tests/conf tests/config tests/core tests/fuzz tests/install tests/analysis
PROGRAM_LANE := tests/cli tests/sweeps tests/runner tests/faults
SELECTION := -m "not slow"
test: install
	@$(MAKE) --no-print-directory --jobs 4 --keep-going --output-sync=target \
	  lint test-tensorflow test-program test-torch

test-tensorflow: install
	@echo "tests of TensorFlow, of the configuration, the docs, the report and the installation"
	$(PY) -m pytest --quiet $(SELECTION) $(TENSORFLOW_LANE)
	$(PY) -m pytest --quiet $(SELECTION) plugins/scalebench-search

test-program: install
	@echo "tests of the command line, of sweeps, of launchers and of faults"
	$(PY) -m pytest --quiet $(SELECTION) $(PROGRAM_LANE)

test-torch: install
	@echo "tests of PyTorch, of Horovod, of clusters, and all others"
	$(PY) -m pytest --quiet $(SELECTION) tests $(TENSORFLOW_LANE:%=--ignore %) $(PROGRAM_LANE:%=--ignore %)

# What needs an extra, slow or not. A skip is a failure, unless tests/allowed_skips.txt has its reason.
test-extras: extras
	$(PY) -m pytest -m extra --skips-fail

# All tests, in the same lanes. Ranks are new processes, as in a run: what forked ones cannot show is shown here.
test-all: extras
	@scripts/install_browser.sh
	@scripts/install_slurm.sh
	@$(MAKE) --no-print-directory test SELECTION="--hypothesis-profile usual --cold"

lint: install
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

bench: install
	$(PY) -m benchmarks

# A real SLURM with nodes of its own on this machine, as root: see tests/cluster/README.md.
# NODES=3 RATE=100mbit ACCOUNTING=no
cluster-up: install
	@scripts/install_slurm.sh
	@$(PY) -m tests.cluster up

cluster-down:
	@scripts/install.sh --light
	@$(PY) -m tests.cluster down

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis dist site
