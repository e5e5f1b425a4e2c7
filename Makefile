# make demo       the guard at work on a recorded card: needs no GPU and no vLLM
# make test       style, types and the fast tests
# make gpu-check  what this project assumes about GPU memory, measured: two minutes, an NVIDIA GPU, TORCH_PYTHON=a python that has torch
# make bench      what the guard costs up to exec, beside the libraries that it imports, gpustat and nvitop: four minutes
# make bench-headers  what reading the headers of 163 shards costs, beside parsing their JSON: ten seconds
# make bench-explain  how fast explain reads a log of 1 GiB, beside grep -c: half a minute
# make test-slow  the promise with the real vLLM on this machine's memory, units, containers: 3 GB of disk, CPython 3.11, root, half an hour
# Each sets itself up. PYTHON=python3.12 chooses another interpreter, VENV=folder another place.

PYTHON ?= python3
VENV ?= .venv
TORCH_PYTHON ?= python3

.PHONY: demo test test-slow gpu-check bench bench-headers bench-explain
.NOTPARALLEL:

demo: $(VENV)/runs
	@$(VENV)/bin/vllm-guard demo

test: $(VENV)/tests
	@command -v cc >/dev/null || { echo "make: no C compiler (cc): the tests build a stand-in for the NVIDIA driver; apt install gcc" >&2; exit 1; }
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/pytest

test-slow: $(VENV)/tests
	@$(PYTHON) tests/real/install.py
	$(VENV)/bin/pytest --run-slow -m slow

gpu-check: $(VENV)/runs
	@$(VENV)/bin/python bench/gpu_check.py --torch-python "$(TORCH_PYTHON)" --json build/gpu-check.json

bench:
	@$(PYTHON) bench/bench.py

bench-headers: $(VENV)/runs
	@$(VENV)/bin/python bench/headers.py

bench-explain: $(VENV)/runs
	@$(VENV)/bin/python bench/explain.py

# The stamps: a venv is made anew when what it was made from has changed.
$(VENV)/runs: pyproject.toml Makefile
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) not found: install Python 3.10 or newer, or say PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "make: $$($(PYTHON) --version) is too old, 3.10 is needed: say PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) has no venv: apt install python3-venv" >&2; exit 1; }
	@echo "make: making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(VENV)/bin/python -m pip install -qq --disable-pip-version-check --editable .
	@touch $@

$(VENV)/tests: $(VENV)/runs
	@echo "make: installing what the tests need into $(VENV)"
	@$(VENV)/bin/python -m pip install -qq --disable-pip-version-check --editable '.[dev]'
	@touch $@
